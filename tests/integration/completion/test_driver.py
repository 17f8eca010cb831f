"""The same promise one floor below: Driver.transaction on every store that declares `tx`."""
# ruff: noqa: PT012 - the transaction is what raises, and its body belongs to it

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.errors import InvalidArgument, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import WRONG_TOKEN, claim, new_job
from taskharbor.testing.servers import fresh_postgres_url
from tests.integration.completion import ledger


class Books:
    """A store with a ledger in it."""

    def __init__(self, url: str, driver: Driver) -> None:
        self.url = url
        self.driver = driver

    async def taken(self, lease_for: timedelta = timedelta(seconds=30)) -> Lease:
        await self.driver.enqueue([new_job()])
        [job] = (await self.driver.reserve(claim(lease_for=lease_for))).jobs
        return job.lease

    async def state(self, lease: Lease) -> JobState:
        [job] = await self.driver.get([lease.job_id])
        assert job is not None
        return job.state


@pytest.fixture(params=["sqlite", "postgres"])
async def books(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Books]:
    url = fresh_postgres_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/jobs.db"
    async with connect(url) as driver:
        await ledger.create(url)
        yield Books(url, driver)


async def test_the_commit_carries_the_ack_and_its_result(books: Books) -> None:
    lease = await books.taken()
    answers: list[Settled] = []

    async with books.driver.transaction(lease, result=b"42", on_settled=answers.append) as connection:
        await ledger.write(connection, lease.job_id, books.url)
        assert await books.state(lease) is JobState.RUNNING

    [job] = await books.driver.get([lease.job_id])
    assert job is not None
    assert (job.state, job.result, job.settled_token) == (JobState.COMPLETED, b"42", lease.token)
    assert [(answer.id, answer.state, answer.version) for answer in answers] == [
        (job.id, JobState.COMPLETED, job.version)
    ]
    assert await ledger.rows(books.url) == {lease.job_id: 1}
    [late] = await books.driver.settle([Ack(lease)])
    assert isinstance(late, JobNotInflight)


async def test_an_error_in_the_block_undoes_it_and_leaves_the_lease(books: Books) -> None:
    lease = await books.taken()

    with pytest.raises(ZeroDivisionError):
        async with books.driver.transaction(lease) as connection:
            await ledger.write(connection, lease.job_id, books.url)
            _ = 1 / 0

    assert await ledger.rows(books.url) == {}
    assert await books.state(lease) is JobState.RUNNING
    [answer] = await books.driver.settle([Ack(lease)])
    assert isinstance(answer, Settled)


async def test_a_stale_token_undoes_it(books: Books) -> None:
    lease = await books.taken()

    with pytest.raises(LeaseMismatch):
        async with books.driver.transaction(Lease(lease.job_id, WRONG_TOKEN)) as connection:
            await ledger.write(connection, lease.job_id, books.url)

    assert await ledger.rows(books.url) == {}
    assert await books.state(lease) is JobState.RUNNING


async def test_a_lease_that_ran_out_undoes_it(books: Books) -> None:
    lease = await books.taken(timedelta(microseconds=1))

    with pytest.raises(LeaseExpired):
        async with books.driver.transaction(lease) as connection:
            await ledger.write(connection, lease.job_id, books.url)

    assert await ledger.rows(books.url) == {}


async def test_the_lease_is_asked_for_when_the_block_ends(books: Books) -> None:
    """It may have been extended in between, under a new token."""
    lease = await books.taken()
    leases = [Lease(lease.job_id, WRONG_TOKEN)]

    async with books.driver.transaction(lambda: leases[-1]) as connection:
        await ledger.write(connection, lease.job_id, books.url)
        leases.append(lease)

    assert await books.state(lease) is JobState.COMPLETED


async def test_a_handler_that_commits_by_itself_gets_an_error_that_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with connect(url) as driver:
        books = Books(url, driver)
        lease = await books.taken()
        with pytest.raises(InvalidArgument, match="COMMIT"):
            async with driver.transaction(lease) as connection:
                connection.execute("commit")

        assert await books.state(lease) is JobState.RUNNING


async def test_a_store_without_transactions_says_so() -> None:
    async with connect("memory://") as driver:
        with pytest.raises(InvalidArgument, match="fence"):
            driver.transaction(Lease("no-matter", WRONG_TOKEN))
