"""HttpDriver: the contract spoken to a TaskHarbor server. Every verb is one request, and the server's
store does the work; see drivers/wire.py for what travels."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers import wire
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.http.address import Address, address_of
from taskharbor.drivers.http.blocking import Blocking
from taskharbor.drivers.http.calls import Calls
from taskharbor.drivers.http.connections import ConnectionPool
from taskharbor.drivers.http.decoding import ResponseTooLarge
from taskharbor.drivers.http.requests import Requests
from taskharbor.drivers.http.wakeups import RemoteWakeups
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
    Claimed,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Page,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    RoleLease,
    Settled,
    Speculated,
    Wakeups,
)
from taskharbor.errors import ConflictError, DriverClosed, InvalidArgument, JobNotFound, LeaseLost
from taskharbor.model.clock import Clock
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Release, Settlement
from taskharbor.model.speculation import HeadStart

_log = logging.getLogger("taskharbor.drivers.http")

# What every server can do. `do_open` adds what the store behind it can.
_CAPABILITIES = Capabilities(multiprocess=True, blocking_enqueue=True, remote=True)


class HttpDriver(Driver):
    """A harbor behind a TaskHarbor server."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self._address = address
        self._tls = tls or address.tls()
        self._requests = Requests(address, self.entropy.token())
        self._hello: wire.Hello | None = None
        self._pool: ConnectionPool | None = None
        self._calls: Calls | None = None
        self._blocking: Blocking | None = None
        self._listening: set[RemoteWakeups] = set()

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> HttpDriver:
        """https://token@host:port/path?timeout=30&connections=16&ca=FILE; or the token in TASKHARBOR_TOKEN"""
        return cls(address_of(url), clock=clock, entropy=entropy)

    def another(self) -> HttpDriver:
        entropy = self.entropy.split("another")
        one = HttpDriver(self._address, tls=self._tls, clock=self.clock, entropy=entropy)
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def do_open(self) -> None:
        if self._address.exposes_token:
            _log.warning("the token for %s crosses the network in the clear: use https", self._address.shown)
        pool = ConnectionPool(self._address, self._tls)
        self._calls = Calls(self._address, pool, self._requests, self._hand_back)
        try:
            hello: wire.Hello = await self._calls.call("hello", b"{}")
        except BaseException:
            pool.close()
            raise
        self._pool, self._hello = pool, hello
        self.max_payload = hello.max_payload
        self.capabilities = msgspec.structs.replace(
            hello.capabilities, multiprocess=True, blocking_enqueue=True, remote=True, tx=False
        )
        self._blocking = Blocking(self._address, self._tls, self._requests)

    async def do_close(self) -> None:
        for wakeups in list(self._listening):
            await wakeups.aclose()
        self._listening.clear()
        if self._calls is not None:
            await self._calls.close()
        if self._pool is not None:
            self._pool.close()
        if self._blocking is not None:
            self._blocking.close()

    # ------------------------------------------------------------------ calls

    async def _ask(self, verb: str, **arguments: Any) -> Any:
        if self._calls is None:
            raise DriverClosed
        return await self._calls.call(verb, self._body(verb, arguments))

    def _body(self, verb: str, arguments: dict[str, Any]) -> bytes:
        body = wire.encode(arguments)
        if self._hello is not None and len(body) > self._hello.max_body:
            raise InvalidArgument(
                f"{verb} makes a message of {len(body)} bytes, and {self._address.shown} takes "
                f"{self._hello.max_body}; nothing was done, send it in parts"
            )
        return body

    async def _hand_back(self, verb: str, response: Any) -> None:
        """Jobs that were handed out to a caller who has given up wait again, at their place."""
        claimed: list[JobRecord] = getattr(response, "jobs" if verb == "reserve" else "claimed", [])
        if verb in ("reserve", "exchange") and claimed and self._calls is not None:
            settlements = [Release(job.lease) for job in claimed]
            # Where the time is made up, the claim's own: this step belongs to it.
            now = claimed[0].started_at if self._hello is not None and self._hello.takes_now else None
            await self._calls.send("settle", wire.encode({"settlements": settlements, "now": now}))

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        answers: list[Enqueued] = await self._ask("enqueue", jobs=jobs, now=now)
        return answers

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if self._blocking is None:
            raise DriverClosed
        body = self._body("enqueue", {"jobs": jobs, "now": now})
        answers: list[Enqueued] = self._blocking.call("enqueue", body)
        return answers

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        claimed: Claimed = await self._ask("reserve", claim=claim, now=now)
        return claimed

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        answers: list[Extended | LeaseLost] = await self._ask(
            "extend_leases", leases=leases, lease_for=lease_for, progress=dict(progress), now=now
        )
        return answers

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        answers: list[Settled | LeaseLost] = await self._ask("settle", settlements=settlements, now=now)
        return answers

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        response: Exchanged = await self._ask("exchange", settlements=settlements, claim=claim, now=now)
        return response

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        answers: list[Reclaimed] = await self._ask("reclaim", limit=limit, now=now)
        return answers

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        return int(await self._ask("promote", limit=limit, now=now))

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        return int(await self._ask("prune", limit=limit, now=now))

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        answers: list[CancelAnswer] = await self._ask("cancel", ids=ids, now=now)
        return answers

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return bool(await self._ask("cancel_waiting", queue=queue, key=key, now=now))

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        answers: list[Requeued | JobNotFound | ConflictError] = await self._ask(
            "requeue", ids=ids, edit=edit, reset_counts=reset_counts, run_at=run_at, delay=delay, now=now
        )
        return answers

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        answers: list[Deleted | JobNotFound | ConflictError] = await self._ask("delete", ids=ids, now=now)
        return answers

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        rules: QueueRules = await self._ask("configure_queue", settings=settings, now=now)
        return rules

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        response: Speculated | JobNotFound | ConflictError = await self._ask(
            "speculate", job_id=job_id, head_start=head_start, now=now
        )
        return response

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        names = list(dict.fromkeys(ids))
        found = dict(zip(names, await self._get_some(names, now), strict=True))
        return [found[job_id] for job_id in ids]

    async def _get_some(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        """A server has a limit of bytes for an answer: then half of them are asked for at a time."""
        try:
            records: list[JobRecord | None] = await self._ask("get", ids=ids, now=now)
        except ResponseTooLarge:
            if len(ids) == 1:
                raise
            half = len(ids) // 2
            return [*await self._get_some(ids[:half], now), *await self._get_some(ids[half:], now)]
        return records

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        records: list[JobRecord | None] = await self._ask("get", ids=ids, payloads=False, now=now)
        return records

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        page: Page = await self._ask("find", query=query, now=now)
        return page

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        counts: dict[str, Counts] = await self._ask("count", queues=queues, now=now)
        return counts

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        queues: list[QueueInfo] = await self._ask("queues", now=now)
        return queues

    async def do_info(self) -> DriverInfo:
        """What the server says of its store, and where the server is."""
        info: DriverInfo = await self._ask("info")
        version = self._hello.version if self._hello is not None else ""
        details = {**info.details, "server": version, "behind": info.location or info.driver}
        return msgspec.structs.replace(info, driver="http", location=self._address.shown, details=details)

    # ------------------------------------------------------------------ presence

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        await self._ask("report_worker", report=report, samples=samples, ttl=ttl, now=now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        return bool(await self._ask("forget_worker", worker_id=worker_id, now=now))

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        workers: list[WorkerInfo] = await self._ask("workers", now=now)
        return workers

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        types: list[TypeInfo] = await self._ask("types", now=now)
        return types

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        lease: RoleLease = await self._ask("hold_role", role=role, holder=holder, ttl=ttl, now=now)
        return lease

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        return bool(await self._ask("release_role", role=role, holder=holder, now=now))

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        if not self.capabilities.wakeups:
            return super().do_wakeups(queues, worker_id)
        body = wire.encode({"queues": queues, "worker_id": worker_id})
        wakeups = RemoteWakeups(
            self._address,
            self._tls,
            lambda: self._requests.request("wakeups", body, self._requests.next_call()),
            self.entropy.split("wakeups"),
            self._listening.discard,
        )
        self._listening.add(wakeups)
        return wakeups

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        stored: StoredSchedule = await self._ask("put_schedule", schedule=schedule, now=now)
        return stored

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        return bool(await self._ask("advance_schedule", name=name, tick=tick, fired=fired, now=now))

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return bool(await self._ask("delete_schedule", name=name, now=now))

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        schedules: list[StoredSchedule] = await self._ask("schedules", now=now)
        return schedules

    # ------------------------------------------------------------------ schema

    async def do_pending_migrations(self) -> list[str]:
        names: list[str] = await self._ask("pending_migrations")
        return names

    async def do_migrate(self) -> list[str]:
        names: list[str] = await self._ask("migrate")
        return names
