"""Batches that are too long are refused before a store sees them; the longest that fit pass."""

from datetime import UTC, datetime
from typing import Any

import pytest

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import MAX_BATCH, check_ids, check_leases
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack, check_settlements

NOW = datetime(2031, 4, 5, tzinfo=UTC)
ID = "01890000-0000-7000-8000-000000000001"
LEASE = Lease(ID, "0" * 32)


def settlements_checked(items: list[Any]) -> None:
    check_settlements(items, NOW, 1024)


CASES = [(check_ids, ID), (check_leases, LEASE), (settlements_checked, Ack(LEASE))]


@pytest.mark.parametrize(("check", "item"), CASES)
def test_a_call_takes_as_many_as_are_allowed_and_not_one_more(check: Any, item: Any) -> None:
    check([item] * MAX_BATCH)

    with pytest.raises(InvalidArgument, match=f"{MAX_BATCH + 1} .* in one call"):
        check([item] * (MAX_BATCH + 1))


def test_a_result_may_be_as_long_as_a_payload_and_not_longer() -> None:
    settlements_checked([Ack(LEASE, b"x" * 1024)])

    with pytest.raises(InvalidArgument, match="1025 bytes"):
        settlements_checked([Ack(LEASE, b"x" * 1025)])
