"""A store that cannot answer for now is never taken for a lost lease, wherever the store is outside."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from urllib.parse import urlsplit

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.errors import DriverUnavailable
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    START,
    new_job,
    reserve_one,
    running,
    settle_one,
    state_of,
)
from taskharbor.testing.conformance.verbs import LEASED_VERBS
from tests.contract.conftest import BACKENDS


@contextmanager
def locked_file(url: str) -> Iterator[None]:
    """Another process in the middle of a long write."""
    path = urlsplit(url).path.removeprefix("/")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin exclusive")
        yield


# The scheme of a store → a way to keep it from answering.
OUTAGES: dict[str, Callable[[str], AbstractContextManager[None]]] = {"sqlite": locked_file}


@pytest.fixture(params=sorted(OUTAGES))
def driver_url(request: pytest.FixtureRequest) -> str:
    """Only the stores for which an outage is written: Postgres has its own survival tests."""
    return BACKENDS[request.param](request)


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    """A driver that does not wait long before it gives up."""
    async with connect(f"{driver_url}&timeout=0.05") as driver:
        yield driver


@pytest.fixture
def outage(driver_url: str) -> AbstractContextManager[None]:
    return OUTAGES[urlsplit(driver_url).scheme](driver_url)


@pytest.mark.parametrize("verb", LEASED_VERBS)
async def test_an_outage_is_no_lost_lease(
    driver: Driver, outage: AbstractContextManager[None], verb: str
) -> None:
    """N13: DriverUnavailable, the job is still ours, and afterwards it can be settled."""
    job = await running(driver)

    with outage, pytest.raises(DriverUnavailable) as error:
        await LEASED_VERBS[verb](driver, job.lease, START)

    assert error.value.done is False
    assert await state_of(driver, job.id) is JobState.RUNNING
    await settle_one(driver, Ack(job.lease))


async def test_an_enqueue_during_an_outage_stores_nothing(
    driver: Driver, outage: AbstractContextManager[None]
) -> None:
    """N13: it can be repeated as it is."""
    job = new_job()

    with outage, pytest.raises(DriverUnavailable):
        await driver.enqueue([job], now=START)
    [answer] = await driver.enqueue([job], now=START)

    assert answer.result == "created"
    assert (await reserve_one(driver, now=START + LEASE)).id == job.id
