"""RedisDriver: many machines on one Redis or Valkey, at memory speed.

The hot verbs (enqueue, exchange, extend) are one script each. The rarer ones read a picture of the
jobs they touch, let `taskharbor.model.transitions` decide, and write if nothing has changed meanwhile:
see books.py and ledger.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
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
from taskharbor.drivers.redis import health
from taskharbor.drivers.redis.address import Address, address_of
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.blocking import Blocking
from taskharbor.drivers.redis.books import Books, stated
from taskharbor.drivers.redis.cluster.driver import ClusterDriver
from taskharbor.drivers.redis.control import Control
from taskharbor.drivers.redis.entering import Entering
from taskharbor.drivers.redis.fitness import Fitness
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.looking import Looking
from taskharbor.drivers.redis.presence import Presence
from taskharbor.drivers.redis.server import Server
from taskharbor.drivers.redis.standing import Standing
from taskharbor.drivers.redis.waking import Waking
from taskharbor.errors import ConflictError, DriverMisbehaved, JobNotFound, LeaseLost, StoreRefused
from taskharbor.model.clock import Clock
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Settlement
from taskharbor.model.speculation import HeadStart

log = logging.getLogger("taskharbor.drivers.redis")

_SAMPLES = 1000


class RedisDriver(Driver):
    """A store in a namespace of a Redis or Valkey server."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        wakeups=True,
        multiprocess=True,
        durable=True,
        blocking_enqueue=True,
        elsewhere=True,
        atomic_across_queues=True,
    )

    def __init__(
        self, address: Address, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(clock=clock, entropy=entropy)
        self.address = address
        self._keys = Keys(address.namespace)
        self._only_looks = False

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> Driver:
        """redis://user:password@host:6379/0?namespace=…; the other options are in address.py."""
        address = address_of(url)
        if address.mode == "cluster":
            return ClusterDriver(address, clock=clock, entropy=entropy)
        return cls(address, clock=clock, entropy=entropy)

    def another(self) -> RedisDriver:
        one = RedisDriver(self.address, clock=self.clock, entropy=self.entropy.split("another"))
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def open_to_look(self) -> Self:
        self._only_looks = True
        return await self.open()

    async def do_open(self) -> None:
        self._make_parts(Server(self.address, self._keys, self._fresh_epoch))
        self._server.makes_epoch = not self._only_looks
        try:
            await self._server.open()
            seen = await health.look(self._server)
            health.check(seen, self.address)
            await self._check_rights()
            await self._server.adopt_epoch()
        except BaseException:
            await self._server.close()
            raise
        # What this server can do, which the class cannot know.
        self.__dict__["capabilities"] = replace(type(self).capabilities, durable=seen.durability != "D0")
        if not self._only_looks:  # what looks at it shows it, or has nothing to lose
            health.advise(seen, self.address)

    def _make_parts(self, server: Server) -> None:
        keys = self._keys
        self._server = server
        self._books = Books(server, keys)
        self._entering = Entering(server, keys, self._books)
        self._attempts = Attempts(server, keys, self._books, self.entropy, self.given_up, self.orphans)
        self._control = Control(self._books)
        self._looking = Looking(server, keys, self._books, self.orphans)
        self._presence = Presence(server, keys, self._books)
        self._standing = Standing(self._attempts)
        self._waking = Waking(server, keys, self.clock, self.entropy.split("wakeups"), self._standing)
        self._waking.outage = self.outage
        self._attempts.passing = self._waking.passing
        self._fitness = Fitness(self.address, self.clock)
        self._blocking = Blocking(server, self._enqueue_elsewhere, Fitness(self.address, self.clock))
        server.on_reset = self._waking.everybody_looks

    async def _check_rights(self) -> None:
        """No scripts, or a user that may not call them: found out now and not at the first job."""
        try:
            await self._server.run("get", [self._keys.data], "", "", writes=False)
        except DriverMisbehaved as error:
            raise StoreRefused(f"the server runs no scripts: {error}") from error
        except StoreRefused as error:
            raise StoreRefused(
                f"{error}; the user needs EVALSHA, SCRIPT LOAD and the data commands on the keys "
                f"{{{self._keys.namespace}}}:*"
            ) from error

    def _fresh_epoch(self) -> bytes:
        return self.entropy.token().encode()

    async def do_close(self) -> None:
        await self._waking.close()
        await self._server.close()
        await asyncio.to_thread(self._blocking.close)

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        await self._fitness.check_on(self._server)
        return await self._entering.enqueue(jobs, now)

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        return self._blocking.enqueue(jobs, now)

    async def _enqueue_elsewhere(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        """In an event loop that is not this handle's: with a connection of its own."""
        server = Server(self.address, self._keys, self._fresh_epoch)
        try:
            await server.open()
            await server.adopt_epoch()
            entering = Entering(server, self._keys, Books(server, self._keys))
            return await entering.enqueue_with_care(jobs, now)
        finally:
            await server.close()

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> list[JobRecord]:
        await self._check_fitness()
        return await self._standing.reserve(claim, now)

    async def _check_fitness(self) -> None:
        try:
            await self._fitness.check_on(self._server)
        except StoreRefused:
            await self._standing.withdraw()
            raise

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        return await self._attempts.extend(leases, lease_for, progress, now)

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        answers, _ = await self._attempts.exchange(settlements, None, now)
        return answers

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        try:
            await self._check_fitness()
        except StoreRefused as error:
            return Exchanged(await self.do_settle(settlements, now), [], error)
        return await self._standing.exchange(settlements, claim, now)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._attempts.reclaim(limit, now)

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        queues = await self._books.queue_names()
        return int(
            await self._server.run("promote", self._keys.for_promote(queues), stated(now), limit, *queues)
        )

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        keys = [self._keys.data, self._keys.idempotency_ends]
        queues = await self._books.queue_names()
        for queue in queues:
            own = self._keys.queue(queue)
            keys += (own.list, own.done)
        return int(await self._server.run("prune", keys, stated(now), limit, *queues))

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        return await self._control.cancel(ids, now)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return await self._control.cancel_waiting(queue, key, now)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        return await self._control.requeue(ids, edit, reset_counts, run_at, delay, now)

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        return await self._control.delete(ids, now)

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        return await self._presence.configure(settings)

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        return await self._control.speculate(job_id, head_start, now)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._looking.get(ids, now)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._looking.get(ids, now, payloads=False)

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        return await self._looking.find(query, now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        return await self._looking.count(queues, now)

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        return await self._looking.queues(now)

    async def do_info(self) -> DriverInfo:
        seen = await health.look(self._server)
        return DriverInfo(
            driver="redis",
            store=f"{seen.product} {seen.version}",
            location=self.address.shown,
            durability=seen.durability,
            schema="1",
            at=seen.at,
            details=seen.details,
        )

    async def stored_bytes(self) -> int:
        """What this harbor takes of the server's memory; an estimate by samples where it is large."""
        keys = [self._keys.data]
        for queue in await self._books.queue_names():
            keys += self._keys.queue(queue)
        commands = [("MEMORY", "USAGE", key, "SAMPLES", _SAMPLES) for key in keys]
        return sum(found or 0 for found in await self._server.together(commands))

    # ------------------------------------------------------------------ presence

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        await self._presence.report(report, samples, ttl, now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        return await self._presence.forget(worker_id, now)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        return await self._presence.workers(now)

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        return await self._presence.types()

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        return await self._presence.hold(role, holder, ttl, now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        return await self._presence.release(role, holder, now)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self._waking.listen(queues, worker_id)

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        return await self._presence.put(schedule, now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        return await self._presence.advance(name, tick, fired, now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return await self._presence.delete(name)

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        return await self._presence.schedules()
