"""Drivers whose verbs all pass through one method, `carry`: to a server, or to the driver behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import DriverInfo, Enqueued, Settled, Wakeups
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Ack


def _carried(verb: str) -> Any:
    async def step(self: Carried, *args: Any) -> Any:
        return await self.carry(verb, args[:-1], args[-1])

    step.__name__ = f"do_{verb}"
    return step


class Carried(Driver):
    """Every verb that takes `now`, handed to `carry`."""

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        """The answer of one verb; `args` are those of its `do_` method, without `now`."""
        raise NotImplementedError

    do_enqueue = _carried("enqueue")
    do_enqueue_family = _carried("enqueue_family")
    do_note = _carried("note")
    do_resolve = _carried("resolve")
    do_reserve = _carried("reserve")
    do_extend_leases = _carried("extend_leases")
    do_settle = _carried("settle")
    do_exchange = _carried("exchange")
    do_reclaim = _carried("reclaim")
    do_promote = _carried("promote")
    do_prune = _carried("prune")
    do_cancel = _carried("cancel")
    do_cancel_waiting = _carried("cancel_waiting")
    do_requeue = _carried("requeue")
    do_delete = _carried("delete")
    do_configure_queue = _carried("configure_queue")
    do_speculate = _carried("speculate")
    do_get = _carried("get")
    do_find = _carried("find")
    do_count = _carried("count")
    do_queues = _carried("queues")
    do_report_worker = _carried("report_worker")
    do_forget_worker = _carried("forget_worker")
    do_workers = _carried("workers")
    do_types = _carried("types")
    do_hold_role = _carried("hold_role")
    do_release_role = _carried("release_role")
    do_put_schedule = _carried("put_schedule")
    do_advance_schedule = _carried("advance_schedule")
    do_delete_schedule = _carried("delete_schedule")
    do_schedules = _carried("schedules")
    do_write_log = _carried("write_log")
    do_read_log = _carried("read_log")


class Relay(Carried):
    """A driver in front of another one, `inner`. A subclass listens, or interferes, in `carry`."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(
            inner.capabilities, clock=inner.clock, entropy=inner.entropy, max_payload=inner.max_payload
        )
        self.inner = inner
        self.orphans = inner.orphans
        self.outage = inner.outage

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        return await getattr(self.inner, f"do_{verb}")(*args, now)

    def carry_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        """The blocking enqueue."""
        return self.inner.do_enqueue_blocking(jobs, now, tx)

    def another(self) -> Driver:
        return Relay(self.inner.another())

    async def do_open(self) -> None:
        await (self.inner.open_to_look() if self.only_looks else self.inner.open())
        self.capabilities, self.max_payload = self.inner.capabilities, self.inner.max_payload

    async def do_close(self) -> None:
        await self.inner.close()

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        return self.carry_blocking(jobs, now, tx)

    do_enqueue_in = _carried("enqueue_in")

    def do_enqueue_on(self, connection: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return self.inner.do_enqueue_on(connection, jobs, now)

    def do_get_on(self, connection: Any, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return self.inner.do_get_on(connection, ids, now)

    def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AbstractAsyncContextManager[Any]:
        return self.inner.do_transaction(ack, now, on_settled)

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        await self.inner.do_ring(queues)

    async def do_info(self) -> DriverInfo:
        return await self.inner.do_info()

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self.inner.do_wakeups(queues, worker_id)

    async def do_pending_migrations(self) -> list[str]:
        return await self.inner.do_pending_migrations()

    async def do_migrate(self) -> list[str]:
        return await self.inner.do_migrate()
