"""Races of cancel, delete, requeue and heartbeats with calls that move the same jobs.

A store may look up a job, wait for a lock, and then find that the job has moved. Every verb must still find
a job that exists. The cases run at a given instant and by the clock of the store itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Extended, Requeued, Settled
from taskharbor.errors import JobNotFound, NotAllowedInState
from taskharbor.model.job import NewJob, Progress
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Release, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import HOUR, LEASE, MINUTE, START, claim, new_job, new_jobs
from taskharbor.testing.conformance.parallel import Racer, in_threads

ROUNDS = 5
BACKLOG = 200
"""Jobs that fall due together: the more there are, the longer their promotion takes."""

both_clocks = pytest.mark.parametrize("given", [START, None], ids=["a given instant", "the store's clock"])


def shifted(given: datetime | None, span: timedelta) -> datetime | None:
    """The instant `span` later; the clock of the store goes by itself."""
    return None if given is None else given + span


def due_soon(given: datetime | None, queue: str) -> list[NewJob]:
    """Jobs that are due at `shifted(given, MINUTE)`, or by the clock of the store in a moment."""
    delay = timedelta(milliseconds=5) if given is None else MINUTE
    return [new_job(queue=queue, delay=delay) for _ in range(BACKLOG)]


async def race(driver: Driver, *acts: Callable[[Driver, int], Awaitable[Any]]) -> list[list[Any]]:
    """In every round all act at once, each in a thread and with a handle of its own; the answers of each."""

    async def live(racer: Racer) -> list[Any]:
        answers = []
        for number in range(ROUNDS):
            racer.meet()
            answers.append(await acts[racer.number](racer.driver, number))
        return answers

    return await in_threads(driver, len(acts), live)


@both_clocks
async def test_a_cancel_finds_jobs_that_fall_due_this_moment(driver: Driver, given: datetime | None) -> None:
    """P18: cancelled and never handed out, or handed out with the request; never unknown."""
    rounds = [due_soon(given, f"round-{number}") for number in range(ROUNDS)]
    for jobs in rounds:
        await driver.enqueue(jobs, now=given)
    then = shifted(given, MINUTE)

    async def take(handle: Driver, number: int) -> set[str]:
        taken: set[str] = set()
        for _ in range(5):
            wanted = claim(queues=(f"round-{number}",), limit=2, lease_for=HOUR)
            taken |= {job.id for job in (await handle.reserve(wanted, now=then)).jobs}
        return taken

    async def promote(handle: Driver, number: int) -> int:
        return sum([(await handle.promote(1000, now=then)).count for _ in range(5)])

    async def cancel(handle: Driver, number: int) -> list[CancelResult]:
        answers = [(await handle.cancel([job.id], now=then))[0] for job in rounds[number][:8]]
        answers += await handle.cancel([job.id for job in rounds[number][8:16]], now=then)
        return [answer.result for answer in answers]

    taken, _, cancelled = await race(driver, take, promote, cancel)

    for jobs, handed_out, results in zip(rounds, taken, cancelled, strict=True):
        stored = await driver.get([job.id for job in jobs[:16]], now=then)
        for record, result in zip(stored, results, strict=True):
            assert record is not None
            expected = (
                (CancelResult.REQUESTED, JobState.RUNNING)
                if record.id in handed_out
                else (CancelResult.CANCELLED, JobState.CANCELLED)
            )
            assert (result, record.state) == expected


@both_clocks
async def test_a_delete_finds_jobs_that_fall_due_this_moment(driver: Driver, given: datetime | None) -> None:
    """P19: it refuses to delete what waits, and does not deny that it is there."""
    rounds = [due_soon(given, f"round-{number}") for number in range(ROUNDS)]
    for jobs in rounds:
        await driver.enqueue(jobs, now=given)
    then = shifted(given, MINUTE)

    async def promote(handle: Driver, number: int) -> int:
        wanted = claim(queues=(f"round-{number}",), lease_for=HOUR)
        return sum([len((await handle.reserve(wanted, now=then)).jobs) for _ in range(5)])

    async def delete(handle: Driver, number: int) -> list[type]:
        one_by_one = [(await handle.delete([job.id], now=then))[0] for job in rounds[number][:8]]
        together = await handle.delete([job.id for job in rounds[number][8:16]], now=then)
        return [type(answer) for answer in (*one_by_one, *together)]

    _, answers = await race(driver, promote, delete)

    assert answers == [[NotAllowedInState] * 16] * ROUNDS


@both_clocks
async def test_cancels_in_opposite_order_and_claims(driver: Driver, given: datetime | None) -> None:
    """P06 P15: no call waits for ever, and all get the same answer."""
    rounds = [new_jobs(12, queue=f"round-{number}") for number in range(ROUNDS)]
    for jobs in rounds:
        await driver.enqueue(jobs, now=given)

    async def take(handle: Driver, number: int) -> set[str]:
        wanted = claim(queues=(f"round-{number}",), limit=3, lease_for=HOUR)
        return {job.id for _ in range(2) for job in (await handle.reserve(wanted, now=given)).jobs}

    async def forwards(handle: Driver, number: int) -> list[CancelResult]:
        ids = [job.id for job in rounds[number]]
        return [answer.result for answer in await handle.cancel(ids, now=given)]

    async def backwards(handle: Driver, number: int) -> list[CancelResult]:
        ids = [job.id for job in rounds[number]][::-1]
        return [answer.result for answer in await handle.cancel(ids, now=given)][::-1]

    taken, first, second = await race(driver, take, forwards, backwards)

    for number, jobs in enumerate(rounds):
        answered = zip(jobs, first[number], second[number], strict=True)
        for job, *results in answered:
            allowed = (
                {CancelResult.REQUESTED}
                if job.id in taken[number]
                else {CancelResult.CANCELLED, CancelResult.ALREADY_OVER}
            )
            assert set(results) <= allowed
            assert results.count(CancelResult.ALREADY_OVER) <= 1


@both_clocks
async def test_a_requeue_and_a_prune(driver: Driver, given: datetime | None) -> None:
    """P20: waiting as a whole, or gone for good; a caller may rely on either answer."""
    keep = timedelta(milliseconds=1) if given is None else MINUTE
    retention = Retention(completed=keep, failed=keep, cancelled=keep)
    rounds = []
    for number in range(ROUNDS):
        queue = f"round-{number}"
        await driver.configure_queue(QueueSettings(queue=queue, retention=retention), now=given)
        await driver.enqueue(new_jobs(30, queue=queue), now=given)
        jobs = (await driver.reserve(claim(queues=(queue,), limit=30, lease_for=HOUR), now=given)).jobs
        ends: list[Settlement] = [Ack(job.lease) for job in jobs[:15]]
        await driver.settle([*ends, *[Fail(job.lease, "broken") for job in jobs[15:]]], now=given)
        rounds.append([job.id for job in jobs])
    then = shifted(given, MINUTE)

    async def prune(handle: Driver, number: int) -> int:
        return sum([await handle.prune(11, now=then) for _ in range(4)])

    async def requeue(handle: Driver, number: int) -> list[Any]:
        answers = [(await handle.requeue([job_id], now=then))[0] for job_id in rounds[number][::3]]
        return [*answers, *await handle.requeue(rounds[number][1::3], now=then)]

    pruned, requeued = await race(driver, prune, requeue)

    gone = 0
    for ids, answers in zip(rounds, requeued, strict=True):
        stored = await driver.get(ids, now=then)
        gone += stored.count(None)
        for record, answer in zip([*stored[::3], *stored[1::3]], answers, strict=True):
            if record is None:
                assert isinstance(answer, JobNotFound)
            else:
                assert isinstance(answer, Requeued)
                assert record.state is JobState.READY
    assert gone == sum(pruned)


@both_clocks
async def test_a_heartbeat_and_a_cancel(driver: Driver, given: datetime | None) -> None:
    """P07: a lease that holds is extended, whatever else is written about its job."""
    await driver.enqueue(new_jobs(20 * ROUNDS), now=given)
    jobs = (await driver.reserve(claim(limit=20 * ROUNDS, lease_for=HOUR), now=given)).jobs
    ids = [job.id for job in jobs]

    async def extend(handle: Driver, number: int) -> list[Any]:
        answers: list[Any] = []
        for beat in range(6):
            progress = {job_id: Progress(0.1 * beat) for job_id in ids[number * 20 : number * 20 + beat]}
            leases = [job.lease for job in jobs]
            answers += await handle.extend_leases(leases, HOUR, progress=progress, now=given)
        return [type(answer) for answer in answers]

    async def cancel(handle: Driver, number: int) -> list[CancelResult]:
        mine = ids[number * 20 : number * 20 + 20]
        answers = [(await handle.cancel([job_id], now=given))[0] for job_id in mine[:10]]
        answers += await handle.cancel(mine[:9:-1], now=given)
        return [answer.result for answer in answers]

    extended, cancelled = await race(driver, extend, cancel)

    assert {kind for answers in extended for kind in answers} == {Extended}
    assert {result for results in cancelled for result in results} == {CancelResult.REQUESTED}
    last = await driver.extend_leases([job.lease for job in jobs], HOUR, now=given)
    assert all(isinstance(answer, Extended) and answer.cancel_requested for answer in last)


async def test_a_cancel_and_a_sweep_of_the_same_leases(driver: Driver) -> None:
    """P08: cancelled in the end in every order; no sweep and no cancel loses sight of a job."""
    ids: list[list[str]] = []
    for number in range(ROUNDS):
        await driver.enqueue(new_jobs(20, queue=f"round-{number}"), now=START)
        wanted = claim(queues=(f"round-{number}",), limit=20)
        ids.append([job.id for job in (await driver.reserve(wanted, now=START)).jobs])
    then = START + LEASE

    async def sweep(handle: Driver, number: int) -> int:
        return sum([len(await handle.reclaim(7, now=then)) for _ in range(3)])

    async def take(handle: Driver, number: int) -> set[str]:
        wanted = claim(queues=(f"round-{number}",), limit=4)
        return {job.id for job in (await handle.reserve(wanted, now=then)).jobs}

    async def cancel(handle: Driver, number: int) -> list[CancelResult]:
        one_by_one = [(await handle.cancel([job_id], now=then))[0] for job_id in ids[number][:10]]
        together = await handle.cancel(ids[number][:9:-1], now=then)
        return [answer.result for answer in (*one_by_one, *together)]

    _, taken, cancelled = await race(driver, sweep, take, cancel)
    await driver.reclaim(1000, now=then)

    assert CancelResult.NOT_FOUND not in {result for results in cancelled for result in results}
    for number in range(ROUNDS):
        for record in await driver.get(ids[number], now=then):
            assert record is not None
            state = JobState.RUNNING if record.id in taken[number] else JobState.CANCELLED
            assert record.state is state
            assert record.cancel_requested or state is JobState.CANCELLED


@both_clocks
async def test_the_waiting_job_of_a_key_is_cancelled_once(driver: Driver, given: datetime | None) -> None:
    """P21: an answer "cancelled" is true, while others enqueue it and take it."""
    keys = [b"key-%d" % number for number in range(ROUNDS)]
    ids = [[new_job().id for _ in range(12)] for _ in range(ROUNDS)]

    async def send(handle: Driver, number: int) -> int:
        for job_id in ids[number]:
            await handle.enqueue([new_job(id=job_id, key=keys[number])], now=given)
        return 0

    async def take(handle: Driver, number: int) -> int:
        done = 0
        for _ in range(8):
            for job in (await handle.reserve(claim(lease_for=HOUR), now=given)).jobs:
                done += 1
                await handle.settle([Ack(job.lease)], now=given)
        return done

    async def cancel(handle: Driver, number: int) -> int:
        return sum([await handle.cancel_waiting("kit", keys[number], now=given) for _ in range(10)])

    _, done, cancelled = await race(driver, send, take, cancel)

    counts = (await driver.count(now=given))["kit"]
    assert (counts.cancelled, counts.completed) == (sum(cancelled), sum(done))
    assert (counts.blocked, counts.running) == (0, 0)


async def test_a_start_lies_behind_what_made_it_possible(driver: Driver) -> None:
    """P22: by the stamps of the store, the runs of a job never overlap, whichever waited for the other."""
    jobs = new_jobs(12)
    made = {answer.id: answer.at for answer in await driver.enqueue(jobs[:6])}

    async def live(racer: Racer) -> list[tuple[str, int, datetime, datetime]]:
        if racer.number == 0:
            made.update({answer.id: answer.at for answer in await racer.driver.enqueue(jobs[6:])})
        runs = []
        for _ in range(25):
            taken = (
                await racer.driver.reserve(claim(limit=3, lease_for=HOUR, worker_id=f"w{racer.number}"))
            ).jobs
            beats = await racer.driver.extend_leases([job.lease for job in taken], HOUR)
            answers = await racer.driver.settle([Release(job.lease) for job in taken])
            for job, beat, answer in zip(taken, beats, answers, strict=True):
                assert isinstance(beat, Extended)
                assert isinstance(answer, Settled)
                assert job.started_at is not None
                assert job.started_at <= beat.at <= answer.at
                runs.append((job.id, job.fence, job.started_at, answer.at))
        return runs

    runs = sorted(run for part in await in_threads(driver, 4, live) for run in part)

    ended = dict(made)
    for job_id, _, started_at, ended_at in runs:
        assert started_at >= ended[job_id]
        ended[job_id] = ended_at
