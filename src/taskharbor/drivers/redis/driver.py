"""RedisDriver: many machines on one Redis or Valkey, at memory speed.

The hot verbs (enqueue, exchange, extend) are one script each. The rarer ones read a snapshot of the
jobs they touch, let `drivers/lifecycle.py` decide, and write if nothing has changed since:
see optimistic.py and unit_of_work.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.families import CALL_LIMIT
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Noted,
    Promoted,
    Reclaimed,
    Resolution,
    Resolved,
    Settled,
    Wakeups,
)
from taskharbor.drivers.redis import health
from taskharbor.drivers.redis.address import Address, address_of
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.blocking import Blocking
from taskharbor.drivers.redis.cluster.driver import ClusterDriver
from taskharbor.drivers.redis.control import Control
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.enqueue import Enqueuer
from taskharbor.drivers.redis.eviction import EvictionGuard
from taskharbor.drivers.redis.families import Families
from taskharbor.drivers.redis.keys import Keys, ids_in
from taskharbor.drivers.redis.logbook import Logbook
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.parked_claim import ParkedClaims
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.queries import Queries
from taskharbor.drivers.redis.registry import Registry
from taskharbor.drivers.redis.wakeups import WakeupListener
from taskharbor.errors import (
    BrokenBond,
    ConflictError,
    DriverMisbehaved,
    JobNotFound,
    LeaseLost,
    StoreRefused,
)
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import Lease, NewJob, Note, Progress
from taskharbor.model.settlement import Settlement

log = logging.getLogger("taskharbor.drivers.redis")

_SAMPLES = 1000

_CAPABILITIES = Capabilities(
    wakeups=True,
    multiprocess=True,
    durable=True,
    blocking_enqueue=True,
    remote=True,
    atomic_across_queues=True,
    logbook=True,
    workflows=True,
)


class RedisDriver(Control, Queries, Registry, Logbook, Driver):
    """A store in one namespace of a Redis or Valkey server."""

    def __init__(
        self, address: Address, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self.address = address
        self.keys = Keys(address.namespace)

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

    async def do_open(self) -> None:
        self._make_parts(Primary(self.address, self.keys, self._fresh_epoch))
        self.primary.only_looks = self.only_looks
        try:
            await self.primary.open()
            seen = await health.look(self.primary)
            health.check(seen, self.address)
            await self._check_rights()
            await self.primary.adopt_epoch()
        except BaseException:
            await self.primary.close()
            raise
        self.capabilities = replace(self.capabilities, durable=seen.durability != "D0")
        if not self.only_looks:  # a read-only open shows it in `info`, or has nothing to lose
            health.advise(seen, self.address)

    def _make_parts(self, primary: Primary) -> None:
        keys = self.keys
        self.primary = primary
        self.steps = OptimisticStep(primary, keys)
        self._enqueuer = Enqueuer(primary, keys, self.steps)
        self._families = Families(self.steps)
        self._attempts = Attempts(primary, keys, self.steps, self.entropy, self.orphans, self._families)
        self._parked_claims = ParkedClaims(self._attempts)
        self._wakeups = WakeupListener(
            primary, keys, self.clock, self.entropy.split("wakeups"), self._parked_claims
        )
        self._wakeups.outage = self.outage
        self._attempts.forwarder = self._wakeups.forwarder
        self._eviction_guard = EvictionGuard(self.address, self.clock)
        self._blocking = Blocking(primary, self._enqueue_elsewhere, EvictionGuard(self.address, self.clock))
        primary.on_reset = self._wakeups.wake_all

    async def _check_rights(self) -> None:
        """Check at open that scripts may run, not at the first job."""
        try:
            await self.primary.run("get", [self.keys.data], "", "", writes=False)
        except DriverMisbehaved as error:
            raise StoreRefused(f"the server runs no scripts: {error}") from error
        except StoreRefused as error:
            raise StoreRefused(
                f"{error}; the user needs EVALSHA, SCRIPT LOAD and the data commands on the keys "
                f"{{{self.keys.namespace}}}:*"
            ) from error

    def _fresh_epoch(self) -> bytes:
        return self.entropy.token().encode()

    async def do_close(self) -> None:
        await self._wakeups.close()
        await self.primary.close()
        await asyncio.to_thread(self._blocking.close)

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        if self._may_evict():
            await self._eviction_guard.check_on(self.primary)
        return await self._enqueuer.enqueue(jobs, now)

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        if self._may_evict():
            await self._eviction_guard.check_on(self.primary)
        return await self._families.enqueue(jobs, by, now)

    async def do_resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        return await self._families.resolve(items, now)

    async def do_note(
        self, notes: Sequence[Note], now: datetime | None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        return await self._families.note(notes, now)

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        return self._blocking.enqueue(jobs, now)

    async def _enqueue_elsewhere(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        """In an event loop other than this handle's: with a connection of its own."""
        primary = Primary(self.address, self.keys, self._fresh_epoch)
        try:
            await primary.open()
            await primary.adopt_epoch()
            steps = OptimisticStep(primary, self.keys)
            if any(job.bonds is not None for job in jobs):
                return await Families(steps).enqueue(jobs, None, now)
            return await Enqueuer(primary, self.keys, steps).enqueue_with_care(jobs, now)
        finally:
            await primary.close()

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        await self._check_eviction()
        return await self._parked_claims.reserve(claim, now)

    async def _check_eviction(self) -> None:
        if not self._may_evict():
            return
        try:
            await self._eviction_guard.check_on(self.primary)
        except StoreRefused:
            await self._parked_claims.withdraw()
            raise

    def _may_evict(self) -> bool:
        """True if the server evicts, or must be asked again."""
        guard = self._eviction_guard
        return guard.refusal is not None or self.clock.monotonic() >= guard.next_look

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
        return (await self._attempts.exchange(settlements, None, now)).settled

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        try:
            await self._check_eviction()
        except StoreRefused as error:
            return Exchanged(await self.do_settle(settlements, now), [], error)
        return await self._parked_claims.exchange(settlements, claim, now)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._attempts.reclaim(limit, now)

    async def do_promote(self, limit: int, now: datetime | None) -> Promoted:
        queues = await self.steps.queue_names()
        swept = await self._families.sweep(now, limit)
        keys = self.keys.for_promote(queues)
        moved = int(await self.primary.run("promote", keys, now_arg(now), limit, *queues))
        return Promoted(swept + moved, self._families.take_unreported())

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        keys = [self.keys.data, self.keys.idempotency_ends]
        queues = await self.steps.queue_names()
        for queue in queues:
            own = self.keys.queue(queue)
            keys += (own.list, own.done)
        await self.prune_log(limit, now)
        pruned, of_families = await self.primary.run("prune", keys, now_arg(now), limit, *queues)
        return int(pruned) + await self._families.prune(ids_in(of_families), limit - int(pruned), now)

    # ------------------------------------------------------------------ the store and wake-ups

    async def do_info(self) -> DriverInfo:
        seen = await health.look(self.primary)
        return DriverInfo(
            driver="redis",
            store=f"{seen.product} {seen.version}",
            location=self.address.shown,
            durability=seen.durability,
            schema="1",
            at=seen.at,
            details=seen.details,
            owed=min(int(await self.primary.command("ZCARD", self.keys.owed)), CALL_LIMIT),
        )

    async def stored_bytes(self) -> int:
        """The memory this harbor uses on the server; estimated by samples where it is large."""
        keys = [self.keys.data, self.keys.relatives]
        for queue in await self.steps.queue_names():
            keys += self.keys.queue(queue)
        commands = [("MEMORY", "USAGE", key, "SAMPLES", _SAMPLES) for key in keys]
        return sum(found or 0 for found in await self.primary.together(commands))

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        await self._wakeups.ring(queues)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self._wakeups.listen(queues, worker_id)
