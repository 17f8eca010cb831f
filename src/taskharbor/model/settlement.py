"""How an attempt ends in the store: seven settlements, and the one place that chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import assert_never

import msgspec

from taskharbor.errors import InvalidArgument
from taskharbor.model.bonds import MAX_AFTER
from taskharbor.model.checks import MAX_BATCH, check_count, check_ids, check_notes, check_span, check_when
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NO_TIME, FailureKind, Job, JobRecord, Lease, Note
from taskharbor.model.outcome import (
    Died,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    WasCancelled,
    WasParked,
)
from taskharbor.model.retry import RetryPolicy

DEFAULT_MAX_ATTEMPTS = 25

Backoff = Callable[[int], timedelta]
"""The n-th recorded failure → how long to wait before the next try."""


TriesAgain = Callable[[tuple[str, ...]], bool]
"""The names of an error's classes → whether it is worth another try."""


def _always(_errors: tuple[str, ...]) -> bool:
    return True


class Ack(msgspec.Struct, frozen=True, tag=True, gc=False):
    """It worked: the job is completed, with a result if the handler gave one."""

    lease: Lease
    result: bytes | None = None


class Retry(msgspec.Struct, frozen=True, tag=True, gc=False):
    """It failed and may try again: attempts + 1; ready at once, or scheduled after `delay` or at `run_at`.

    `attempts` and `failed_at` are for the one-job form, which stores what it is given; left out,
    the store counts and stamps by itself.
    """

    lease: Lease
    delay: timedelta | None = None
    reason: str = ""
    failure_kind: str = FailureKind.ERROR
    trace: str | None = None
    run_at: datetime | None = None
    attempts: int | None = None
    failed_at: datetime | None = None
    error_class: str | None = None


class Fail(msgspec.Struct, frozen=True, tag=True):
    """It failed for good: attempts + 1, and the job goes to the dead letters."""

    lease: Lease
    reason: str = ""
    failure_kind: str = FailureKind.ERROR
    trace: str | None = None
    error_class: str | None = None


class Stalled(msgspec.Struct, frozen=True, tag=True):
    """Its process died under it: counted and handled exactly like an expired lease."""

    lease: Lease
    reason: str = ""


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """It was cancelled: never retried, never dead-lettered."""

    lease: Lease
    reason: str = ""


class Release(msgspec.Struct, frozen=True, tag=True):
    """Handed back untouched: nothing is counted."""

    lease: Lease
    delay: timedelta | None = None


class Park(msgspec.Struct, frozen=True, tag=True):
    """The handler frees its slot and runs again from the top: once the children in `after` are over, or when
    `delay` has passed. Counts nothing; attempts and stalls start at 0. Keeps `notes` in the same step.
    """

    lease: Lease
    after: tuple[str, ...] = ()
    delay: timedelta | None = None
    notes: tuple[Note, ...] = ()


Settlement = Ack | Retry | Fail | Stalled | Cancelled | Release | Park


def check_settlements(settlements: Sequence[Settlement], now: datetime, max_payload: int) -> bool:
    """Every settlement of one call. True when one of them is a Park."""
    has_park = False
    if len(settlements) > MAX_BATCH:
        raise InvalidArgument(f"{len(settlements)} settlements in one call; {MAX_BATCH} are allowed")
    for item in settlements:
        if isinstance(item, Ack):
            if item.result is not None and len(item.result) > max_payload:
                raise InvalidArgument(
                    f"a result of {len(item.result)} bytes is over the limit of {max_payload}; "
                    "keep large results elsewhere and return a reference"
                )
        elif isinstance(item, Retry):
            check_when(item.run_at, item.delay, now)
            if item.attempts is not None:
                check_count(item.attempts, "attempts")
        elif isinstance(item, Release) and item.delay is not None:
            check_span(item.delay, "delay")
        elif isinstance(item, Park):
            _check_park(item, max_payload)
            has_park = True
    return has_park


def _check_park(park: Park, max_payload: int) -> None:
    if bool(park.after) == (park.delay is not None):
        raise InvalidArgument("a Park waits for children or for a delay: give one of them")
    if len(park.after) > MAX_AFTER:
        raise InvalidArgument(f"a Park for {len(park.after)} children; {MAX_AFTER} are allowed")
    check_ids(park.after)
    if park.delay is not None:
        check_span(park.delay, "delay")
    check_notes(park.notes, max_payload)


def decide(
    job: JobRecord, outcome: Outcome, *, limit: int, backoff: Backoff, tries_again: TriesAgain = _always
) -> Settlement:
    """What one finished attempt does to its job. Pure: no clock, no store.

    `limit` is the number of executions that this job may have (see `attempts_allowed`). `tries_again` decides
    whether an error is worth another try; time limits and stalls are no errors of the handler's.
    """
    lease = job.lease
    if type(outcome) is Succeeded:  # nearly always, and far cheaper than a match
        return Ack(lease, outcome.result)
    match outcome:
        case Succeeded(result):
            return Ack(lease, result)
        case Snoozed(delay):
            return Release(lease, delay)
        case WasCancelled(reason):
            return Cancelled(lease, reason)
        case Released(delay):
            return Release(lease, delay)
        case Died(reason):
            return Stalled(lease, reason)
        case WasParked(after, delay, notes):
            return Park(lease, after, delay, notes)
        case Failed(reason, kind, trace) if _is_last(job, outcome, limit):
            return Fail(lease, reason, kind, trace, outcome.error_class)
        case Failed(reason, FailureKind.ERROR, trace, _, errors) if not tries_again(errors):
            return Fail(lease, reason, FailureKind.UNRECOVERABLE, trace, outcome.error_class)
        case Failed(reason, kind, trace, retry_after):
            delay = max(backoff(job.attempts + 1), retry_after or NO_TIME)
            return Retry(lease, delay, reason, kind, trace, error_class=outcome.error_class)
    assert_never(outcome)


def settlement_for(job: JobRecord, outcome: Outcome, policy: RetryPolicy, entropy: Entropy) -> Settlement:
    """The settlement of one finished attempt under this retry policy. Pure, with the given entropy."""
    if not isinstance(outcome, Failed):
        return decide(job, outcome, limit=0, backoff=_never)

    def backoff(failures: int) -> timedelta:
        return policy.next_delay(failures, entropy, least=job.min_backoff, most=job.max_backoff)

    limit = attempts_allowed(job.max_attempts, policy.max_attempts)
    return decide(job, outcome, limit=limit, backoff=backoff, tries_again=policy.tries_again)


def runs_again(job: JobRecord | Job, outcome: Failed | Died, policy: RetryPolicy) -> bool:
    """Whether the job runs again after this outcome: what `settlement_for` and the store will decide."""
    if isinstance(outcome, Died):
        return not is_last_stall(job)
    if _is_last(job, outcome, attempts_allowed(job.max_attempts, policy.max_attempts)):
        return False
    return outcome.failure_kind != FailureKind.ERROR or policy.tries_again(outcome.errors)


def is_last_stall(job: JobRecord | Job) -> bool:
    """Whether one stall more is as many as the job may have; 0 of `max_stalls` means any number."""
    return 0 < job.max_stalls <= job.stalls + 1


def _is_last(job: JobRecord | Job, failed: Failed, limit: int) -> bool:
    """Whether no further try is left, whatever the error is."""
    return failed.is_final or job.attempts + 1 >= limit


def _never(failures: int) -> timedelta:
    raise AssertionError("only a failure waits for another try")


def attempts_allowed(job_max: int, policy_max: int) -> int:
    """How many executions a job may have: its own number, else the policy's, else 25.

    A policy never caps a job's own number.
    """
    return job_max or policy_max or DEFAULT_MAX_ATTEMPTS
