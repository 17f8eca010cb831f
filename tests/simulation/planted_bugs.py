"""Thirty-six bugs that queues have had, planted into the memory store or the worker, one at a time.

Each names the promises that must catch it. `plant` gets pytest's monkeypatch; `world` says what kind
of world the bug lives in, so that few seeds are enough.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from msgspec.structs import replace

from taskharbor.drivers import lifecycle
from taskharbor.drivers.memory import MemoryDriver, records, store
from taskharbor.drivers.messages import CancelAnswer, CancelResult, Claimed, Exchanged, given_up_in
from taskharbor.errors import DriverUnavailable, LeaseMismatch
from taskharbor.model import limits, transitions
from taskharbor.model.clock import EPOCH
from taskharbor.model.job import FAILURE_TYPE, FailureKind
from taskharbor.model.outcome import Failed
from taskharbor.model.queue import EVERY_QUEUE, fail_queue_of
from taskharbor.model.settlement import Fail, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.simulator.world import World
from taskharbor.worker import cancellation, run, settling, slots

CALLS = frozenset({"delay", "late", "lost_reply", "lost_request", "duplicate"})
ROUGH = CALLS | {"freeze", "kill"}


@dataclass(frozen=True, kw_only=True)
class Bug:
    name: str
    promises: set[str]
    plant: Callable[[Any], None]
    world: dict[str, Any] = field(default_factory=dict)
    make: Callable[..., Any] | None = None
    is_stepwise: bool = False
    prepare: Callable[[World], None] | None = None


def rough(*features: str, **more: Any) -> dict[str, Any]:
    """A world with short leases where calls get lost and processes stop."""
    return {
        "faults": ROUGH,
        "fault_rate": 0.1,
        "lease_seconds": 1.5,
        "features": frozenset(features),
        **more,
    }


def calm(*features: str, **more: Any) -> dict[str, Any]:
    return {"faults": frozenset(), "features": frozenset(features), **more}


# ------------------------------------------------------------------ who may write

_held = transitions.held


def _any_token(job, lease, now):
    if job is None or job.token is None:
        return _held(job, lease, now)
    return _held(job, replace(lease, token=job.token, worker_id=None), now)


def _same_name(job, lease, now):
    name = (lease.worker_id or "").rsplit("-", 1)[0]
    if job is None or job.token is None or not (job.worker_id or "").startswith(name):
        return _held(job, lease, now)
    return _any_token(job, lease, now)


def _for_ever(job, lease, now):
    return _held(job, lease, EPOCH)


def _one_too_long(job, lease, now):
    return _held(job, lease, now - timedelta(microseconds=1))


def _only_in(verb, check):
    def plant(patch):
        sound = getattr(lifecycle, verb)

        def broken(*arguments):
            with patch.context() as inside:
                inside.setattr(lifecycle, "held", check)
                return sound(*arguments)

        patch.setattr(lifecycle, verb, broken)

    return plant


def _in_ack(check):
    return _only_in("settle_one", check)


def _in_extend(check):
    return _only_in("extend_one", check)


def _everywhere(check):
    return lambda patch: patch.setattr(lifecycle, "held", check)


def _delete_on_mismatch(patch):
    settle = lifecycle.settle_one

    def broken(jobs, settlement):
        answer = settle(jobs, settlement)
        if isinstance(answer, LeaseMismatch):
            jobs.drop(jobs.get(settlement.lease.job_id))
        return answer

    patch.setattr(lifecycle, "settle_one", broken)


def _fence_restarts(patch):
    claimed, requeued = transitions.claimed, transitions.requeued
    patch.setattr(
        store,
        "claimed",
        lambda job, token, worker, until, now: replace(
            claimed(job, token, worker, until, now), fence=job.fence + 1
        ),
    )
    patch.setattr(lifecycle, "requeued", lambda *args, **more: replace(requeued(*args, **more), fence=0))


# ------------------------------------------------------------------ when a lease is over


def _reclaims_later(patch):
    def expired(leases, now):
        return (entry for entry in leases if entry[0] < now)

    patch.setattr(store, "_expired", expired)


def _rounded_index(patch):
    """Leases end with their millisecond, in the index and for the sweep that goes by it."""
    timed, reclaim_one = records.Records._timed, lifecycle.reclaim_one

    def rounded(job):
        until = job.lease_expires_at
        if until is None:
            return job
        return replace(job, lease_expires_at=until.replace(microsecond=until.microsecond // 1000 * 1000))

    def by_the_index(jobs, job_id):
        job = jobs.get(job_id)
        if job is not None:
            jobs.put(rounded(job))
        return reclaim_one(jobs, job_id)

    patch.setattr(records.Records, "_timed", lambda self, job: timed(self, rounded(job)))
    patch.setattr(lifecycle, "reclaim_one", by_the_index)


def _one_page(patch):
    def reclaim(self, queues, limit):
        page = sorted(entry[1:] for queue in queues for entry in self.leases[queue])[: min(limit, 5)]
        healthy = {job_id for _, job_id in page}
        with_all = self.leases
        for queue in queues:
            for entry in list(with_all[queue]):
                if entry[2] not in healthy:
                    with_all[queue].remove(entry)
                    hidden.append((queue, entry))
        answers = original(self, queues, limit)
        while hidden:
            queue, entry = hidden.pop()
            with_all[queue].add(entry)
        return answers

    hidden: list[Any] = []
    original = store.Store.reclaim
    patch.setattr(store.Store, "reclaim", reclaim)


def _revived_after_its_place_was_given_away(patch):
    """Claims count the expired lease out, leave it to the sweeper, and an extension brings it back."""
    reclaim = store.Store.reclaim

    def only_sweeps(self, queues, limit):
        return [] if limit == 100 else reclaim(self, queues, limit)

    patch.setattr(store.Store, "reclaim", only_sweeps)
    _in_extend(_for_ever)(patch)


def _sweep_of_finished(patch):
    reclaim = store.Store.reclaim

    def broken(self, queues, limit):
        for (queue, state), finished in list(self.finished.items()):
            if queue in queues and state is JobState.COMPLETED and limit != 100:
                for at, _, job_id in list(finished)[-1:]:
                    if self.now - at < timedelta(seconds=3):
                        job = self.jobs[job_id]
                        self.put(
                            replace(job, state=JobState.READY, finished_at=None, version=job.version + 1)
                        )
        return reclaim(self, queues, limit)

    patch.setattr(store.Store, "reclaim", broken)


# ------------------------------------------------------------------ counting


def _stalls(by: int):
    stalled = transitions.stalled

    def broken(job, reason, now, settled_token=None):
        return stalled(replace(job, stalls=job.stalls + by), reason, now, settled_token)

    return lambda patch: patch.setattr(lifecycle, "stalled", broken)


def _last_failure_uncounted(patch):
    settled = transitions.settled

    def broken(job, settlement, now):
        after = settled(job, settlement, now)
        return replace(after, attempts=job.attempts) if isinstance(settlement, Fail) else after

    patch.setattr(lifecycle, "settled", broken)


def _shutdown_is_a_failure(patch):
    def failed():
        return Failed("the worker was stopped", FailureKind.ERROR)

    patch.setattr(cancellation, "Released", failed)
    patch.setattr(slots, "Released", failed)


def _lost_reply_is_a_failure(patch):
    failed = settling.Settler.failed

    def broken(self, batch, error):
        failed(self, batch, error)
        for held in batch:
            held.end.value = Retry(held.newest_lease, reason="no answer", failure_kind=FailureKind.ERROR)

    patch.setattr(settling.Settler, "failed", broken)


def _no_heartbeat_in_shutdown(patch):
    drain = run.WorkerRun._drain

    async def broken(self):
        await self._heartbeat.stop()
        await drain(self)

    patch.setattr(run.WorkerRun, "_drain", broken)


# ------------------------------------------------------------------ keys


def _both_go_on(patch):
    leave = lifecycle.leave

    def broken(jobs, before, after):
        of_key = lifecycle.NO_JOBS if before.key is None else jobs.jobs_of_key(before.queue, before.key)
        if of_key.blocked is None or after.state.is_terminal:
            return leave(jobs, before, after)
        jobs.put(after)
        jobs.put(transitions.unblocked(jobs.get(of_key.blocked), jobs.now))
        return after

    patch.setattr(lifecycle, "leave", broken)


def _nobody_goes_on(patch):
    leave = lifecycle.leave

    def broken(jobs, before, after):
        if after.state is not JobState.FAILED:
            return leave(jobs, before, after)
        jobs.put(after)
        lifecycle.end(jobs, after)
        return after

    patch.setattr(lifecycle, "leave", broken)


def _blocked_needs_a_time(patch):
    made = transitions.new_record

    def broken(job, seq, now, *, blocked=False):
        return made(job, seq, now, blocked=blocked and (job.run_at or job.delay) is not None)

    patch.setattr(lifecycle, "new_record", broken)


# ------------------------------------------------------------------ dead letters


def _only_beside_others(patch):
    end = lifecycle.end

    def broken(jobs, job):
        fail_queue = fail_queue_of(jobs.rules(job.queue), jobs.rules(EVERY_QUEUE))
        waits = fail_queue is not None and any(jobs.ready.get((fail_queue, lane)) for lane in ("any", "cpu"))
        if job.state is not JobState.FAILED or waits:
            end(jobs, job)

    patch.setattr(lifecycle, "end", broken)


class TellsLater(MemoryDriver):
    """Writes the failure job with its next call, if there is one."""

    _deaths: ClassVar[list[Any]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owed: list[Any] = []

    def another(self):
        return TellsLater(self._name, store=self._store, clock=self.clock, entropy=self.entropy.split("a"))

    async def do_exchange(self, settlements, claim, now):
        self._pay(now)
        answer = await super().do_exchange(settlements, claim, now)
        self._owe()
        return answer

    async def do_settle(self, settlements, now):
        self._pay(now)
        answer = await super().do_settle(settlements, now)
        self._owe()
        return answer

    def _owe(self):
        self._owed += self._deaths
        self._deaths.clear()

    def _pay(self, now):
        with self._step(now) as there:
            for job in self._owed:
                _real_end(there, job)
        self._owed.clear()


_real_end = lifecycle.end


def _in_a_second_step(patch):
    def broken(jobs, job):
        if job.state is JobState.FAILED and job.type != FAILURE_TYPE:
            TellsLater._deaths.append(job)
        else:
            _real_end(jobs, job)

    patch.setattr(lifecycle, "end", broken)


# ------------------------------------------------------------------ limits


class TwoSteps(MemoryDriver):
    """A claim that looks first and takes later."""

    def another(self):
        return type(self)(self._name, store=self._store, clock=self.clock, entropy=self.entropy.split("a"))

    async def do_exchange(self, settlements, claim, now):
        settled = await self.do_settle(settlements, now)
        claimed = await self.do_reserve(claim, now)
        return Exchanged(settled, claimed.jobs, given_up=claimed.given_up)


class TakesWhatItSaw(TwoSteps):
    async def do_reserve(self, claim, now):
        with self._step(now) as there:
            swept = there.reclaim(claim.queues, 100)
            there.promote(claim.queues)
            seen = [job for queue in claim.queues for job in there._candidates(queue, claim)]
        await _a_moment()
        now = self.clock.now()
        with self._step(now) as there:
            taken = []
            for job in seen[: claim.limit]:
                there_now = there.jobs.get(job.id)
                if there_now is not None and not there_now.state.is_terminal:
                    record = transitions.claimed(
                        there_now, self.entropy.token(), claim.worker_id, now + claim.lease_for, now
                    )
                    there.put(record)
                    taken.append(record)
            return Claimed(taken, given_up_in(swept))


class CountsFirst(TwoSteps):
    async def do_reserve(self, claim, now):
        gates = self._store.gates
        rooms = {queue: gates.room(queue, claim, now) for queue in claim.queues}
        await _a_moment()
        now = self.clock.now()
        gates.room = lambda queue, *_: rooms[queue]  # type: ignore[method-assign]
        try:
            return await super().do_reserve(claim, now)
        finally:
            del gates.room


class ClaimsCrosswise(TwoSteps):
    """Claims under a limit that wait for each other, until the store gives one of them up."""

    _waiting: ClassVar[Counter[int]] = Counter()

    async def do_reserve(self, claim, now):
        at_the_gate = id(self._store)
        self._waiting[at_the_gate] += 1
        try:
            await _a_moment()
            if self._waiting[at_the_gate] > 1:
                raise DriverUnavailable("deadlock detected", done=False)
            return await super().do_reserve(claim, self.clock.now())
        finally:
            self._waiting[at_the_gate] -= 1


async def _a_moment(seconds=0.02):
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.call_later(seconds, woken.cancel)
    with suppress(asyncio.CancelledError):
        await woken


def _fixed_windows(patch):
    def room(self, rate, now_us):
        begin = now_us - now_us % rate.per_us
        return max(rate.count - sum(count for at, count in self.entries if at >= begin), 0)

    patch.setattr(limits.Window, "room", room)


# ------------------------------------------------------------------ cancel and enqueue


def _only_a_flag(patch):
    cancelled = transitions.cancelled

    def broken(job, now):
        if job.state is JobState.RUNNING:
            return cancelled(job, now)
        return replace(job, cancel_requested=True, updated_at=now, version=job.version + 1)

    patch.setattr(lifecycle, "cancelled", broken)


class LosesSight(TwoSteps):
    """A cancel that looks where a job is, waits for its lock, and gives up when it is gone from there."""

    async def do_cancel(self, ids, now):
        later = await self._later(ids, now)
        await _a_moment(0.5)
        now = self.clock.now()
        moved = later - await self._later(ids, now)
        found = await super().do_cancel([job_id for job_id in ids if job_id not in moved], now)
        answers = {job_id: CancelAnswer(job_id, CancelResult.NOT_FOUND, None, now, 0) for job_id in moved}
        answers |= zip((job_id for job_id in ids if job_id not in moved), found, strict=True)
        return [answers[job_id] for job_id in ids]

    async def _later(self, ids, now):
        jobs = await self.do_get(ids, now)
        return {job.id for job in jobs if job is not None and job.state is JobState.SCHEDULED}


def _retry_revives(patch):
    settled = transitions.settled

    def broken(job, settlement, now):
        if isinstance(settlement, Retry):
            job = replace(job, cancel_requested=False)
        return settled(job, settlement, now)

    patch.setattr(lifecycle, "settled", broken)


def _no_memory_of_keys(patch):
    patch.setattr(store.Store, "remembered", lambda self, queue, key: None)


def _overwrites(patch):
    repeated = lifecycle.repeated

    def broken(jobs, job):
        there = repeated(jobs, job)
        return None if there is not None and there[0] == job.id and job.key is None else there

    patch.setattr(lifecycle, "repeated", broken)


def _key_before_job(patch):
    enqueue = lifecycle.enqueue_one

    def broken(jobs, job):
        is_new = lifecycle.repeated(jobs, job) is None
        if job.idempotency_key is not None and is_new and int(job.id[-1], 16) % 3 == 0:
            jobs.remember(job, job)
            raise DriverUnavailable("died half-way", done=False)
        return enqueue(jobs, job)

    patch.setattr(lifecycle, "enqueue_one", broken)


def _sorted_as_text(patch):
    count = records.Records.next_seq

    def as_text(self):
        number = str(count(self))
        return int(number.ljust(8, "0")) * 10 + len(number)

    patch.setattr(records.Records, "next_seq", as_text)


def _nothing(_):
    """The bug is in the driver or in the world itself."""


def _by_the_callers_clock(world: World) -> None:
    world.decides_by_caller = True


SLOW_POLL = {"poll_seconds": 4.0}

BUGS = [
    Bug(
        name="BUG01 token not checked in ack",
        promises={"I3"},
        plant=_in_ack(_any_token),
        world=rough("polling"),
    ),
    Bug(
        name="BUG02 guard by worker name",
        promises={"I3"},
        plant=_in_ack(_same_name),
        world=rough("polling", workers=1, slots=4),
    ),
    Bug(
        name="BUG03 token not checked in extend", promises={"I3"}, plant=_in_extend(_any_token), world=rough()
    ),
    Bug(
        name="BUG04 expiry not checked in ack",
        promises={"I3"},
        plant=_in_ack(_for_ever),
        world=rough("polling", **SLOW_POLL),
    ),
    Bug(
        name="BUG05 extend revives an expired lease",
        promises={"I3", "I7"},
        plant=_in_extend(_for_ever),
        world=rough("polling", **SLOW_POLL),
    ),
    Bug(name="BUG06 reclaim < for <=", promises={"I2b"}, plant=_reclaims_later, world=rough("polling")),
    Bug(
        name="BUG07 validity >= for >",
        promises={"I2b", "I2"},
        plant=_everywhere(_one_too_long),
        world=rough("polling", **SLOW_POLL),
    ),
    Bug(
        name="BUG08 the caller's clock decides",
        promises={"I2"},
        plant=_nothing,
        prepare=_by_the_callers_clock,
        world=rough(faults=frozenset({"skew", "kill"})),
    ),
    Bug(
        name="BUG09 expiry index rounded to ms", promises={"I2"}, plant=_rounded_index, world=rough("polling")
    ),
    Bug(name="BUG10 stall not counted", promises={"I4", "I5"}, plant=_stalls(-1), world=rough()),
    Bug(name="BUG11 stall counted twice", promises={"I4"}, plant=_stalls(1), world=rough()),
    Bug(
        name="BUG12 shutdown counted as failure",
        promises={"I4"},
        plant=_shutdown_is_a_failure,
        world=calm("restarts", grace_seconds=0.5, lease_seconds=5.0),
    ),
    Bug(name="BUG13 last failure not counted", promises={"I4"}, plant=_last_failure_uncounted, world=calm()),
    Bug(
        name="BUG14 claim and lease in two steps",
        promises={"I2", "I1"},
        plant=_nothing,
        make=TakesWhatItSaw,
        is_stepwise=True,
        world=calm("batches", workers=5, jobs=120),
    ),
    Bug(
        name="BUG15 sweep re-adds a finished job",
        promises={"I20", "I1b"},
        plant=_sweep_of_finished,
        world=calm(schedulers=1),
    ),
    Bug(
        name="BUG16 late finish deletes the new owner's record",
        promises={"I1", "I3"},
        plant=_delete_on_mismatch,
        world=rough("polling"),
    ),
    Bug(
        name="BUG17 dead letter in a second step",
        promises={"I11"},
        plant=_in_a_second_step,
        make=TellsLater,
        world=rough("fail_queue", faults=frozenset({"kill", "points"})),
    ),
    Bug(
        name="BUG18 dead letter skipped when the list is empty",
        promises={"I11"},
        plant=_only_beside_others,
        world=calm("fail_queue"),
    ),
    Bug(name="BUG19 two jobs unblocked", promises={"I6b"}, plant=_both_go_on, world=calm("keys", jobs=120)),
    Bug(
        name="BUG20 none unblocked after death",
        promises={"I6b"},
        plant=_nobody_goes_on,
        world=calm("keys", jobs=120),
    ),
    Bug(
        name="BUG21 blocked lost when run_at is empty",
        promises={"I6"},
        plant=_blocked_needs_a_time,
        world=calm("keys", jobs=120),
    ),
    Bug(
        name="BUG22 W checked outside the atomic step",
        promises={"I7"},
        plant=_nothing,
        make=CountsFirst,
        is_stepwise=True,
        world=calm("limits", "batches", workers=5, jobs=120),
    ),
    Bug(
        name="BUG23 W counts a revived lease",
        promises={"I7"},
        plant=_revived_after_its_place_was_given_away,
        world=rough("limits", "polling", jobs=120, workers=4, schedulers=0, fault_rate=0.3),
    ),
    Bug(name="BUG24 fixed rate window", promises={"I8"}, plant=_fixed_windows, world=calm("rates", jobs=120)),
    Bug(
        name="BUG25 cancel is a flag the claim ignores",
        promises={"I10"},
        plant=_only_a_flag,
        world=calm("cancels", "delays", workers=2, slots=1, jobs=120),
    ),
    Bug(
        name="BUG26 retry after cancel revives",
        promises={"I10"},
        plant=_retry_revives,
        world=calm("cancels", "polling", jobs=120, slots=4, lease_seconds=10.0),
    ),
    Bug(
        name="BUG27 enqueue retry makes a second job",
        promises={"I12"},
        plant=_no_memory_of_keys,
        world=calm("idempotency"),
    ),
    Bug(
        name="BUG28 same id overwrites a running job",
        promises={"I12", "I1b"},
        plant=_overwrites,
        world=rough(),
    ),
    Bug(
        name="BUG29 idempotency key kept without job",
        promises={"I12", "I1"},
        plant=_key_before_job,
        world=calm("idempotency"),
    ),
    Bug(
        name="BUG30 ties sorted by text",
        promises={"I9"},
        plant=_sorted_as_text,
        world=calm("batches", workers=2, slots=1, jobs=120),
    ),
    Bug(
        name="BUG31 sweeper sees one page only",
        promises={"L3"},
        plant=_one_page,
        world=rough("polling", workers=5, slots=4, schedulers=2, jobs=120, **SLOW_POLL),
    ),
    Bug(
        name="BUG32 heartbeat stops when shutdown starts",
        promises={"Z6"},
        plant=_no_heartbeat_in_shutdown,
        world=calm("restarts", grace_seconds=20.0, lease_seconds=1.5),
    ),
    Bug(
        name="BUG33 fence restarts after requeue",
        promises={"I3"},
        plant=_fence_restarts,
        world=calm("requeues", jobs=120),
    ),
    Bug(
        name="BUG34 lost ack reply treated as failure",
        promises={"I4", "Z6"},
        plant=_lost_reply_is_a_failure,
        world=rough(faults=CALLS),
    ),
    Bug(
        name="BUG35 cancel loses a job that falls due",
        promises={"I1"},
        plant=_nothing,
        make=LosesSight,
        is_stepwise=True,
        world=calm("cancels", "delays", workers=2, slots=1, jobs=120),
    ),
    Bug(
        name="BUG36 claims under a limit wait crosswise",
        promises={"L9"},
        plant=_nothing,
        make=ClaimsCrosswise,
        is_stepwise=True,
        world=calm("limits", "batches", workers=5, jobs=120),
    ),
]
