"""All queues of a harbor on a cluster, and which of them an id or a lease belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from taskharbor.drivers.given_up import GivenUps
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.cluster.part import Home, Part
from taskharbor.drivers.redis.link import Links
from taskharbor.drivers.redis.packing import is_id
from taskharbor.errors import JobNotInflight, LeaseLost
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import Lease

_T = TypeVar("_T")


class Parts:
    """The queues that this handle has met, each opened when it is first needed."""

    def __init__(
        self, address: Address, clock: Clock, entropy: Entropy, given_up: GivenUps, orphans: Orphans
    ) -> None:
        self.address = address
        self.clock = clock
        self.entropy = entropy
        self._given_up = given_up
        self._orphans = orphans
        self.makes_epochs = True  # False: look only
        self.has_post = False  # something lies in an outbox
        self._shared = Links()
        self._parts: dict[str, Part] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self.home = Home(address, self._shared, clock, entropy.split("home"), orphans)
        self.outage = self.home.waking.outage

    @property
    def met(self) -> list[Part]:
        return list(self._parts.values())

    async def close(self) -> None:
        for waking in (self.home.waking, *(part.waking for part in self.met)):
            await waking.close()
        opening = [task for task in self._opening.values() if not task.done()]
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        for server in (self.home.server, *(part.server for part in self.met)):
            await server.close()
        self._shared.close()

    async def part(self, queue: str) -> Part:
        part = self._parts.get(queue)
        if part is None:
            part = self._parts[queue] = Part(
                queue,
                self.home,
                self.address,
                self._shared,
                self.clock,
                self.entropy.split(queue),
                self._note_post,
                self._given_up,
                self._orphans,
            )
            part.server.makes_epoch = self.makes_epochs
            part.waking.outage = self.outage
            self._opening[queue] = asyncio.create_task(part.open())
        opening = self._opening.get(queue)
        if opening is not None:
            try:
                await asyncio.shield(opening)
            except BaseException:
                if opening.done():
                    self._parts.pop(queue, None)
                    self._opening.pop(queue, None)
                raise
            self._opening.pop(queue, None)
        return part

    async def all(self) -> list[Part]:
        names = await self.home.books.queue_names()
        return [await self.part(name) for name in names]

    def _note_post(self) -> None:
        self.has_post = True

    # ------------------------------------------------------------------ which queue

    async def where(self, ids: Sequence[str]) -> dict[str, Part]:
        """The queue of each id that is known."""
        if not ids:
            return {}
        parts = await self.all()
        answers = await asyncio.gather(*(part.holds(ids) for part in parts))
        return {
            job_id: part
            for part, held in zip(parts, answers, strict=True)
            for job_id, is_there in zip(ids, held, strict=True)
            if is_there
        }

    async def by_id(
        self, ids: Sequence[str], ask: Callable[[Any, list[str]], Awaitable[Sequence[_T]]]
    ) -> list[_T]:
        """Ask the queue of each id; the home answers for those that nobody knows."""
        where = await self.where(ids)
        groups: dict[Any, list[int]] = {}
        for place, job_id in enumerate(ids):
            groups.setdefault(where.get(job_id, self.home), []).append(place)
        answers: dict[int, _T] = {}
        for part, places in groups.items():
            answers |= zip(places, await ask(part, [ids[place] for place in places]), strict=True)
        return [answers[place] for place in range(len(ids))]

    async def by_queue(
        self, leases: Sequence[Lease], ask: Callable[[Part, list[int]], Awaitable[Sequence[_T | LeaseLost]]]
    ) -> list[_T | LeaseLost]:
        """Ask the queue that each lease names, and where that does not know it, the one that does."""
        answers: dict[int, _T | LeaseLost] = {
            place: JobNotInflight(lease.job_id)
            for place, lease in enumerate(leases)
            if not is_id(lease.job_id)
        }
        known = [lease for place, lease in enumerate(leases) if place not in answers]
        unnamed = await self.where([lease.job_id for lease in known if lease.queue is None])
        groups: dict[str, list[int]] = {}
        for place, lease in enumerate(leases):
            if place in answers:
                continue
            if lease.queue is not None:
                groups.setdefault(lease.queue, []).append(place)
            elif lease.job_id in unnamed:
                groups.setdefault(unnamed[lease.job_id].queue, []).append(place)
            else:
                answers[place] = JobNotInflight(lease.job_id)
        for queue, places in groups.items():
            answers |= zip(places, await ask(await self.part(queue), places), strict=True)
        lost = [p for places in groups.values() for p in places if isinstance(answers[p], JobNotInflight)]
        where = await self.where([leases[place].job_id for place in lost])
        for place in lost:
            part, lease = where.get(leases[place].job_id), leases[place]
            if part is not None and lease.queue not in (None, part.queue):
                [answers[place]] = await ask(part, [place])
        return [answers[place] for place in range(len(leases))]
