"""Families on a cluster: all jobs of one are in the slot of its first job, whatever their queues are.

So the rules of `drivers/families.py` run in one step of one slot, as on one server, and nothing about a
family travels between slots. A queue with such jobs elsewhere has a part there, which claims look into
(queue_store.py, claims.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import Enqueued, Noted, Resolution, Resolved
from taskharbor.drivers.redis.cluster.enqueue import ClusterEnqueuer
from taskharbor.drivers.redis.cluster.queue_store import QueueStore
from taskharbor.drivers.redis.cluster.queue_stores import QueueStores
from taskharbor.errors import BrokenBond, ConflictError, JobNotFound, JobNotInflight, LeaseLost
from taskharbor.model.checks import is_id
from taskharbor.model.job import Lease, NewJob, Note


class ClusterFamilies:
    """The verbs of one handle that only jobs with bonds, a family or notes need."""

    def __init__(self, stores: QueueStores, enqueuer: ClusterEnqueuer) -> None:
        self._stores = stores
        self._enqueuer = enqueuer

    # ------------------------------------------------------------------ in

    async def enqueue(self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None) -> list[Enqueued]:
        """One step for each slot: a call with one family is stored as a whole, or not at all."""
        if by is not None and not is_id(by.job_id):
            raise JobNotInflight(by.job_id)
        names = dict.fromkeys(job.id for job in jobs)
        names |= dict.fromkeys(name for job in jobs for name in _related(job))
        if by is not None:
            names[by.job_id] = None
        stored = {name: store.queue for name, store in (await self._stores.where(list(names))).items()}
        slots = _slots_of(jobs, stored, None if by is None else by.job_id)
        groups: dict[str, list[int]] = {}
        for place, slot in enumerate(slots):
            groups.setdefault(slot, []).append(place)
        answers: dict[int, Enqueued] = {}
        for slot, places in groups.items():
            some = [jobs[place] for place in places]
            home = await self._home(slot, some)
            vouched = by if by is not None and stored.get(by.job_id, slot) == slot else None
            async with self._enqueuer.admitted_elsewhere(home, some, now):
                answers |= zip(places, await home.families.enqueue(some, vouched, now), strict=True)
        return [answers[place] for place in range(len(jobs))]

    async def _home(self, slot: str, jobs: Iterable[NewJob]) -> QueueStore:
        """The slot for these jobs, ready to take them: their queues know that they have a part there."""
        home = await self._stores.of(slot)
        await home.eviction_guard.check_on(home.primary)
        await home.register()
        for queue in dict.fromkeys(job.queue for job in jobs):
            if queue != slot:
                await self._stores.spread(queue, home)
        return home

    # ------------------------------------------------------------------ events and notes

    async def resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        names = dict.fromkeys(item.id for item in items)
        names |= dict.fromkeys(name for item in items if item.new for name in _related(item.new))
        stored = {name: store.queue for name, store in (await self._stores.where(list(names))).items()}
        answers: dict[int, Resolved | JobNotFound | ConflictError] = {}
        groups: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            if item.id in stored:
                groups.setdefault(stored[item.id], []).append(place)
            elif item.new is None:
                answers[place] = JobNotFound(item.id)
            else:
                try:
                    [slot] = _slots_of([item.new], stored, None)
                except BrokenBond as error:
                    answers[place] = error
                else:
                    groups.setdefault(slot, []).append(place)
        for slot, places in groups.items():
            some = [items[place] for place in places]
            home = await self._home(slot, [item.new for item in some if item.new is not None])
            answers |= zip(places, await home.families.resolve(some, now), strict=True)
        return [answers[place] for place in range(len(items))]

    async def note(self, notes: Sequence[Note], now: datetime | None) -> list[Noted | LeaseLost | BrokenBond]:
        async def ask(store: QueueStore, places: list[int]) -> Sequence[Any]:
            return await store.families.note([notes[place] for place in places], now)

        leases = [note.lease for note in notes if note.lease is not None]  # the contract has seen to it
        return await self._stores.by_queue(leases, ask)


def _related(job: NewJob) -> list[str]:
    """The jobs that this one names."""
    if job.bonds is None:
        return []
    parent = [] if job.bonds.parent is None else [job.bonds.parent]
    return [*parent, *job.bonds.after]


def _slots_of(jobs: Sequence[NewJob], stored: Mapping[str, str], by: str | None) -> list[str]:
    """The slot of each job, named by its queue: that of stored jobs it is related to, or of the first job.

    `stored`: the slots of jobs that are there already; `by`: the job whose lease vouches for all.
    """
    queues = {job.id: job.queue for job in reversed(jobs) if job.id not in stored}
    leader: dict[str, str] = {}  # of a new job: an earlier one of its family, or itself

    def first_of(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    order = {name: number for number, name in enumerate(dict.fromkeys(job.id for job in jobs))}
    for job in jobs:
        if job.id in queues:
            mine = first_of(leader.setdefault(job.id, job.id))
            firsts = {mine, *(first_of(name) for name in _related(job) if name in leader)}
            lead = min(firsts, key=order.__getitem__)
            leader |= dict.fromkeys(firsts, lead)
    slots: dict[str, str] = {}
    for job in jobs:
        if job.id in queues:
            names = _related(job) if by is None else [by]
            for slot in (stored[name] for name in names if name in stored):
                if slots.setdefault(first_of(job.id), slot) != slot:
                    raise BrokenBond(
                        job.id, "comes after jobs that are kept apart; give them a common parent"
                    )
    for job in jobs:
        if job.id in queues:
            slot = slots.setdefault(first_of(job.id), queues[first_of(job.id)])
            if slot != job.queue and job.idempotency_key is not None:
                raise BrokenBond(
                    job.id,
                    f"has an idempotency key, which its queue {job.queue!r} must know, and is kept with jobs "
                    f"of {slot!r}. Leave the key out, or put this job first",
                )
    return [slots[first_of(job.id)] if job.id in queues else stored[job.id] for job in jobs]
