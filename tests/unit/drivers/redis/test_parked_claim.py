"""When the jobs of a claim that was sent parked are given to a claim that comes later."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis.parked_claim import ParkedClaim

ASKED = Claim(
    queues=("a", "b"), worker_id="worker-1", limit=2, lease_for=timedelta(seconds=20), lanes=("cpu", "any")
)
SENT, WINDOW = 100.0, 0.5


@pytest.fixture
def parked() -> Iterator[ParkedClaim]:
    """It has brought two jobs."""
    loop = asyncio.new_event_loop()
    result: asyncio.Future[Any] = loop.create_future()
    result.set_result(["job", "job"])
    yield ParkedClaim(ASKED, "token", SENT, result)
    loop.close()


def test_its_jobs_are_kept_for_two_windows_by_which_their_leases_are_longer(parked: ParkedClaim) -> None:
    assert parked.window == WINDOW
    assert parked.claim.lease_for == ASKED.lease_for + timedelta(seconds=2 * WINDOW)
    assert parked.fits(ASKED, SENT + 2 * WINDOW)
    assert not parked.fits(ASKED, SENT + 2 * WINDOW + 1e-6)


def test_the_order_of_queues_does_not_matter(parked: ParkedClaim) -> None:
    assert parked.fits(replace(ASKED, queues=("b", "a")), SENT)


@pytest.mark.parametrize(
    "other",
    [
        {"queues": ("a",)},
        {"worker_id": "worker-2"},
        {"lanes": ("any",)},
        {"types": ("mail",)},
        {"lease_for": timedelta(seconds=21)},
        {"limit": 1},
    ],
    ids=str,
)
def test_a_claim_for_something_else_does_not_get_them(parked: ParkedClaim, other: dict[str, Any]) -> None:
    assert not parked.fits(replace(ASKED, **other), SENT)
