"""Drivers that are wrong on purpose, each in one way that real queues have been wrong in."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Self

from msgspec.structs import replace

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim, Claimed, Exchanged, Extended, Settled, given_up_in
from taskharbor.errors import LeaseLost
from taskharbor.model.job import JobRecord, Lease, Progress
from taskharbor.model.settlement import Settlement
from taskharbor.model.state import JobState
from taskharbor.model.transitions import claimed


class _Changed(MemoryDriver):
    """A memory driver whose other handles have the same fault."""

    def another(self) -> Self:
        return type(self)(
            self._name, store=self._store, clock=self.clock, entropy=self.entropy.split("another")
        )


class _LeaseTouching(_Changed):
    """Lets a fault look at every lease before the sound driver does."""

    def tampered(self, lease: Lease, now: datetime | None) -> Lease:
        raise NotImplementedError

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        leases = [self.tampered(lease, now) for lease in leases]
        return await super().do_extend_leases(leases, lease_for, progress, now)

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        settlements = [replace(item, lease=self.tampered(item.lease, now)) for item in settlements]
        return await super().do_settle(settlements, now)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        settlements = [replace(item, lease=self.tampered(item.lease, now)) for item in settlements]
        return await super().do_exchange(settlements, claim, now)


class OwnerGuardDriver(_LeaseTouching):
    """Asks for the name of the worker and not for the token of the attempt."""

    def tampered(self, lease: Lease, now: datetime | None) -> Lease:
        job = self._store.jobs.get(lease.job_id)
        is_named = job is not None and lease.worker_id in (None, job.worker_id)
        return replace(lease, token=job.token) if job is not None and job.token and is_named else lease


class NoExpiryCheckDriver(_LeaseTouching):
    """Asks for the token and never whether its time is over."""

    def tampered(self, lease: Lease, now: datetime | None) -> Lease:
        job = self._store.jobs.get(lease.job_id)
        at = now or self.clock.now()
        if job is not None and job.token == lease.token and job.lease_expires_at is not None:
            still_valid = max(job.lease_expires_at, at + timedelta(microseconds=1))
            self._store.put(replace(job, lease_expires_at=still_valid))
        return lease


class TwoStepClaimDriver(_Changed):
    """Picks the jobs, lets others have a turn, and only then marks them as its own."""

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        at = now or self.clock.now()
        with self._step(now) as store:
            swept = store.reclaim(claim.queues, 100)
            store.promote(claim.queues)
            picked: list[JobRecord] = []
            for queue in claim.queues:
                room = min(store.gates.room(queue, claim, at), claim.limit - len(picked))
                picked += list(store._candidates(queue, claim))[: max(room, 0)]
        await asyncio.sleep(0)
        with self._step(now):
            token = self.entropy.token()
            jobs = [self._marked(job, token, claim, at) for job in picked]
            return Claimed(jobs, given_up_in(swept))

    def _marked(self, job: JobRecord, token: str, claim: Claim, at: datetime) -> JobRecord:
        newest = replace(self._store.jobs.get(job.id, job), state=JobState.READY)
        record = claimed(newest, token, claim.worker_id, at + claim.lease_for, at)
        self._store.put(record)
        for queue in claim.queues:
            self._store.gates.spend(queue, claim, int(queue == record.queue), at)
        return record

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        settled = await self.do_settle(settlements, now) if settlements else []
        claimed = await self.do_reserve(claim, now)
        return Exchanged(settled, claimed.jobs, given_up=claimed.given_up)


class PrunesChildrenDriver(_Changed):
    """Prunes a child by its own age, although its root still lives."""

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        with self._step(now) as store:
            children = [job for job in store.jobs.values() if job.bonds is not None and job.bonds.parent]
            for job in children:
                if job.finished_at is not None and store.now - job.finished_at >= timedelta(hours=1):
                    store.drop(job)
        return await super().do_prune(limit, now)
