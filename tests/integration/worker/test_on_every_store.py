"""What a worker promises, from enqueue to end, on every store there is and on the real clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Query
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.state import JobState
from taskharbor.tasks import job_handler
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_cluster_url, fresh_postgres_url, fresh_redis_url
from taskharbor.worker import Worker
from tests.integration.worker import handlers

SLOW = 40.0
AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0)

# The package of the driver → the URL of a store that nobody else uses.
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "redis.cluster": lambda _: fresh_cluster_url(),
    "http": lambda _: fresh_http_url(durable=True),
}
THERE = [name for name in STORES if find_spec(f"taskharbor.drivers.{name}")]


class Site:
    """One store, and workers that come and go in this event loop."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._entropy = Entropy()

    @asynccontextmanager
    async def working(
        self, handler: Any, driver: Driver | None = None, **options: Any
    ) -> AsyncIterator[Worker]:
        """A worker with this handler for jobs of type `work`."""
        worker = Worker(driver or self.driver, **{"retry": AT_ONCE, "lease": timedelta(seconds=9), **options})
        if handler is handlers.kills_itself:
            worker.add(job_handler("work", handler, run_in="process"))
        else:
            worker.register("work", handler)
        task = asyncio.create_task(worker.arun())
        try:
            yield worker
        finally:
            worker.stop(now=True)
            await asyncio.wait_for(task, SLOW)

    def new_job(self, **fields: Any) -> NewJob:
        return NewJob(id=self._entropy.job_id(SystemClock().now()), type="work", **fields)

    async def put(self, **fields: Any) -> str:
        job = self.new_job(**fields)
        await self.driver.enqueue([job])
        return job.id

    async def job(self, job_id: str) -> JobRecord:
        [record] = await self.driver.get([job_id])
        assert record is not None
        return record

    async def ended(self, job_id: str) -> JobRecord:
        async with asyncio.timeout(SLOW):
            while not (record := await self.job(job_id)).state.is_terminal:
                await asyncio.sleep(0.01)
        return record


@pytest.fixture(params=THERE)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with connect(STORES[request.param](tmp_path)) as driver:
        yield Site(driver)


async def test_a_job_that_succeeds_keeps_its_result(site):
    async def handler(ctx, job):
        return {"heard": job.payload.decode(), "attempt": ctx.attempt}

    async with site.working(handler):
        record = await site.ended(await site.put(payload=b"hello"))

    assert (record.state, record.starts, record.attempts) == (JobState.COMPLETED, 1, 0)
    assert record.result == b'{"heard":"hello","attempt":1}'
    assert record.history == ()


async def test_an_idle_worker_with_a_gpu_leaves_the_work_of_all_to_an_idle_one_without(site):
    """On handles of their own, as two machines have. The long poll leaves only the hints of the store."""

    async def handler(ctx, job):
        return ctx.worker.split("-")[0]

    slow_poll = {"poll": timedelta(seconds=30), "concurrency": 1}
    async with (
        site.working(handler, site.driver.another(), kind="gpu", name="gpu", **slow_poll),
        site.working(handler, site.driver.another(), kind="cpu", name="cpu"),
    ):
        first = await site.ended(await site.put(requires="gpu"))
        await asyncio.sleep(1.0)  # both are idle: the moment in which the one with the GPU used to be first
        shared = [await site.ended(await site.put()) for _ in range(4)]
        last = await site.ended(await site.put(requires="gpu"))

    assert [first.result, last.result] == [b'"gpu"'] * 2
    assert [job.result for job in shared] == [b'"cpu"'] * 4


async def test_a_worker_with_a_gpu_does_the_work_of_all_when_nobody_else_is_there(site):
    async def handler(ctx, job):
        return None

    async with site.working(handler, site.driver.another(), kind="gpu", concurrency=1):
        await asyncio.sleep(0.5)
        records = [await site.ended(job_id) for job_id in [await site.put() for _ in range(20)]]

    assert {record.state for record in records} == {JobState.COMPLETED}


async def test_a_job_that_fails_is_tried_again_and_may_succeed(site):
    async def handler(ctx, job):
        if ctx.attempt < 3:
            raise ConnectionError(f"no luck {ctx.attempt}")
        return "done"

    async with site.working(handler):
        record = await site.ended(await site.put(max_attempts=5))

    assert (record.state, record.attempts, record.starts) == (JobState.COMPLETED, 2, 3)
    assert [attempt.outcome for attempt in record.history] == ["retried", "retried", "completed"]
    assert "no luck 2" in (record.history[1].error or "")


async def test_a_job_that_keeps_failing_ends_among_the_dead_letters_with_its_history(site):
    async def handler(ctx, job):
        raise ValueError(f"attempt {ctx.attempt} of it")

    async with site.working(handler) as worker:
        record = await site.ended(await site.put(max_attempts=3))

    assert (record.state, record.failure_kind, record.attempts) == (JobState.FAILED, "error", 3)
    assert record.last_error == "ValueError: attempt 3 of it"
    assert [attempt.outcome for attempt in record.history] == ["retried", "retried", "failed"]
    for number, attempt in enumerate(record.history, 1):
        assert f"attempt {number} of it" in (attempt.error or "")
        assert attempt.worker_id == worker.id
        assert attempt.started_at <= attempt.ended_at
    page = await site.driver.find(Query(states=(JobState.FAILED,)))
    assert [job.id for job in page.jobs] == [record.id]


async def test_a_job_past_its_time_limit_is_stopped_and_fails_as_a_timeout(site):
    notified = asyncio.Event()

    async def handler(ctx, job):
        try:
            await asyncio.sleep(3600)
        finally:
            assert ctx.cancelled.reason == "timeout"
            notified.set()

    async with site.working(handler):
        record = await site.ended(await site.put(max_attempts=1, timeout=timedelta(seconds=0.2)))

    assert notified.is_set()
    assert (record.state, record.failure_kind, record.attempts) == (JobState.FAILED, "timeout", 1)


async def test_a_running_job_can_be_cancelled(site):
    has_begun, notified = asyncio.Event(), asyncio.Event()

    async def handler(ctx, job):
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            assert ctx.cancelled.reason == "cancel"
            notified.set()

    async with site.working(handler, lease=timedelta(seconds=3)):
        job_id = await site.put()
        await asyncio.wait_for(has_begun.wait(), SLOW)
        [answer] = await site.driver.cancel([job_id])
        record = await site.ended(job_id)

    assert answer.result is CancelResult.REQUESTED
    assert notified.is_set()
    assert (record.state, record.attempts, record.stalls) == (JobState.CANCELLED, 0, 0)


async def test_jobs_of_one_key_run_one_at_a_time_and_hold_nobody_else_up(site):
    """Those that wait are one job, with the newest data."""
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    running, most, order = 0, 0, []

    async def handler(ctx, job):
        nonlocal running, most
        order.append(job.payload)
        if job.key is None:
            return
        running += 1
        most = max(most, running)
        has_begun.set()
        await asyncio.wait_for(may_end.wait(), SLOW)
        running -= 1

    async with site.working(handler, concurrency=8):
        first = await site.put(key=b"account/7", payload=b"first")
        await asyncio.wait_for(has_begun.wait(), SLOW)
        later = [await site.put(key=b"account/7", payload=payload) for payload in (b"second", b"third")]
        await site.ended(await site.put(payload=b"free"))  # claimed after the keyed ones could have been
        assert [(await site.job(job_id)).starts for job_id in (first, *later)] == [1, 0, 0]
        may_end.set()
        states = [(await site.ended(job_id)).state for job_id in (first, *later)]

    assert states == [JobState.COMPLETED] * 3
    assert most == 1
    assert order == [b"first", b"free", b"third"]


async def test_jobs_of_a_higher_priority_run_first(site):
    order = []

    async def handler(ctx, job):
        order.append(job.payload)

    ids = [await site.put(priority=level, payload=b"%d" % level) for level in (0, 5, -5, 9, 5)]
    async with site.working(handler, concurrency=1):
        for job_id in ids:
            await site.ended(job_id)

    assert order == [b"9", b"5", b"5", b"0", b"-5"]


@pytest.mark.more("hundreds of jobs, or megabytes of them")
async def test_with_hundreds_of_slots_each_job_is_run_and_settled_once(site):
    """One half leaves while the other runs, on a store elsewhere: none is lost between the halves."""
    runs: Counter[bytes] = Counter()

    async def handler(ctx, job):
        runs[job.payload] += 1
        if job.payload.endswith(b"7"):
            raise ValueError("always")

    payloads = [b"%d" % number for number in range(1500)]
    jobs = [site.new_job(payload=payload, max_attempts=2) for payload in payloads]
    await site.driver.enqueue(jobs)
    async with site.working(handler, concurrency=400):
        for job in jobs:
            await site.ended(job.id)

    assert runs == {payload: 2 if payload.endswith(b"7") else 1 for payload in payloads}
    counts = (await site.driver.count())["default"]
    assert (counts.completed, counts.failed, counts.total) == (1350, 150, 1500)


async def test_the_crash_of_a_handler_process_is_a_stall_and_no_attempt(site):
    async with site.working(handlers.kills_itself):
        record = await site.ended(await site.put(max_stalls=2))

    assert (record.state, record.failure_kind) == (JobState.FAILED, "stalled")
    assert (record.stalls, record.attempts, record.starts) == (2, 0, 2)
    assert [attempt.outcome for attempt in record.history] == ["stalled", "stalled"]
    assert "SIGKILL" in (record.last_error or "")
