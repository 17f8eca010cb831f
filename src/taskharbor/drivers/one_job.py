"""The one-job forms: the same verbs for a single job, raising instead of returning errors.

Written once on top of the batch verbs, so that every driver has them. A refused lease is read again, so that
the error names who holds the job. The batch verbs do not do that: a heartbeat that waits for another
answer could lose its other leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from taskharbor.drivers.messages import Claim, Claimed, Extended, Settled
from taskharbor.errors import LeaseLost, TaskHarborError
from taskharbor.model.job import FailureKind, JobRecord, Lease
from taskharbor.model.settlement import Ack, Fail, Retry, Settlement
from taskharbor.model.state import JobState


class RetryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a one-job retry stores, exactly as given; an empty run_at means now."""

    attempts: int
    run_at: datetime | None = None
    last_error: str = ""
    failed_at: datetime | None = None


class _Verbs(Protocol):
    async def reserve(self, claim: Claim, *, now: datetime | None = None) -> Claimed: ...
    async def settle(
        self, settlements: Sequence[Settlement], *, now: datetime | None = None
    ) -> list[Settled | LeaseLost]: ...
    async def extend_leases(
        self, leases: Sequence[Lease], lease_for: timedelta, *, now: datetime | None = None
    ) -> list[Extended | LeaseLost]: ...
    async def get(
        self, ids: Sequence[str], *, now: datetime | None = None, payloads: bool = True
    ) -> list[JobRecord | None]: ...


class OneJobForms:
    """ack, retry, fail, extend_lease and reserve_one, for any class with the batch verbs."""

    async def reserve_one(
        self: _Verbs,
        queue: str,
        now: datetime | None,
        lease_for: timedelta,
        worker_id: str = "one-job",
    ) -> JobRecord | None:
        """The next job of one queue under a new lease, or None if nothing can run."""
        claim = Claim(queues=(queue,), worker_id=worker_id, limit=1, lease_for=lease_for)
        jobs = (await self.reserve(claim, now=now)).jobs
        return jobs[0] if jobs else None

    async def ack(self: _Verbs, job_id: str, token: str, now: datetime | None) -> Settled:
        """Complete the job; raises the lease error."""
        return await _settled(self, Ack(Lease(job_id, token)), now)

    async def retry(
        self: _Verbs, job_id: str, token: str, now: datetime | None, update: RetryUpdate
    ) -> Settled:
        """Let it wait again, with attempts, run_at, last_error and failed_at stored as given."""
        retry = Retry(
            Lease(job_id, token),
            reason=update.last_error,
            failure_kind=FailureKind.ERROR,
            run_at=update.run_at,
            attempts=update.attempts,
            failed_at=update.failed_at,
        )
        return await _settled(self, retry, now)

    async def fail(self: _Verbs, job_id: str, token: str, now: datetime | None, reason: str) -> Settled:
        """Fail for good: the job is a dead letter."""
        return await _settled(self, Fail(Lease(job_id, token), reason), now)

    async def extend_lease(
        self: _Verbs, job_id: str, token: str, now: datetime | None, lease_for: timedelta
    ) -> Lease:
        """Returns the lease to use from now on."""
        [answer] = await self.extend_leases([Lease(job_id, token)], lease_for, now=now)
        if isinstance(answer, LeaseLost):
            raise await _explained(self, answer, now)
        return answer.lease


async def _settled(driver: _Verbs, settlement: Settlement, now: datetime | None) -> Settled:
    [answer] = await driver.settle([settlement], now=now)
    if isinstance(answer, LeaseLost):
        raise await _explained(driver, answer, now)
    return answer


async def _explained(driver: _Verbs, error: LeaseLost, now: datetime | None) -> LeaseLost:
    """The error with owner and state of the job, if the store can be read."""
    with suppress(TaskHarborError):  # the refusal itself is certain
        [record] = await driver.get([error.job_id], now=now, payloads=False)
        if record is not None:
            owner = record.worker_id if record.state is JobState.RUNNING else None
            error.add_facts(owner, record.state)
    return error
