"""The view th_jobs shows each job as `find` does: one row, whatever its state."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.drivers.messages import Claim, Query
from taskharbor.model.bonds import Bonds
from taskharbor.model.settlement import Ack, Fail, Retry
from tests.integration.sqlite.stores import claim, driver_on, new_job

HOUR = timedelta(hours=1)
PLAIN = (
    "id",
    "seq",
    "queue",
    "type",
    "priority",
    "attempts",
    "stalls",
    "starts",
    "last_error",
    "failure_kind",
    "payload",
    "requires",
)
INSTANTS = ("created_at", "run_at", "updated_at", "started_at", "finished_at", "lease_expires_at")


def rows(path, prefix="th_"):
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(f"select * from {prefix}jobs order by seq").fetchall()


def instant(text):
    return None if text is None else datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


async def every_kind(driver):
    """Jobs in every state, with the clock of this machine: it is the view's, too."""
    await driver.enqueue([new_job(key=b"key"), *(new_job(max_stalls=1) for _ in range(7))])
    taken = (await driver.reserve(claim(8, lease_for=HOUR))).jobs
    await driver.enqueue(
        [new_job(key=b"key"), new_job(delay=HOUR), new_job(priority=7, requires="gpu"), new_job()]
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


@pytest.mark.parametrize("options", ["durability=normal", "durability=normal&namespace=Blue"])
async def test_the_view_and_find_agree(tmp_path, options):
    path = tmp_path / "jobs.db"
    async with driver_on(path, options) as driver:
        await every_kind(driver)
        jobs = (await driver.find(Query(limit=100))).jobs
        shown = rows(path, driver._location.table_prefix)

    assert [row["id"] for row in shown] == [job.id for job in jobs]
    assert {job.state for job in jobs} == {
        "scheduled", "ready", "blocked", "running", "completed", "failed", "cancelled"
    }  # fmt: skip
    for row, job in zip(shown, jobs, strict=True):
        assert {name: row[name] for name in PLAIN} == {name: getattr(job, name) for name in PLAIN}
        assert {name: instant(row[name]) for name in INSTANTS} == {
            name: getattr(job, name) for name in INSTANTS
        }
        assert (row["state"], row["lane"], row["claimed_by"]) == (job.state, job.requires, job.worker_id)
        assert row["key"] == (None if job.key is None else job.key.decode())
        assert bool(row["cancel_requested"]) is job.cancel_requested


async def test_a_job_whose_time_has_come_reads_ready(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.enqueue([new_job(run_at=datetime(2020, 1, 1, tzinfo=UTC)), new_job(delay=HOUR)])

    assert [row["state"] for row in rows(tmp_path / "jobs.db")] == ["ready", "scheduled"]


async def test_the_view_cannot_be_written_to(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.enqueue([new_job()])

    with (
        closing(sqlite3.connect(tmp_path / "jobs.db")) as connection,
        pytest.raises(sqlite3.OperationalError),
    ):
        connection.execute("update th_jobs set state = 'failed'")


async def test_a_copy_is_not_shown(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.enqueue([new_job()])
        [job] = (await driver.reserve(claim(1))).jobs
        await driver.speculate(job.id)
        other = Claim(queues=("default",), worker_id="worker-2", lease_for=HOUR)
        assert len((await driver.reserve(other)).jobs) == 1

    assert [row["id"] for row in rows(tmp_path / "jobs.db")] == [job.id]


async def test_a_job_of_a_family_shows_whose_it_is_and_how_many_are_open(tmp_path):
    root = new_job(bonds=Bonds(done_by="children"))
    child = new_job(bonds=Bonds(parent=root.id))
    leaf, last = new_job(bonds=Bonds(parent=child.id)), new_job(bonds=Bonds(after=(root.id,)))
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.enqueue([root, child, leaf, last, new_job()])
    shown = [
        tuple(row[name] for name in ("parent", "root", "waits_for", "children", "open_children"))
        for row in rows(tmp_path / "jobs.db")
    ]

    assert shown == [
        (None, None, 0, 1, 1),
        (root.id, root.id, 0, 1, 1),
        (child.id, root.id, None, None, None),
        (None, None, 1, 0, 0),
        (None, None, None, None, None),
    ]
