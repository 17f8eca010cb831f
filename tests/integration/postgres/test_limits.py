"""Limits under claimers in separate processes, counted afterwards by the stamps of the server's clock."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from multiprocessing import get_context

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import RateLimited
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import QUEUE, START, claim, new_jobs

CLAIMERS = 16
Span = tuple[datetime, datetime]


def work(url: str, number: int, rounds: int) -> list[Span]:
    """What one process does: claim a few, hold them a moment, settle; when each began and ended."""
    return asyncio.run(_work(url, f"worker-{number}", rounds))


async def _work(url: str, worker_id: str, rounds: int) -> list[Span]:
    spans: list[Span] = []
    async with PostgresDriver.from_url(url) as driver:
        for _ in range(rounds):
            jobs = (await driver.reserve(claim(limit=3, worker_id=worker_id))).jobs
            await asyncio.sleep(0.002)
            answers = await driver.settle([Ack(job.lease) for job in jobs])
            for job, answer in zip(jobs, answers, strict=True):
                assert isinstance(answer, Settled)
                assert job.started_at is not None
                spans.append((job.started_at, answer.at))
    return spans


@pytest.fixture(scope="module")
def claimers() -> Iterator[ProcessPoolExecutor]:
    """Processes that are all up before the first of them claims.

    They are forked from one that has imported this module: sixteen imports take longer than all the rest.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(CLAIMERS, mp_context=context) as pool:
        list(pool.map(get_up, range(CLAIMERS)))
        yield pool


def get_up(number: int) -> int:
    """The first thing a process does."""
    return number


def in_processes(claimers: ProcessPoolExecutor, url: str, rounds: int) -> list[Span]:
    parts = claimers.map(work, [url] * CLAIMERS, range(CLAIMERS), [rounds] * CLAIMERS)
    return [span for part in parts for span in part]


@pytest.mark.more("kills processes or servers and waits until others take over")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", [QUEUE, "*"])
async def test_max_running_holds_at_every_instant(
    driver: PostgresDriver, claimers: ProcessPoolExecutor, store_url: str, level: str
) -> None:
    limit = 5
    await driver.configure_queue(QueueSettings(queue=level, max_running=limit))
    await driver.enqueue(new_jobs(600))

    spans = await asyncio.to_thread(in_processes, claimers, store_url, 12)

    # A lease counts from its claim up to, and not at, the instant it was settled.
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])  # ends first
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    assert len(spans) > limit
    assert most <= limit


@pytest.mark.timeout(300)
async def test_an_execute_rate_holds_in_every_window(
    driver: PostgresDriver, claimers: ProcessPoolExecutor, store_url: str
) -> None:
    rate = RateLimit(20, timedelta(milliseconds=400))
    await driver.configure_queue(QueueSettings(queue=QUEUE, execute_rate=rate))
    await driver.enqueue(new_jobs(600))

    spans = await asyncio.to_thread(in_processes, claimers, store_url, 12)

    begins = sorted(began for began, _ in spans)
    assert len(begins) >= rate.count
    for place, began in enumerate(begins):
        within = sum(1 for other in begins[place:] if other < began + rate.per)
        assert within <= rate.count


async def test_a_lowered_rate_gives_the_same_wait_as_the_memory_store(driver: PostgresDriver) -> None:
    """More is spent than the new rate allows: the wait is until enough of it has left the window."""
    async with MemoryDriver() as memory:
        for count, after in [(3, 0), (3, 4), (1, 7), (2, 12), (1, 14), (1, 24)]:
            now = START + timedelta(seconds=after)
            answers = [await _spend_then_lower(one, count, now) for one in (memory, driver)]
            assert answers[0] == answers[1], (count, after)


async def _spend_then_lower(driver: Driver, count: int, now: datetime) -> timedelta | None:
    """Spend what a high rate allows, lower it, ask for one more; how long that has to wait."""
    high, low = RateLimit(6, timedelta(seconds=10)), RateLimit(2, timedelta(seconds=10))
    await driver.configure_queue(QueueSettings(queue=QUEUE, enqueue_rate=high), now=now)
    with suppress(RateLimited):
        await driver.enqueue(new_jobs(count), now=now)
    await driver.configure_queue(QueueSettings(queue=QUEUE, enqueue_rate=low), now=now)
    try:
        await driver.enqueue(new_jobs(1), now=now)
    except RateLimited as refusal:
        return refusal.retry_after
    return None
