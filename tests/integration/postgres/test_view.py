"""The view jobs shows each job as `find` does: one row, whatever its state."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from taskharbor.drivers.messages import Claim, Query
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.bonds import Bonds
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.testing.conformance.kit import HOUR, QUEUE, claim, new_job

PLAIN = (
    *("id", "seq", "queue", "type", "priority", "requires", "key", "idempotency_key"),
    *("attempts", "max_attempts", "stalls", "max_stalls", "starts", "run_at", "created_at", "updated_at"),
    *("started_at", "finished_at", "lease_expires_at", "cancel_requested", "fence", "version"),
    *("last_error", "failure_kind", "failed_at", "result", "payload", "speculates_on"),
)


@pytest.fixture
def sql(store_url: str, database_url: str) -> Any:
    schema = store_url.rpartition("schema=")[2]
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(f"set search_path = {schema}".encode())
        connection.execute("set timezone = 'UTC'")
        yield connection


def rows(sql: Any) -> list[dict[str, Any]]:
    found = sql.execute("select * from jobs order by seq").fetchall()
    return [{**row, "id": str(row["id"])} for row in found]


async def every_kind(driver: PostgresDriver) -> None:
    """Jobs in every state, one with a copy that waits and one with a copy that runs."""
    await driver.enqueue([new_job(key=b"key"), *(new_job(max_stalls=1) for _ in range(8))])
    taken = (await driver.reserve(claim(limit=9, lease_for=HOUR))).jobs
    await driver.speculate(taken[8].id)
    assert len((await driver.reserve(Claim(queues=(QUEUE,), worker_id="another", lease_for=HOUR))).jobs) == 1
    await driver.enqueue(
        [
            *(new_job(key=b"key"), new_job(delay=HOUR), new_job(idempotency_key=b"once")),
            *(new_job(priority=7, requires="gpu"), new_job(run_at=datetime(2020, 1, 1, tzinfo=UTC))),
        ]
    )
    await driver.settle(
        [
            Ack(taken[1].lease, b"result"),
            Ack(taken[2].lease),
            Fail(taken[3].lease, "bad"),
            Retry(taken[4].lease, HOUR, "again"),
            Retry(taken[5].lease, timedelta(0), "at once"),
        ]
    )
    waiting = new_job(queue="other")
    await driver.enqueue([waiting])
    await driver.cancel([waiting.id, taken[6].id])
    await driver.requeue([taken[2].id])
    await driver.speculate(taken[7].id)
    await driver.extend_leases([taken[7].lease], 2 * HOUR)


async def test_the_view_and_find_agree(driver: PostgresDriver, sql: Any) -> None:
    await every_kind(driver)

    jobs = (await driver.find(Query(limit=100))).jobs
    shown = rows(sql)

    assert [row["id"] for row in shown] == [job.id for job in jobs]
    assert {job.state for job in jobs} == {
        "scheduled", "ready", "blocked", "running", "completed", "failed", "cancelled"
    }  # fmt: skip
    for row, job in zip(shown, jobs, strict=True):
        assert {name: row[name] for name in PLAIN} == {name: getattr(job, name) for name in PLAIN}
        assert (row["state"], row["lane"], row["claimed_by"]) == (job.state, job.requires, job.worker_id)
        assert (row["headers"] or {}) == job.headers
        assert len(row["history"] or ()) == len(job.history)


async def test_a_copy_is_not_shown_in_any_state(driver: PostgresDriver, sql: Any) -> None:
    await driver.enqueue([new_job()])
    [job] = (await driver.reserve(claim(lease_for=HOUR))).jobs
    await driver.speculate(job.id)
    seen = [[row["id"] for row in rows(sql)]]
    [copy] = (await driver.reserve(Claim(queues=(QUEUE,), worker_id="another", lease_for=HOUR))).jobs
    seen.append([row["id"] for row in rows(sql)])
    await driver.settle([Fail(copy.lease, "no")])
    seen.append([row["id"] for row in rows(sql)])

    assert seen == [[job.id]] * 3


async def test_a_job_of_a_family_shows_whose_it_is(driver: PostgresDriver, sql: Any) -> None:
    root = new_job(bonds=Bonds(done_by="children"))
    child = new_job(bonds=Bonds(parent=root.id))
    leaf, last = new_job(bonds=Bonds(parent=child.id)), new_job(bonds=Bonds(after=(root.id,)))
    await driver.enqueue([root, child, leaf, last, new_job()])

    jobs = (await driver.find(Query(limit=100))).jobs
    shown = [
        tuple(None if row[name] is None else str(row[name]) for name in ("parent", "root"))
        for row in rows(sql)
    ]

    assert shown == [(job.bonds and job.bonds.parent, job.root) for job in jobs]
    assert shown[:3] == [(None, None), (root.id, root.id), (child.id, root.id)]


@pytest.mark.parametrize(
    "write",
    [
        "update jobs set state = 'failed'",
        "delete from jobs",
        "insert into jobs (id, queue, type) values (gen_random_uuid(), 'q', 't')",
    ],
)
async def test_the_view_cannot_be_written_to(driver: PostgresDriver, sql: Any, write: str) -> None:
    await driver.enqueue([new_job()])
    before = rows(sql)

    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        sql.execute(write)

    assert rows(sql) == before
