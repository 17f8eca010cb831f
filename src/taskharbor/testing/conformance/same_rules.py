"""One rule, every language: each record equals what the Python function makes of it, in every field.

A store may repeat a function of `model/transitions.py` in SQL or Lua for speed. These cases compute the
record with the function and compare it with the stored one. Plain jobs go the fast ways of a store (alone and
in batches, claimed and acked together), the others the careful ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Requeued, Settled, Speculated
from taskharbor.errors import LeaseLost, RateLimited
from taskharbor.model.clock import micros
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress, Update
from taskharbor.model.limits import RateLimit, Window
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState
from taskharbor.model.transitions import (
    absorb,
    cancelled,
    claimed,
    dropped,
    extended,
    lease_error,
    merged,
    new_record,
    requeued,
    settled,
    shown,
    speculative_copy,
    stalled,
    unblocked,
    won,
)
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    WORKER,
    WRONG_TOKEN,
    claim,
    get_one,
    in_state,
    new_id,
    new_job,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
)

FULL: dict[str, Any] = {
    "payload": b"\x00\xff" * 40,
    "headers": {"a": "1", "ü": "2"},
    "priority": 7,
    "timeout": MINUTE,
    "max_attempts": 4,
    "max_stalls": 3,
    "min_backoff": SECOND,
    "max_backoff": HOUR,
}


async def _reads(driver: Driver, expected: JobRecord, now: datetime) -> None:
    """The stored job is this record, as callers read it."""
    assert await get_one(driver, expected.id, now=now) == shown(expected, now)


async def _each_way(driver: Driver, jobs: Sequence[NewJob]) -> None:
    """Enqueue the first alone and the others together."""
    await driver.enqueue(jobs[:1], now=START)
    if jobs[1:]:
        await driver.enqueue(jobs[1:], now=START)


# ------------------------------------------------------------------ in


async def test_enqueued_jobs_are_what_new_record_makes(driver: Driver) -> None:
    """Y01: alone and in batches, plain and with everything a job can have."""
    for name, make in _NEW_JOBS.items():
        jobs = [make() for _ in range(3)]
        await _each_way(driver, jobs)
        with row(name):
            for job in jobs:
                seq = (await get_one(driver, job.id)).seq
                await _reads(driver, new_record(job, seq, START), START)


async def test_a_job_of_a_waiting_key_is_taken_in_as_absorb_says(driver: Driver) -> None:
    """Y02: ready, scheduled and blocked ones, by every rule for run_at."""
    for state in (JobState.READY, JobState.SCHEDULED, JobState.BLOCKED):
        for rule in (True, False, "if_later", "if_earlier"):
            with row((state, rule)):
                there = await in_state(driver, state, key=new_id().encode(), queue=new_id())
                update = Update(data=rule is not False, retry=rule is True, run_at=rule)
                again = new_job(
                    queue=there.queue, key=there.key, run_at=START + MINUTE, update=update, **FULL
                )
                await driver.enqueue([again], now=START + SECOND)

                await _reads(driver, absorb(there, again, START + SECOND), START + SECOND)


async def test_enqueue_waits_as_long_as_the_window_says(driver: Driver) -> None:
    """Y03: at the first instant that `Window` has room for them, not a microsecond earlier."""
    rate, window = RateLimit(3, MINUTE), Window()
    await driver.configure_queue(QueueSettings(queue=QUEUE, enqueue_rate=rate), now=START)
    for seconds, count in ((0, 2), (20, 1), (30, 2), (61, 2), (62, 3), (81, 1)):
        now = START + seconds * SECOND
        wait = window.wait_us(rate, count, micros(now))
        with row((seconds, count)):
            try:
                await driver.enqueue([new_job() for _ in range(count)], now=now)
                waited = 0
            except RateLimited as error:
                waited = error.retry_after // MICROSECOND
            assert waited == wait
        if not wait:
            window.spend(count, micros(now))


# ------------------------------------------------------------------ attempts


async def test_claimed_jobs_are_what_claimed_makes(driver: Driver) -> None:
    """Y04: the first start, alone and in a batch, and the next one of a job with a past."""
    jobs = [new_job(), new_job(), new_job(**FULL), new_job(key=b"k")]
    await _each_way(driver, jobs)
    now = START + SECOND
    before = {job.id: await get_one(driver, job.id) for job in jobs}
    for limit in (1, 3):
        for job in await reserve(driver, limit=limit, now=now):
            assert job.token is not None
            expected = claimed(before[job.id], job.token, WORKER, now + LEASE, now)
            assert job == expected
            await _reads(driver, expected, now)
    job = await _with_a_past(driver)
    before_again = await get_one(driver, job.id, now=START + MINUTE)
    again = await reserve_one(driver, queues=(job.queue,), worker_id=OTHER_WORKER, now=START + MINUTE)
    assert again.token is not None
    assert again == claimed(before_again, again.token, OTHER_WORKER, START + MINUTE + LEASE, START + MINUTE)


async def test_an_extended_lease_is_what_extended_makes(driver: Driver) -> None:
    """Y05: with and without progress, after a cancel was requested, and of a second run."""
    jobs = [await running(driver), await running(driver, **FULL), await _with_a_past(driver, runs=True)]
    await driver.cancel([jobs[1].id], now=START)
    jobs[1] = cancelled(jobs[1], START)
    progress = {jobs[0].id: Progress(0.25, "a quarter")}
    now = START + SECOND
    await driver.extend_leases([job.lease for job in jobs], MINUTE, progress=progress, now=now)

    for job in jobs:
        await _reads(driver, extended(job, MINUTE, now, progress.get(job.id)), now)


async def test_a_settled_attempt_is_what_settled_makes(driver: Driver) -> None:
    """Y06: every settlement, of a first and of a later run, alone and together, with and without a cancel."""
    now = START + SECOND
    for name, settlement in _SETTLEMENTS.items():
        for has_past in (False, True):
            for is_cancelled in (False, True):
                with row((name, has_past, is_cancelled)):
                    jobs = await _running(driver, 3, has_past=has_past, **FULL)
                    if is_cancelled:
                        await driver.cancel([job.id for job in jobs], now=START)
                        jobs = [cancelled(job, START) for job in jobs]
                    ends = [settlement(job.lease) for job in jobs]
                    await driver.settle(ends[:1], now=now)
                    await driver.exchange(ends[1:], claim(queues=(new_id(),)), now=now)
                    for job, end in zip(jobs, ends, strict=True):
                        await _reads(driver, settled(job, end, now), now)


async def test_jobs_with_more_to_them_are_what_settled_makes(driver: Driver) -> None:
    """Y12: every settlement of a job with a key, with an idempotency key, with progress, and in a lane."""
    now = START + SECOND
    for name, settlement in _SETTLEMENTS.items():
        for what, options in _MORE.items():
            for has_past in (False, True):
                with row((name, what, has_past)):
                    [job] = await _running(driver, 1, has_past=has_past, **options())
                    if what == "progress":
                        progress = {job.id: Progress(0.5, "half")}
                        await driver.extend_leases([job.lease], LEASE, progress=progress, now=START)
                        job = extended(job, LEASE, START, progress[job.id])
                    end = settlement(job.lease)
                    await settle_one(driver, end, now=now)
                    await _reads(driver, settled(job, end, now), now)


async def test_the_history_is_what_settled_makes(driver: Driver) -> None:
    """Y13: run after run, beyond the ten that are kept, ended in every way that lets a job run again."""
    job, now = await running(driver, queue=new_id(), max_stalls=0), START
    ends = [end for name, end in _SETTLEMENTS.items() if name in _AGAIN]
    for number in range(3 * len(ends)):
        now += HOUR
        job = extended(job, 2 * HOUR, now - HOUR)
        await driver.extend_leases([job.lease], 2 * HOUR, now=now - HOUR)
        end = ends[number % len(ends)](job.lease)
        await settle_one(driver, end, now=now)
        after = settled(job, end, now)
        with row((number, type(end))):
            await _reads(driver, after, now)
        now = max(now, after.run_at or now)
        [job] = await reserve(driver, queues=(job.queue,), worker_id=f"worker {'x' * number}", now=now)
        assert job.token is not None
        assert job == claimed(shown(after, now), job.token, job.worker_id or "", now + LEASE, now)
    await settle_one(driver, Ack(job.lease, result=b"at last"), now=now)
    await _reads(driver, settled(job, Ack(job.lease, result=b"at last"), now), now)


async def test_settlements_of_one_call_do_not_disturb_each_other(driver: Driver) -> None:
    """Y14: every settlement, of first and later runs, in one call; one of them is refused."""
    queue, now = new_id(), START + SECOND
    jobs = [
        *await _running(driver, len(_SETTLEMENTS), has_past=True, queue=queue),
        *await _running(driver, len(_SETTLEMENTS), has_past=False, queue=queue),
    ]
    ends = [end(job.lease) for job, end in zip(jobs, [*_SETTLEMENTS.values()] * 2, strict=True)]
    wrong = await running(driver, queue=queue)
    refused = Retry(Lease(wrong.id, WRONG_TOKEN, queue=queue), reason="not its own")
    exchanged = await driver.exchange([refused, *ends], claim(queues=(new_id(),)), now=now)

    assert isinstance(exchanged.settled[0], LeaseLost)
    await _reads(driver, wrong, now)
    for job, end, answer in zip(jobs, ends, exchanged.settled[1:], strict=True):
        after = settled(job, end, now)
        with row(type(end)):
            assert isinstance(answer, Settled)
            assert (answer.id, answer.state, answer.version) == (job.id, after.state, after.version)
            await _reads(driver, after, now)


async def test_an_expired_lease_ends_as_stalled_says(driver: Driver) -> None:
    """Y07: found by the sweep or by a claim; with stalls left, with none, and with a cancel requested."""
    now = START + LEASE
    for is_swept in (True, False):
        for name in ("goes on", "last", "cancelled"):
            with row((is_swept, name)):
                job = await running(driver, queue=new_id(), max_stalls=1 if name == "last" else 0)
                if name == "cancelled":
                    await driver.cancel([job.id], now=START)
                    job = cancelled(job, START)
                if is_swept:
                    await driver.reclaim(limit=10, now=now)
                else:
                    await reserve(driver, queues=(job.queue,), lanes=("none",), now=now)
                await _reads(driver, stalled(job, "", now), now)


async def test_a_refused_lease_is_refused_as_lease_error_says(driver: Driver) -> None:
    """Y08: extend and settle give the same reason as the function, for every way to be wrong."""
    job, over = await running(driver), await in_state(driver, JobState.COMPLETED)
    expired = await running(driver, lease_for=SECOND, worker_id=OTHER_WORKER)
    now = START + SECOND
    for name, record, lease in (
        ("wrong token", job, Lease(job.id, WRONG_TOKEN)),
        ("another worker", job, Lease(job.id, job.lease.token, worker_id="somebody else")),
        ("expired", expired, expired.lease),
        ("expired, and wrong", expired, Lease(expired.id, WRONG_TOKEN)),
        ("over", over, Lease(over.id, WRONG_TOKEN)),
        ("unknown", None, Lease(new_id(), WRONG_TOKEN)),
    ):
        with row(name):
            reason = lease_error(record, lease, now)
            for [answer] in (
                await driver.extend_leases([lease], LEASE, now=now),
                await driver.settle([Ack(lease)], now=now),
                await driver.settle([Release(lease)], now=now),
                (await driver.exchange([Ack(lease)], claim(queues=(new_id(),)), now=now)).settled,
            ):
                assert isinstance(answer, LeaseLost)
                assert type(answer) is type(reason)


# ------------------------------------------------------------------ keys


async def test_a_blocked_job_goes_on_as_merged_and_unblocked_say(driver: Driver) -> None:
    """Y09: merged into one that waits again, released by one that is over, swept or settled."""
    now = START + SECOND
    for name, settlement in _SETTLEMENTS.items():
        with row(name):
            queue = new_id()
            job = await running(driver, key=b"k", queue=queue)
            await driver.enqueue([waiting := new_job(key=b"k", queue=queue, **FULL)], now=START)
            blocked = await get_one(driver, waiting.id)
            await settle_one(driver, settlement(job.lease), now=now)

            after = settled(job, settlement(job.lease), now)
            if after.state.is_terminal:
                await _reads(driver, after, now)
                await _reads(driver, unblocked(blocked, now), now)
            else:
                await _reads(driver, merged(after, blocked, now), now)
                assert (await get_one(driver, blocked.id, now=now)).id == job.id


# ------------------------------------------------------------------ control and copies


async def test_cancelled_and_requeued_jobs_are_what_the_functions_make(driver: Driver) -> None:
    """Y10: from every state, with and without an edit."""
    now = START + SECOND
    for state in (JobState.READY, JobState.SCHEDULED, JobState.BLOCKED, JobState.RUNNING):
        with row(state):
            job = await in_state(driver, state, queue=new_id())
            [answer] = await driver.cancel([job.id], now=now)
            assert answer.result in (CancelResult.CANCELLED, CancelResult.REQUESTED)
            await _reads(driver, cancelled(job, now), now)
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
        for edit in (NO_EDIT, Edit(payload=b"new", priority=3, requires="any")):
            for reset in (True, False):
                with row((state, edit, reset)):
                    job = await in_state(driver, state, **FULL)
                    [again] = await driver.requeue(
                        [job.id], edit=edit, reset_counts=reset, run_at=START + HOUR, now=now
                    )
                    assert isinstance(again, Requeued)
                    await _reads(driver, requeued(job, edit, START + HOUR, now, reset_counts=reset), now)


async def test_copies_are_what_the_functions_make(driver: Driver) -> None:
    """Y11: a copy, the original that it wins, and a copy that is dropped."""
    now = START + SECOND
    head_start = HeadStart(slower=("slow",), span=SECOND)
    originals, copies = [], []
    for _ in range(2):
        original = await running(driver, lease_for=HOUR, **FULL)
        answer = await driver.speculate(original.id, head_start=head_start, now=now)
        assert isinstance(answer, Speculated)
        copy = speculative_copy(original, (await get_one(driver, answer.copy_id)).seq, now, head_start)
        await _reads(driver, copy, now)
        originals.append(original)
        copies.append(copy)

    [taken] = [
        job for job in await reserve(driver, worker_id=OTHER_WORKER, now=now) if job.id == copies[0].id
    ]
    await settle_one(driver, Ack(taken.lease, result=b"first"), now=now)
    await _reads(driver, won(originals[0], b"first", now), now)
    await settle_one(driver, Fail(originals[1].lease, "broken"), now=now)
    await _reads(driver, dropped(copies[1], now), now)


# ------------------------------------------------------------------ what the cases are made of

_NEW_JOBS: dict[str, Callable[[], NewJob]] = {
    "plain": new_job,
    "full": lambda: new_job(**FULL),
    "delayed": lambda: new_job(delay=MINUTE),
    "later": lambda: new_job(run_at=START + HOUR),
    "due at this instant": lambda: new_job(run_at=START),
    "overdue": lambda: new_job(run_at=START - HOUR, **FULL),
    "keyed": lambda: new_job(key=new_id().encode()),
    "idempotent": lambda: new_job(idempotency_key=new_id().encode(), delay=SECOND),
}

_SETTLEMENTS: dict[str, Callable[[Lease], Settlement]] = {
    "Ack": Ack,
    "Ack with a result": lambda lease: Ack(lease, result=b"\x00done"),
    "Retry": lambda lease: Retry(lease, reason="later", delay=MINUTE),
    "Retry at once": lambda lease: Retry(
        lease, reason="now", trace="in line 1", failure_kind="timeout", error_class="app.Late"
    ),
    "Retry as given": lambda lease: Retry(
        lease, run_at=START + HOUR, reason="as \x00 given", attempts=7, failed_at=START - HOUR
    ),
    "Fail": lambda lease: Fail(lease, "broken", trace="in line 2", error_class="app.Broken"),
    "Stalled": lambda lease: Stalled(lease, "the process died"),
    "Cancelled": lambda lease: Cancelled(lease, "not wanted"),
    "Release": Release,
    "Release for later": lambda lease: Release(lease, delay=HOUR),
}


_AGAIN = ("Retry", "Retry at once", "Retry as given", "Stalled", "Release", "Release for later")
"""Those that let a job run again, while it has stalls left."""

_MORE: dict[str, Callable[[], dict[str, Any]]] = {
    "a key": lambda: {"key": new_id().encode()},
    "an idempotency key": lambda: {"idempotency_key": new_id().encode()},
    "progress": dict,
    "a lane": lambda: {"requires": "gpu", "priority": -3, "max_stalls": 1000, "max_attempts": 70_000},
    "a run_at": lambda: {"run_at": START - MINUTE},
}


async def _with_a_past(driver: Driver, *, runs: bool = False) -> JobRecord:
    """A job that was retried once, in a queue of its own; `runs`: it runs again, with its token."""
    job = await running(driver, queue=new_id(), worker_id=OTHER_WORKER, **FULL)
    await settle_one(driver, Retry(job.lease, reason="again", trace="line 3"), now=START)
    return await reserve_one(driver, queues=(job.queue,)) if runs else job


async def _running(driver: Driver, count: int, *, has_past: bool, **options: Any) -> list[JobRecord]:
    """Jobs of one claim, with their tokens; `has_past`: each was retried once."""
    queue = options.setdefault("queue", new_id())
    await driver.enqueue([new_job(**options) for _ in range(count)], now=START)
    asked: dict[str, Any] = {"queues": (queue,), "limit": count, "lanes": ("any", "gpu")}
    jobs = await reserve(driver, **asked)
    if has_past:
        await driver.settle([Retry(job.lease, reason="again") for job in jobs], now=START)
        jobs = await reserve(driver, **asked)
    return jobs
