"""A test of the tests: a memory driver with one planted bug never passes beside the model."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers import lifecycle
from taskharbor.drivers.lifecycle import JobsInStep
from taskharbor.drivers.memory import MemoryDriver, gates, records, store
from taskharbor.errors import LeaseLost
from taskharbor.model import limits, speculation, transitions
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.settlement import Retry, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.statemachine import hold_to_the_model

STEPS = 20_000  # at the most: most are found within 2,000
SEEDS = range(4)
Patch = pytest.MonkeyPatch


def a_lease_is_reclaimed_one_instant_late(patch: Patch) -> None:
    patch.setattr(store, "_expired", lambda leases, now: takewhile(lambda entry: entry[0] < now, leases))


def a_lease_still_writes_at_its_last_instant(patch: Patch) -> None:
    def held(job: JobRecord | None, lease: Lease, now: datetime) -> JobRecord | LeaseLost:
        return transitions.held(job, lease, now - timedelta(microseconds=1))

    patch.setattr(lifecycle, "held", held)


def a_stall_counts_as_an_attempt(patch: Patch) -> None:
    def stalled(job: JobRecord, reason: str, now: datetime) -> JobRecord:
        after = transitions.stalled(job, reason, now)
        return replace(after, attempts=after.attempts + 1)

    patch.setattr(lifecycle, "stalled", stalled)


def a_merge_forgets_the_flags(patch: Patch) -> None:
    def merged(again: JobRecord, blocked: JobRecord, now: datetime) -> JobRecord:
        return transitions.merged(again, replace(blocked, update=None), now)

    patch.setattr(lifecycle, "merged", merged)


def expired_leases_count_against_max_running(patch: Patch) -> None:
    def running(self: gates.Gates, queue: str, now: datetime) -> int:
        leases = self._records.leases
        return sum(len(held) for name, held in list(leases.items()) if queue in ("*", name))

    patch.setattr(gates.Gates, "_running", running)


def a_rate_window_is_one_microsecond_too_long(patch: Patch) -> None:
    def forget(self: limits.Window, rate: limits.RateLimit, now_us: int) -> None:
        while self.entries and self.entries[0][0] < now_us - rate.per_us:
            self.spent -= self.entries.popleft()[1]

    patch.setattr(limits.Window, "_forget", forget)


def a_rate_window_is_one_microsecond_too_short(patch: Patch) -> None:
    sound = limits.Window._forget
    patch.setattr(limits.Window, "_forget", lambda self, rate, now_us: sound(self, rate, now_us + 1))


def a_retry_loses_the_cancel(patch: Patch) -> None:
    def settled(job: JobRecord, settlement: Settlement, now: datetime) -> JobRecord:
        forgetful = replace(job, cancel_requested=False) if isinstance(settlement, Retry) else job
        return transitions.settled(forgetful, settlement, now)

    patch.setattr(lifecycle, "settled", settled)


def nobody_unblocks_after_a_failure(patch: Patch) -> None:
    sound = lifecycle.leave

    def leave(jobs: JobsInStep, before: JobRecord, after: JobRecord) -> JobRecord:
        if after.state is not JobState.FAILED:
            return sound(jobs, before, after)
        jobs.put(after)
        lifecycle.end(jobs, after)
        return after

    patch.setattr(lifecycle, "leave", leave)


def an_absorbed_idempotency_key_is_forgotten(patch: Patch) -> None:
    sound = store.Store.remember

    def remember(self: store.Store, job: NewJob, record: JobRecord) -> None:
        if job.id == record.id:
            sound(self, job, record)

    patch.setattr(store.Store, "remember", remember)


def a_requeue_resets_the_fence(patch: Patch) -> None:
    def requeued(job: JobRecord, *arguments: Any, **options: Any) -> JobRecord:
        return replace(transitions.requeued(job, *arguments, **options), fence=0)

    patch.setattr(lifecycle, "requeued", requeued)


def a_copy_does_not_complete_its_original(patch: Patch) -> None:
    patch.setattr(lifecycle, "win", lambda jobs, original_id, result: None)


def a_run_has_a_copy_again_when_the_first_has_ended(patch: Patch) -> None:
    patch.setattr(records.Records, "run_had_copy", lambda self, job: False)


def a_slower_worker_takes_a_copy_at_once(patch: Patch) -> None:
    def may_take(copy: JobRecord, original: JobRecord | None, worker_id: str, now: datetime) -> bool:
        return speculation.may_take(copy, original, worker_id, now + timedelta(hours=1))

    patch.setattr(store, "may_take", may_take)


def a_later_run_at_loses_against_an_empty_one(patch: Patch) -> None:
    def absorb(there: JobRecord, job: NewJob, now: datetime) -> JobRecord:
        after = transitions.absorb(there, job, now)
        is_wrong = job.update is not None and job.update.run_at == "if_later" and there.run_at is None
        return replace(after, run_at=None) if is_wrong else after

    patch.setattr(lifecycle, "absorb", absorb)


BUGS: list[Callable[[Patch], None]] = [
    a_lease_is_reclaimed_one_instant_late,
    a_lease_still_writes_at_its_last_instant,
    a_stall_counts_as_an_attempt,
    a_merge_forgets_the_flags,
    expired_leases_count_against_max_running,
    a_rate_window_is_one_microsecond_too_long,
    a_rate_window_is_one_microsecond_too_short,
    a_retry_loses_the_cancel,
    nobody_unblocks_after_a_failure,
    an_absorbed_idempotency_key_is_forgotten,
    a_requeue_resets_the_fence,
    a_copy_does_not_complete_its_original,
    a_run_has_a_copy_again_when_the_first_has_ended,
    a_slower_worker_takes_a_copy_at_once,
    a_later_run_at_loses_against_an_empty_one,
]


@pytest.mark.more("thousands of steps for each bug; they test the model, not the product")
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert any(finds(seed_number) for seed_number in SEEDS), "no seed found it"


def finds(seed_number: int) -> bool:
    """Whether that series of steps meets the bug. What is drawn also depends on the modules loaded so far."""
    try:
        hold_to_the_model(MemoryDriver, steps=STEPS, seed_number=seed_number, least=0, shrink=False)
    except AssertionError as found:
        return "met fewer than" not in str(found)
    return False
