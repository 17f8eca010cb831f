"""Races at the end of an attempt: the result is that of some order of the calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Counts, Extended, Settled
from taskharbor.errors import JobNotInflight, LeaseLost
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    START,
    claim,
    get_one,
    new_job,
    new_jobs,
    reserve,
)
from taskharbor.testing.conformance.parallel import Racer, in_processes, in_threads
from taskharbor.testing.process import take_part

ROUNDS = 20


async def duel(
    driver: Driver,
    ids: list[str],
    first: Callable[[Driver, int], Awaitable[Any]],
    second: Callable[[Driver, int], Awaitable[Any]],
) -> list[tuple[Any, Any]]:
    """For each round, what the two got who acted at the same time."""

    async def act(racer: Racer) -> list[Any]:
        answers = []
        for number in range(len(ids)):
            racer.meet()
            answers.append(await (second if racer.number else first)(racer.driver, number))
        return answers

    return list(zip(*await in_threads(driver, 2, act), strict=True))


async def many_running(driver: Driver, lease_for: Any = HOUR) -> list[JobRecord]:
    await driver.enqueue(new_jobs(ROUNDS), now=START)
    return await reserve(driver, limit=ROUNDS, lease_for=lease_for)


async def test_an_ack_and_a_sweep_at_the_expiry(driver: Driver) -> None:
    """P04 I2b: the ack came in time, or the job is handed on; never both, never neither."""
    jobs = await many_running(driver, LEASE)
    ids = [job.id for job in jobs]

    async def ack(handle: Driver, number: int) -> Any:
        [answer] = await handle.settle([Ack(jobs[number].lease)], now=START + LEASE - MICROSECOND)
        return answer

    async def sweep(handle: Driver, number: int) -> Any:
        return {answer.id for answer in await handle.reclaim(ROUNDS, now=START + LEASE)}

    swept: set[str] = set()
    acked: set[str] = set()
    for job_id, (answer, reclaimed) in zip(ids, await duel(driver, ids, ack, sweep), strict=True):
        swept |= reclaimed
        if isinstance(answer, Settled):
            acked.add(job_id)
        else:
            assert isinstance(answer, JobNotInflight)

    assert acked | swept == set(ids)
    assert not acked & swept
    for job_id in ids:
        job = await get_one(driver, job_id, now=START + LEASE)
        assert (job.state, job.stalls) == (
            (JobState.COMPLETED, 0) if job_id in acked else (JobState.READY, 1)
        )


async def test_a_cancel_and_a_claim(driver: Driver) -> None:
    """P06: cancelled and never handed out, or handed out with the request."""
    jobs = [new_job(queue=f"round-{number}") for number in range(ROUNDS)]
    await driver.enqueue(jobs, now=START)
    ids = [job.id for job in jobs]

    async def cancel(handle: Driver, number: int) -> Any:
        [answer] = await handle.cancel([ids[number]], now=START)
        return answer.result

    async def take(handle: Driver, number: int) -> Any:
        return [job.id for job in await reserve(handle, queues=(f"round-{number}",))]

    for job_id, (cancelled, taken) in zip(ids, await duel(driver, ids, cancel, take), strict=True):
        job = await get_one(driver, job_id)
        if cancelled is CancelResult.CANCELLED:
            assert (taken, job.state) == ([], JobState.CANCELLED)
        else:
            assert (cancelled, taken) == (CancelResult.REQUESTED, [job_id])
            assert (job.state, job.cancel_requested) == (JobState.RUNNING, True)


async def test_an_extension_and_an_ack(driver: Driver) -> None:
    """P07: the ack always counts; the extension came before it or found nothing."""
    jobs = await many_running(driver)

    async def extend(handle: Driver, number: int) -> Any:
        [answer] = await handle.extend_leases([jobs[number].lease], HOUR, now=START)
        return answer

    async def ack(handle: Driver, number: int) -> Any:
        [answer] = await handle.settle([Ack(jobs[number].lease)], now=START)
        return answer

    for job, (extended, acked) in zip(
        jobs, await duel(driver, [job.id for job in jobs], extend, ack), strict=True
    ):
        assert isinstance(extended, Extended | JobNotInflight)
        assert isinstance(acked, Settled)
        expected = job.version + 1 + isinstance(extended, Extended)
        assert (await get_one(driver, job.id)).version == acked.version == expected


async def test_a_retry_and_a_cancel(driver: Driver) -> None:
    """P08 H06: cancelled in either order."""
    jobs = await many_running(driver)

    async def retry(handle: Driver, number: int) -> Any:
        [answer] = await handle.settle([Retry(jobs[number].lease, delay=MINUTE)], now=START)
        return answer

    async def cancel(handle: Driver, number: int) -> Any:
        [answer] = await handle.cancel([jobs[number].id], now=START)
        return answer.result

    for job, (retried, cancelled) in zip(
        jobs, await duel(driver, [job.id for job in jobs], retry, cancel), strict=True
    ):
        assert isinstance(retried, Settled)
        assert cancelled in (CancelResult.CANCELLED, CancelResult.REQUESTED)
        assert (retried.state is JobState.CANCELLED) == (cancelled is CancelResult.REQUESTED)
        assert (await get_one(driver, job.id)).state is JobState.CANCELLED


async def test_an_ack_and_an_enqueue_of_the_same_key(driver: Driver) -> None:
    """K03 I6b: the follower is never left blocked behind nothing."""
    keys = [b"%d" % number for number in range(ROUNDS)]
    await driver.enqueue([new_job(key=key) for key in keys], now=START)
    jobs = await reserve(driver, limit=ROUNDS, lease_for=HOUR)
    followers = [new_job(key=key) for key in keys]

    async def ack(handle: Driver, number: int) -> Any:
        [answer] = await handle.settle([Ack(jobs[number].lease)], now=START)
        return answer

    async def send(handle: Driver, number: int) -> Any:
        [answer] = await handle.enqueue([followers[number]], now=START)
        return answer.result

    for acked, sent in await duel(driver, [job.id for job in jobs], ack, send):
        assert isinstance(acked, Settled)
        assert sent in ("created", "blocked")
    assert (await driver.count(now=START))[QUEUE] == Counts(completed=ROUNDS, ready=ROUNDS)


async def test_a_requeue_and_a_delete(driver: Driver) -> None:
    """P10: gone for good, or waiting as a whole."""
    jobs = await many_running(driver)
    await driver.settle([Fail(job.lease, "broken") for job in jobs], now=START)
    ids = [job.id for job in jobs]

    async def requeue(handle: Driver, number: int) -> Any:
        [answer] = await handle.requeue([ids[number]], now=START)
        return not isinstance(answer, Exception)

    async def delete(handle: Driver, number: int) -> Any:
        [answer] = await handle.delete([ids[number]], now=START)
        return not isinstance(answer, Exception)

    for job_id, (requeued, deleted) in zip(ids, await duel(driver, ids, requeue, delete), strict=True):
        assert requeued != deleted
        [job] = await driver.get([job_id], now=START)
        assert (job is None) == deleted
        assert job is None or job.state is JobState.READY


async def test_settlements_of_the_same_jobs_in_opposite_order(driver: Driver) -> None:
    """P15: no deadlock, and every job is settled by one of the two."""
    jobs = await many_running(driver)

    async def settle(racer: Racer) -> list[bool]:
        items = [Ack(job.lease) for job in jobs]
        ordered = items[::-1] if racer.number % 2 else items
        answers = await racer.driver.settle(ordered, now=START)
        accepted = [not isinstance(answer, LeaseLost) for answer in answers]
        return accepted[::-1] if racer.number % 2 else accepted

    answers = await in_threads(driver, 4, settle)

    assert [sum(of_one_job) for of_one_job in zip(*answers, strict=True)] == [1] * ROUNDS


async def test_opening_and_migrating_at_once(driver: Driver) -> None:
    """P16: ten handles open, and what was pending is applied by one of them."""

    async def start(racer: Racer) -> list[str]:
        return await racer.driver.migrate()

    applied = [*chain(*await in_threads(driver, 10, start))]

    assert len(set(applied)) == len(applied)
    assert await driver.pending_migrations() == []


# ------------------------------------------------------------------ processes


async def test_processes_share_one_store(driver: Driver, request: pytest.FixtureRequest) -> None:
    """P13 M11: one job per idempotency key whichever was first, none done twice, none lost."""
    shares = [
        (
            [new_job(idempotency_key=b"%d" % key) for key in range(40)],
            claim(limit=3, worker_id=f"process-{n}"),
        )
        for n in range(3)
    ]

    answers = await in_processes(request, driver, take_part, [(*share, START) for share in shares])

    for of_one_key in zip(*(results for results, _ in answers), strict=True):
        assert sorted(of_one_key) == ["created", "duplicate", "duplicate"]
    done = [*chain(*(mine for _, mine in answers))]
    assert len(set(done)) == len(done) == 40
    assert (await driver.count(now=START))[QUEUE] == Counts(completed=40)
