"""Relay: a driver in front of another one; every verb passes through `carry`, to be heard or meddled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Query, Wakeups
from taskharbor.model.edit import Edit
from taskharbor.model.job import Lease, NewJob, Progress
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Settlement
from taskharbor.model.speculation import HeadStart


class Relay(Driver):
    """Hands every verb on as it came."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(
            inner.capabilities, clock=inner.clock, entropy=inner.entropy, max_payload=inner.max_payload
        )
        self.inner = inner

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        """The answer of one verb; `args` are those of its `do_` method, without `now`."""
        return await getattr(self.inner, f"do_{verb}")(*args, now)

    def carry_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> Any:
        """The blocking enqueue."""
        return self.inner.do_enqueue_blocking(jobs, now, tx)

    def another(self) -> Driver:
        return Relay(self.inner.another())

    async def do_open(self) -> None:
        await self.inner.open()
        self.capabilities = self.inner.capabilities

    async def do_close(self) -> None:
        await self.inner.close()

    # ------------------------------------------------------------------ jobs and attempts

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> Any:
        return await self.carry("enqueue", (jobs,), now)

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> Any:
        return self.carry_blocking(jobs, now, tx)

    async def do_enqueue_in(self, jobs: Sequence[NewJob], tx: Any, now: datetime | None) -> Any:
        return await self.carry("enqueue_in", (jobs, tx), now)

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Any:
        return await self.carry("reserve", (claim,), now)

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> Any:
        return await self.carry("extend_leases", (leases, lease_for, progress), now)

    async def do_settle(self, settlements: Sequence[Settlement], now: datetime | None) -> Any:
        return await self.carry("settle", (settlements,), now)

    async def do_exchange(self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None) -> Any:
        return await self.carry("exchange", (settlements, claim), now)

    # ------------------------------------------------------------------ time and control

    async def do_reclaim(self, limit: int, now: datetime | None) -> Any:
        return await self.carry("reclaim", (limit,), now)

    async def do_promote(self, limit: int, now: datetime | None) -> Any:
        return await self.carry("promote", (limit,), now)

    async def do_prune(self, limit: int, now: datetime | None) -> Any:
        return await self.carry("prune", (limit,), now)

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> Any:
        return await self.carry("cancel", (ids,), now)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> Any:
        return await self.carry("cancel_waiting", (queue, key), now)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> Any:
        return await self.carry("requeue", (ids, edit, reset_counts, run_at, delay), now)

    async def do_delete(self, ids: Sequence[str], now: datetime | None) -> Any:
        return await self.carry("delete", (ids,), now)

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> Any:
        return await self.carry("configure_queue", (settings,), now)

    async def do_speculate(self, job_id: str, head_start: HeadStart | None, now: datetime | None) -> Any:
        return await self.carry("speculate", (job_id, head_start), now)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> Any:
        return await self.carry("get", (ids,), now)

    async def do_find(self, query: Query, now: datetime | None) -> Any:
        return await self.carry("find", (query,), now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> Any:
        return await self.carry("count", (queues,), now)

    async def do_queues(self, now: datetime | None) -> Any:
        return await self.carry("queues", (), now)

    async def do_info(self) -> Any:
        return await self.inner.do_info()

    # ------------------------------------------------------------------ presence, roles, schedules

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> Any:
        return await self.carry("report_worker", (report, samples, ttl), now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> Any:
        return await self.carry("forget_worker", (worker_id,), now)

    async def do_workers(self, now: datetime | None) -> Any:
        return await self.carry("workers", (), now)

    async def do_types(self, now: datetime | None) -> Any:
        return await self.carry("types", (), now)

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> Any:
        return await self.carry("hold_role", (role, holder, ttl), now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> Any:
        return await self.carry("release_role", (role, holder), now)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self.inner.do_wakeups(queues, worker_id)

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> Any:
        return await self.carry("put_schedule", (schedule,), now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> Any:
        return await self.carry("advance_schedule", (name, tick, fired), now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> Any:
        return await self.carry("delete_schedule", (name,), now)

    async def do_schedules(self, now: datetime | None) -> Any:
        return await self.carry("schedules", (), now)

    async def do_pending_migrations(self) -> Any:
        return await self.inner.do_pending_migrations()

    async def do_migrate(self) -> Any:
        return await self.inner.do_migrate()
