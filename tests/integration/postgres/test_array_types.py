"""A new connection asks the server nothing about types: on a slow line that took longer than a lease."""

from datetime import timedelta

import asyncpg
import pytest

from taskharbor.drivers.messages import Query
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.array_types import _ELEMENTS, _array
from taskharbor.model.settlement import Ack, Fail, Release, Retry
from taskharbor.testing.conformance.kit import LEASE, claim, new_job, new_jobs
from taskharbor.testing.servers import fresh_postgres_url, postgres_url


@pytest.fixture
def no_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(self, typeoids, timeout):
        raise AssertionError(f"the server was asked about the types {sorted(typeoids)}")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", look_up)


async def test_no_type_is_looked_up_on_the_way_of_a_job(no_look_ups: None) -> None:
    async with PostgresDriver.from_url(fresh_postgres_url()) as driver:
        await driver.enqueue([*new_jobs(6), new_job(key=b"key"), new_job(delay=timedelta(hours=1))])
        jobs = (await driver.reserve(claim(limit=6))).jobs
        await driver.extend_leases([job.lease for job in jobs], LEASE)
        done = await driver.exchange([Ack(jobs[0].lease, b"1"), Ack(jobs[1].lease)], claim(limit=1))
        settled = await driver.settle(
            [
                Retry(jobs[2].lease, reason="broken"),
                Fail(jobs[3].lease, reason="broken"),
                Release(jobs[4].lease),
                Ack(jobs[5].lease),
            ]
        )
        await driver.cancel([jobs[2].id])
        await driver.requeue([jobs[3].id])
        await driver.reclaim()
        await driver.promote()
        await driver.prune()

        assert len(done.settled) == 2
        assert len(settled) == 4
        assert (await driver.count())["kit"].completed == 3
        assert len((await driver.find(Query(limit=100))).jobs) == 8


async def test_the_server_says_the_same_about_these_types() -> None:
    connection = await asyncpg.connect(postgres_url())
    try:
        rows, _ = await connection._introspect_types(list(_ELEMENTS), None)
    finally:
        await connection.close()
    types = {row["oid"]: (row["elemtype"], row["name"], row["elemdelim"]) for row in rows if row["elemtype"]}

    assert types == {
        oid: (known["elemtype"], known["name"], known["elemdelim"])
        for oid, known in ((oid, _array(oid)) for oid in _ELEMENTS)
    }
