"""All queues of a harbor on a cluster, and which of them holds an id or a lease."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.cluster.queue_store import HarborSlot, QueueStore, posted_job
from taskharbor.drivers.redis.connection import Connections
from taskharbor.errors import DriverUnavailable, JobNotInflight, LeaseLost, TaskHarborError
from taskharbor.model.checks import is_id
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import Lease

_T = TypeVar("_T")

_CLAIMS_REMEMBERED = 10_000


class QueueStores:
    """The queues that this handle uses, each opened on first use."""

    def __init__(self, address: Address, clock: Clock, entropy: Entropy, orphans: Orphans) -> None:
        self.address = address
        self.clock = clock
        self.entropy = entropy
        self._orphans = orphans
        self.only_looks = False
        self.has_post = False  # there are jobs in an outbox
        self._shared = Connections()
        self._stores: dict[str, QueueStore] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._spread: set[tuple[str, bytes, str, bytes]] = set()  # queue and home, with their epochs
        self._homes: OrderedDict[str, str] = OrderedDict()  # by the token of a claim
        self.harbor = HarborSlot(address, self._shared, clock, entropy.split("home"), orphans)
        self.outage = self.harbor.wakeups.outage

    @property
    def met(self) -> list[QueueStore]:
        return list(self._stores.values())

    async def close(self) -> None:
        for wakeups in (self.harbor.wakeups, *(store.wakeups for store in self.met)):
            await wakeups.close()
        opening = [task for task in self._opening.values() if not task.done()]
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        for primary in (self.harbor.primary, *(store.primary for store in self.met)):
            await primary.close()
        self._shared.close()

    async def of(self, queue: str) -> QueueStore:
        store = self._stores.get(queue)
        if store is None:
            store = self._stores[queue] = QueueStore(
                queue,
                self.harbor,
                self.address,
                self._shared,
                self.clock,
                self.entropy.split(queue),
                self._note_post,
                self.ring,
                self._orphans,
            )
            store.primary.only_looks = self.only_looks
            store.wakeups.outage = self.outage
            self._opening[queue] = asyncio.create_task(store.open())
        opening = self._opening.get(queue)
        if opening is not None:
            try:
                await asyncio.shield(opening)
            except BaseException:
                if opening.done():
                    self._stores.pop(queue, None)
                    self._opening.pop(queue, None)
                raise
            self._opening.pop(queue, None)
        return store

    async def all(self) -> list[QueueStore]:
        names = await self.harbor.steps.queue_names()
        return [await self.of(name) for name in names]

    def _note_post(self) -> None:
        self.has_post = True

    async def deliver(self, now: datetime | None, *, everywhere: bool = False) -> None:
        """Deliver the jobs in the outboxes; `everywhere`: also those that a dead process left.

        Those that a server which is away has or should get stay there for the next call or sweep.
        """
        if not (self.has_post or everywhere):
            return
        self.has_post = False
        for store in await self.all() if everywhere else self.met:
            try:
                await self._deliver_from(store, now)
            except DriverUnavailable:
                self.has_post = True

    async def _deliver_from(self, store: QueueStore, now: datetime | None) -> None:
        for packed in await store.posted():
            job = posted_job(packed)
            await (await self.of(job.queue)).receive(job, now)
            await store.forget_post(packed)

    async def ring(self, queues: Iterable[str]) -> None:
        """Wake a worker of each of these queues. Polling finds what nobody is woken for."""
        for queue in queues:
            with suppress(TaskHarborError):
                await (await self.of(queue)).wakeups.ring((queue,))

    # ------------------------------------------------------------------ queues with parts in other slots

    async def spread(self, queue: str, home: QueueStore) -> None:
        """Let this queue have a part in the slot of another, before the first job is stored there."""
        own = await self.of(queue)
        name = (queue, own.primary.epoch, home.queue, home.primary.epoch)
        if name not in self._spread:
            await own.register()
            await own.add_part(home)
            self._spread.add(name)

    async def sources(self, queue: str) -> list[QueueStore]:
        """The slots with jobs of this queue that the handle knows and can reach: its own first."""
        sources = [await self.of(queue)]
        for home in sources[0].parts:
            with suppress(DriverUnavailable):
                sources.append(await self.of(home))
        return sources

    async def all_sources(self, queue: str) -> list[QueueStore]:
        """The slots with jobs of this queue, all of them."""
        own = await self.of(queue)
        return [own, *[await self.of(home) for home in await own.look_for_parts()]]

    async def all_queues(self) -> list[tuple[QueueStore, list[str]]]:
        """Every slot, with the queues that have jobs there."""
        stores = await self.all()
        return list(zip(stores, await asyncio.gather(*(store.names() for store in stores)), strict=True))

    async def heal_parts(self, slots: Iterable[tuple[QueueStore, Iterable[str]]]) -> None:
        """Name to queues the parts that they do not know: the slot was emptied after the part was added."""
        for home, names in slots:
            for queue in names:
                if queue != home.queue:
                    await (await self.of(queue)).add_part(home)

    def remember_claim(self, token: str, home: QueueStore) -> None:
        """The jobs of this claim are in another slot than their queue."""
        self._homes[token] = home.queue
        if len(self._homes) > _CLAIMS_REMEMBERED:
            self._homes.popitem(last=False)

    def slot_of(self, lease: Lease) -> str | None:
        """The queue whose slot has the job of a lease, as far as this handle knows."""
        return self._homes.get(lease.token, lease.queue)

    # ------------------------------------------------------------------ which queue

    async def where(self, ids: Sequence[str]) -> dict[str, QueueStore]:
        """The queue of each id that exists."""
        if not ids:
            return {}
        stores = await self.all()
        answers = await asyncio.gather(*(store.holds(ids) for store in stores))
        return {
            job_id: store
            for store, held in zip(stores, answers, strict=True)
            for job_id, is_there in zip(ids, held, strict=True)
            if is_there
        }

    async def by_id(
        self, ids: Sequence[str], ask: Callable[[Any, list[str]], Awaitable[Sequence[_T]]]
    ) -> list[_T]:
        """Ask the queue of each id; the harbor's slot answers for unknown ids."""
        where = await self.where(ids)
        groups: dict[Any, list[int]] = {}
        for place, job_id in enumerate(ids):
            groups.setdefault(where.get(job_id, self.harbor), []).append(place)
        answers: dict[int, _T] = {}
        for store, places in groups.items():
            answers |= zip(places, await ask(store, [ids[place] for place in places]), strict=True)
        return [answers[place] for place in range(len(ids))]

    async def by_queue(
        self,
        leases: Sequence[Lease],
        ask: Callable[[QueueStore, list[int]], Awaitable[Sequence[_T | LeaseLost]]],
    ) -> list[_T | LeaseLost]:
        """Ask the slot that each lease leads to; if it does not know the job, ask the one that does."""
        answers: dict[int, _T | LeaseLost] = {
            place: JobNotInflight(lease.job_id)
            for place, lease in enumerate(leases)
            if not is_id(lease.job_id)
        }
        known = [lease for place, lease in enumerate(leases) if place not in answers]
        unnamed = await self.where([lease.job_id for lease in known if self.slot_of(lease) is None])
        groups: dict[str, list[int]] = {}
        for place, lease in enumerate(leases):
            if place in answers:
                continue
            if (slot := self.slot_of(lease)) is not None:
                groups.setdefault(slot, []).append(place)
            elif lease.job_id in unnamed:
                groups.setdefault(unnamed[lease.job_id].queue, []).append(place)
            else:
                answers[place] = JobNotInflight(lease.job_id)
        for queue, places in groups.items():
            answers |= zip(places, await ask(await self.of(queue), places), strict=True)
        lost = [p for places in groups.values() for p in places if isinstance(answers[p], JobNotInflight)]
        where = await self.where([leases[place].job_id for place in lost])
        for place in lost:
            store = where.get(leases[place].job_id)
            if store is not None and self.slot_of(leases[place]) not in (None, store.queue):
                [answers[place]] = await ask(store, [place])
        return [answers[place] for place in range(len(leases))]
