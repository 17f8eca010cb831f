"""Attempts that were stored before they named the class of their error stay readable."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from taskharbor.drivers.postgres.rows import history_of
from taskharbor.drivers.redis.story import attempt_in
from taskharbor.model.job import AttemptRecord

AT = datetime(2026, 11, 1, tzinfo=UTC)
MICROS = int(AT.timestamp() * 1_000_000)
BEFORE = AttemptRecord(7, "w-1", AT, AT, "failed", "ValueError: no")
ENTRY = [7, "w-1", MICROS, MICROS, "failed", "ValueError: no"]


@pytest.mark.parametrize("error_class", [None, "builtins.ValueError"])
def test_an_entry_on_postgres_and_redis_may_end_before_the_class(error_class: str | None) -> None:
    entry = [*ENTRY, error_class] if error_class else ENTRY

    [on_postgres] = history_of([entry])
    on_redis = attempt_in(msgspec.msgpack.encode(entry))

    assert on_postgres == on_redis == msgspec.structs.replace(BEFORE, error_class=error_class)


def test_an_entry_on_sqlite_and_over_http_may_lack_the_class() -> None:
    fields = msgspec.to_builtins(BEFORE)
    del fields["error_class"]

    assert msgspec.convert(fields, AttemptRecord) == BEFORE
