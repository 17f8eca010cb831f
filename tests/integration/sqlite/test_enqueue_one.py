"""One plain job by one statement: the same in the file, and the ordinary way for whatever is unusual."""

from __future__ import annotations

import sqlite3
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.drivers.messages import CancelResult, EnqueueResult, Query
from taskharbor.drivers.sqlite.enqueue_one import EnqueueOne
from taskharbor.errors import RateLimited
from taskharbor.model.job import NO_TIME
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from tests.integration.sqlite.stores import NOW, claim, content, driver_on, is_sound, new_job


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the statement answered each time: whether it has stored the job."""
    answers: list[bool] = []
    store = EnqueueOne.store

    def noted(self, job, us):
        answers.append(store(self, job, us))
        return answers[-1]

    monkeypatch.setattr(EnqueueOne, "store", noted)
    return answers


async def test_with_the_next_step_the_file_is_as_the_ordinary_way_writes_it(
    tmp_path: Path, stored: list[bool]
) -> None:
    options = {"priority": 7, "requires": "gpu", "timeout": timedelta(seconds=5), "headers": {"a": "b"}}
    jobs = [new_job(), new_job(), new_job(queue="other", **options), new_job()]
    async with driver_on(tmp_path / "one.db") as one:
        for job in jobs:
            one.enqueue_blocking([job], now=NOW)
        assert is_sound(tmp_path / "one.db")
        await one.promote(now=NOW)  # as any other step, it lines them up
    async with driver_on(tmp_path / "many.db") as many:
        for job in jobs:
            await many.enqueue([job], now=NOW)
        await many.promote(now=NOW)

    assert stored == [False, True, True, True]  # the first call reads the rules
    written, expected = content(tmp_path / "one.db"), content(tmp_path / "many.db")
    for table in ("th_migration", "th_addition"):
        del written[table], expected[table]  # when each was made
    assert written == expected


async def test_a_job_is_claimed_and_counted(tmp_path: Path, stored: list[bool]) -> None:
    async with driver_on(tmp_path / "jobs.db") as driver:
        jobs = [new_job() for _ in range(5)]
        for job in jobs:
            driver.enqueue_blocking([job], now=NOW)
        assert (await driver.count(["default"], now=NOW))["default"].ready == 5
        claimed = (await driver.reserve(claim(), now=NOW)).jobs

    assert [record.id for record in claimed] == [job.id for job in jobs]
    assert sum(stored) == 4


async def test_before_they_are_lined_up_jobs_are_seen_by_everybody(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver, driver_on(path) as another:
        await another.enqueue([new_job(queue="other")], now=NOW)
        driver.enqueue_blocking([new_job(queue="other")], now=NOW)
        jobs = [new_job(priority=number) for number in range(3)]
        for number, job in enumerate(jobs):
            driver.enqueue_blocking([job], now=NOW + timedelta(seconds=number))

        counts = await another.count(now=NOW)
        found = await another.find(Query(queue="default", states=(JobState.READY,)), now=NOW)
        newest = await another.find(Query(newest_first=True, limit=1), now=NOW)
        elsewhere = await another.find(Query(states=(JobState.FAILED, JobState.BLOCKED)), now=NOW)
        info = {info.queue: info for info in await another.queues(now=NOW)}

    assert {queue: of.ready for queue, of in counts.items()} == {"default": 3, "other": 2}
    assert [job.id for job in found.jobs] == [job.id for job in jobs]
    assert [job.id for job in newest.jobs] == [jobs[-1].id]
    assert not elsewhere.jobs
    assert info["default"].counts.ready == 3
    assert info["default"].oldest_ready_at == NOW


async def test_a_job_that_is_not_lined_up_yet_can_be_cancelled(tmp_path: Path) -> None:
    async with driver_on(tmp_path / "jobs.db") as driver:
        driver.enqueue_blocking([new_job()], now=NOW)
        job = new_job()
        driver.enqueue_blocking([job], now=NOW)
        [answer] = await driver.cancel([job.id], now=NOW)
        counts = (await driver.count(["default"], now=NOW))["default"]

    assert answer.result is CancelResult.CANCELLED
    assert (counts.ready, counts.cancelled) == (1, 1)
    assert is_sound(tmp_path / "jobs.db")


async def test_no_more_than_a_thousand_wait_to_be_lined_up(tmp_path: Path, stored: list[bool]) -> None:
    async with driver_on(tmp_path / "jobs.db") as driver:
        for _ in range(1010):
            driver.enqueue_blocking([new_job()], now=NOW)

        assert (await driver.count(["default"], now=NOW))["default"].ready == 1010
    assert [place for place, is_stored in enumerate(stored) if not is_stored] == [0, 1001]
    assert is_sound(tmp_path / "jobs.db")


async def test_the_number_of_a_job_that_is_gone_is_not_issued_again(tmp_path: Path) -> None:
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.configure_queue(
            QueueSettings(queue="default", retention=Retention(completed=NO_TIME)), now=NOW
        )
        driver.enqueue_blocking([new_job()], now=NOW)
        driver.enqueue_blocking([new_job()], now=NOW)
        claimed = (await driver.reserve(claim(), now=NOW)).jobs
        await driver.settle([Ack(job.lease) for job in claimed], now=NOW)
        job = new_job()
        driver.enqueue_blocking([job], now=NOW)
        [record] = await driver.get([job.id], now=NOW)

    assert record is not None
    assert record.seq > max(job.seq for job in claimed)


async def test_a_known_id_is_a_duplicate(tmp_path: Path) -> None:
    async with driver_on(tmp_path / "jobs.db") as driver:
        driver.enqueue_blocking([new_job()], now=NOW)
        job = new_job()
        [first] = driver.enqueue_blocking([job], now=NOW)
        [second] = driver.enqueue_blocking([job], now=NOW)

        absorbed = new_job(key=b"k")
        driver.enqueue_blocking([new_job(key=b"k")], now=NOW)
        driver.enqueue_blocking([absorbed], now=NOW)
        [third] = driver.enqueue_blocking([new_job(id=absorbed.id)], now=NOW)

    assert [answer.result for answer in (first, second, third)] == [
        EnqueueResult.CREATED,
        EnqueueResult.DUPLICATE,
        EnqueueResult.DUPLICATE,
    ]


async def test_rules_of_another_process_count_at_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver, driver_on(path) as another:
        driver.enqueue_blocking([new_job()], now=NOW)
        rate = RateLimit(1, timedelta(hours=1))
        await another.configure_queue(QueueSettings(queue="default", enqueue_rate=rate), now=NOW)

        driver.enqueue_blocking([new_job()], now=NOW)
        with pytest.raises(RateLimited):
            driver.enqueue_blocking([new_job()], now=NOW)


async def test_rules_that_limit_no_enqueue_leave_it_at_one_statement(
    tmp_path: Path, stored: list[bool]
) -> None:
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.configure_queue(QueueSettings(queue="default", max_running=3), now=NOW)
        for _ in range(3):
            driver.enqueue_blocking([new_job()], now=NOW)

    assert stored == [False, True, True]


async def test_another_writer_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        driver.enqueue_blocking([new_job()], now=NOW)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("begin immediate")
        release = threading.Timer(0.2, other.rollback)
        release.start()
        [answer] = driver.enqueue_blocking([new_job()], now=NOW)
        release.join()
        other.close()
        assert (await driver.count(["default"], now=NOW))["default"].ready == 2

    assert answer.result is EnqueueResult.CREATED


async def test_many_threads_of_two_handles_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver, driver_on(path) as another:

        def enqueue(handle):
            for _ in range(40):
                handle.enqueue_blocking([new_job()], now=NOW)

        threads = [threading.Thread(target=enqueue, args=(handle,)) for handle in (driver, another) * 3]
        for thread in threads:
            thread.start()
        await driver.enqueue([new_job() for _ in range(10)], now=NOW)
        for thread in threads:
            thread.join()
        assert (await driver.count(["default"], now=NOW))["default"].ready == 250
        claimed = (await driver.reserve(claim(limit=1000), now=NOW)).jobs

    assert len({record.id for record in claimed}) == 250
