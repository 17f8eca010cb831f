"""One queue of a harbor on a cluster: a small store in a slot of its own.

It has the keys of a store on one server, under the tag {namespace:queue}. Harbor-wide data (seqs, queue
names, settings under `*`, workers) is under {namespace}, in the harbor's slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.connection import Connections
from taskharbor.drivers.redis.control import Control
from taskharbor.drivers.redis.enqueue import Enqueuer
from taskharbor.drivers.redis.eviction import EvictionGuard
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.queries import Queries
from taskharbor.drivers.redis.registry import Registry
from taskharbor.drivers.redis.settings_codec import rules_bytes, rules_in
from taskharbor.drivers.redis.snapshot import ask_for_job, memory_in, scoped
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.drivers.redis.wakeups import WakeupListener
from taskharbor.model.clock import Clock, instant, micros
from taskharbor.model.entropy import Entropy, id_bytes
from taskharbor.model.job import NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules
from taskharbor.model.transitions import new_record

_NO_LIMIT = 1_000_000


class HarborSlot(Control, Queries):
    """The slot of harbor-wide data."""

    def __init__(
        self, address: Address, shared: Connections, clock: Clock, entropy: Entropy, orphans: Orphans
    ) -> None:
        self.keys = Keys(address.namespace)
        self.primary = Primary(address, self.keys, lambda: entropy.token().encode(), shared)
        self.steps = OptimisticStep(self.primary, self.keys)
        self.orphans = orphans
        self.wakeups = WakeupListener(self.primary, self.keys, clock, entropy.split("home"))

    async def open(self) -> None:
        await self.primary.open()
        await self.primary.adopt_epoch()

    async def time(self) -> datetime:
        """The time on the server of this slot."""
        seconds, micro = await self.primary.command("TIME")
        return instant(int(seconds) * 1_000_000 + int(micro))

    async def take_seqs(self, count: int) -> int:
        """Issue new seqs, unique in the harbor; returns the first of them."""
        last = await self.primary.command("HINCRBY", self.keys.data, "n", count, writes=True)
        return int(last) - count + 1

    async def notify_cancels(self, cancel_wakeups: Sequence[tuple[str, str]]) -> None:
        """Send the wake-ups of cancels to workers."""
        for worker, job_id in cancel_wakeups:
            key = self.keys.inbox(worker)
            await self.primary.together([("RPUSH", key, job_id), ("EXPIRE", key, 3600)], writes=True)


class QueueStore(Control, Queries, Registry):
    """One queue."""

    def __init__(
        self,
        queue: str,
        harbor: HarborSlot,
        address: Address,
        shared: Connections,
        clock: Clock,
        entropy: Entropy,
        on_posted: Callable[[], None],
        orphans: Orphans,
    ) -> None:
        self.queue = queue
        self.keys = Keys(f"{address.namespace}:{queue}")
        self._harbor = harbor
        self._on_posted = on_posted
        self.primary = Primary(address, self.keys, lambda: entropy.token().encode(), shared)
        self.steps = OptimisticStep(self.primary, self.keys, self)
        self.enqueuer = Enqueuer(self.primary, self.keys, self.steps)
        self.attempts = Attempts(self.primary, self.keys, self.steps, entropy, orphans, is_one_queue=True)
        self.counted = Attempts(self.primary, self.keys, self.steps, entropy, orphans, is_one_queue=True)
        self.counted.is_counted = True  # for claims under the lock of the harbor's limits
        self.orphans = orphans
        self.wakeups = WakeupListener(self.primary, self.keys, clock, entropy.split(queue))
        self.attempts.forwarder = self.counted.forwarder = self.wakeups.forwarder
        self.eviction_guard = EvictionGuard(address, clock)
        self.is_registered = False

    async def open(self) -> None:
        await self.primary.open()
        await self.primary.adopt_epoch()

    # ------------------------------------------------------------------ abroad

    async def take_seqs(self, count: int) -> int:
        return await self._harbor.take_seqs(count)

    async def send(
        self, cancel_wakeups: Sequence[tuple[str, str]], posted: bool, now: datetime | None
    ) -> None:
        await self._harbor.notify_cancels(cancel_wakeups)
        if posted:
            self._on_posted()

    # ------------------------------------------------------------------ small things

    async def register(self) -> None:
        """Register this queue before its first job, and copy the harbor's settings to it."""
        if self.is_registered:
            return
        harbor = self._harbor
        _, rules = await harbor.primary.together(
            [("SADD", harbor.keys.queues, self.queue), ("HGET", harbor.keys.data, "R*")],
            writes=True,
        )
        await self.take_rules(None if rules is None else rules_bytes(for_queue_stores(rules_in(rules))))
        self.is_registered = True

    async def take_rules(self, rules: bytes | None) -> None:
        """Store the harbor's settings in this queue."""
        if rules is not None:
            await self.primary.command("HSET", self.keys.data, "R*", rules, writes=True)
            self.steps.forget_rules()

    async def enqueue_rate(self) -> RateLimit | None:
        return rules_in(await self.primary.command("HGET", self.keys.data, f"R{self.queue}")).enqueue_rate

    async def holds(self, ids: Sequence[str]) -> list[bool]:
        """Which of these ids this queue has."""
        fields = [b"h" + id_bytes(job_id) for job_id in ids]
        return [head is not None for head in await self.primary.command("HMGET", self.keys.data, *fields)]

    async def remembers(self, key: bytes, at: datetime) -> bool:
        """True if this idempotency key still leads to a job."""
        entry = await self.primary.command("HGET", self.keys.data, b"i" + scoped(self.queue, key))
        if entry is None:
            return False
        _, ends = memory_in(entry)
        return not ends or ends > micros(at)

    async def posted(self) -> list[bytes]:
        """Jobs in the outbox that were not delivered yet."""
        found: list[bytes] = await self.primary.command("LRANGE", self.keys.outbox, 0, 99)
        return found

    async def forget_post(self, packed: bytes) -> None:
        await self.primary.command("LREM", self.keys.outbox, 1, packed, writes=True)

    async def receive(self, job: NewJob, now: datetime | None) -> None:
        """Store a job posted by another queue: exempt from rates, and once however often it is delivered."""
        await self.register()

        def decide(unit: UnitOfWork) -> None:
            if unit.find(job.id) is None:
                unit.put(new_record(job, unit.next_seq(), unit.now))

        await self.steps.run([ask_for_job(job.id)], decide, now, seqs=1)


def posted_job(packed: bytes) -> NewJob:
    return msgspec.msgpack.decode(packed, type=NewJob)


def for_queue_stores(rules: QueueRules) -> QueueRules:
    """The harbor's settings for one queue, which cannot count the others: any limit becomes a max_running."""
    limit = rules.max_running
    if limit is None and rules.execute_rate is not None:
        limit = _NO_LIMIT
    return replace(rules, max_running=limit, enqueue_rate=None, execute_rate=None)
