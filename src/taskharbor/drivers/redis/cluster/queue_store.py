"""One queue of a harbor on a cluster: a small store in a slot of its own.

It has the keys of a store on one server, under the tag {namespace:queue}. Harbor-wide data (seqs, queue
names, settings under `*`, workers) is under {namespace}, in the harbor's slot.

A step of a family concerns many of its jobs, so all of it is in one slot: that of the queue of its first
job. Its jobs of other queues are in sets of their own queue there (`{namespace:home}:q:queue:…`), which are a
*part* of that queue. The slot of a queue knows where its parts are, and each has a copy of its settings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.connection import Connections
from taskharbor.drivers.redis.control import Control
from taskharbor.drivers.redis.enqueue import Enqueuer
from taskharbor.drivers.redis.eviction import EvictionGuard
from taskharbor.drivers.redis.families import Families
from taskharbor.drivers.redis.family_unit import FamilyUnit
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.queries import Queries
from taskharbor.drivers.redis.registry import Registry
from taskharbor.drivers.redis.settings_codec import IS_PART, parts_in, rules_bytes, rules_in
from taskharbor.drivers.redis.snapshot import ask_for_job, memory_in, scoped
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.drivers.redis.wakeups import WakeupListener
from taskharbor.errors import TaskHarborError
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
        """Send the wake-ups of cancels to workers. A heartbeat finds what is not sent."""
        for worker, job_id in cancel_wakeups:
            key = self.keys.inbox(worker)
            with suppress(TaskHarborError):
                await self.primary.together([("RPUSH", key, job_id), ("EXPIRE", key, 3600)], writes=True)


class QueueStore(Control, Queries, Registry):
    """One queue, and the jobs of other queues that are in its slot."""

    def __init__(
        self,
        queue: str,
        harbor: HarborSlot,
        address: Address,
        shared: Connections,
        clock: Clock,
        entropy: Entropy,
        on_posted: Callable[[], None],
        ring: Callable[[Iterable[str]], Awaitable[None]],
        orphans: Orphans,
    ) -> None:
        self.queue = queue
        self.keys = Keys(f"{address.namespace}:{queue}")
        self._harbor = harbor
        self._on_posted = on_posted
        self._ring = ring
        self.primary = Primary(address, self.keys, lambda: entropy.token().encode(), shared)
        self.steps = OptimisticStep(self.primary, self.keys, self)
        self.enqueuer = Enqueuer(self.primary, self.keys, self.steps)
        self.families = Families(self.steps)
        self.attempts, self.counted = (
            Attempts(self.primary, self.keys, self.steps, entropy, orphans, self.families, is_one_queue=True)
            for _ in range(2)
        )
        self.counted.is_counted = True  # for claims under the lock of the harbor's limits
        self.orphans = orphans
        self.wakeups = WakeupListener(self.primary, self.keys, clock, entropy.split(queue))
        self.attempts.forwarder = self.counted.forwarder = self.wakeups.forwarder
        self.eviction_guard = EvictionGuard(address, clock)
        self.is_registered = False
        self.parts: list[str] = []
        """The queues in whose slots this one has a part, as far as this handle knows."""

    async def open(self) -> None:
        await self.primary.open()
        await self.primary.adopt_epoch()

    # ------------------------------------------------------------------ abroad

    async def take_seqs(self, count: int) -> int:
        return await self._harbor.take_seqs(count)

    async def send(self, unit: FamilyUnit) -> None:
        if unit.posted:
            self._on_posted()
        await self._harbor.notify_cancels(unit.cancel_wakeups)
        await self._ring(unit.woken_elsewhere)

    async def ring(self, queues: Iterable[str]) -> None:
        await self._ring(queues)

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

    async def rules(self) -> QueueRules:
        return rules_in(await self.primary.command("HGET", self.keys.data, f"R{self.queue}"))

    async def enqueue_rate(self) -> RateLimit | None:
        return (await self.rules()).enqueue_rate

    async def names(self) -> list[str]:
        """The queues with jobs in this slot."""
        return sorted({self.queue, *await self.steps.queue_names()})

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

    # ------------------------------------------------------------------ parts

    async def look_for_parts(self) -> list[str]:
        """Read where the parts of this queue are. exchange_room.lua refuses a claim that knows fewer."""
        found = await self.primary.command("HGETALL", self.keys.parts)
        numbers = {home.decode(): int(number) for home, number in zip(found[::2], found[1::2], strict=True)}
        self.parts = sorted(numbers, key=lambda home: numbers[home])
        self.attempts.parts_known = self.counted.parts_known = len(self.parts)
        return self.parts

    async def add_part(self, home: QueueStore) -> None:
        """Before the first job of this queue is stored in another slot: from now on claims look there."""
        data, name = self.keys.data, f"R{self.queue}"

        def decide(values: Sequence[bytes | None], _: datetime) -> tuple[None, list[Any]]:
            rules, is_known = values
            if is_known:
                return None, []
            number = parts_in(rules) + 1
            return None, [
                ("HSET", self.keys.parts, home.queue, number),
                ("HSET", data, name, rules_bytes(rules_in(rules), number)),
            ]

        await self._change([(data, name), (self.keys.parts, home.queue)], decide, None)
        self.steps.forget_rules()
        await self.copy_rules_to(home)

    async def copy_rules_to(self, home: QueueStore) -> None:
        """Copy the settings of this queue to a part of it, until they are the same: others may copy, too."""
        name = f"R{self.queue}"
        while True:
            packed = await self.primary.command("HGET", self.keys.data, name)
            rules = rules_bytes(for_queue_stores(rules_in(packed)), IS_PART)
            if await home.primary.command("HGET", home.keys.data, name) == rules:
                return
            await home.primary.command("HSET", home.keys.data, name, rules, writes=True)
            home.steps.forget_rules()

    # ------------------------------------------------------------------ the outbox

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
    """Settings for one slot of several, which cannot count the others: any limit becomes a max_running."""
    limit = rules.max_running
    if limit is None and rules.execute_rate is not None:
        limit = _NO_LIMIT
    return replace(rules, max_running=limit, enqueue_rate=None, execute_rate=None)
