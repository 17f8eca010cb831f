"""Enqueue on a cluster: queue by queue, each in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.lifecycle import never_admitted
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.redis.cluster.gates import EnqueueBudget, HarborGates
from taskharbor.drivers.redis.cluster.queue_store import HarborSlot, QueueStore
from taskharbor.drivers.redis.cluster.queue_stores import QueueStores
from taskharbor.errors import DriverUnavailable, RateLimited
from taskharbor.model.job import NewJob
from taskharbor.model.queue import EVERY_QUEUE


class ClusterEnqueuer:
    """The enqueue verb of one handle on a cluster."""

    def __init__(self, stores: QueueStores, gates: HarborGates) -> None:
        self._stores = stores
        self._harbor = stores.harbor
        self._gates = gates

    async def enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        answers: dict[int, Enqueued] = {}
        elsewhere = await self._known_elsewhere(jobs)
        groups: dict[str, list[int]] = {}
        first_queue: dict[str, str] = {}
        duplicates: dict[int, QueueStore] = {}
        for place, job in enumerate(jobs):
            if (store := elsewhere.get((job.id, job.queue))) is not None:
                duplicates[place] = store
            elif (queue := first_queue.setdefault(job.id, job.queue)) != job.queue:
                duplicates[place] = await self._stores.of(
                    queue
                )  # an earlier job of this call has the same id
            else:
                groups.setdefault(job.queue, []).append(place)
        spent = await self._admit([jobs[place] for places in groups.values() for place in places], now)
        try:
            for queue, places in groups.items():
                store = await self._stores.of(queue)
                await store.register()
                some = [jobs[place] for place in places]
                first_seq = await self._harbor.take_seqs(len(some))
                answers |= zip(places, await store.enqueuer.enqueue(some, now, first_seq), strict=True)
        except RateLimited:
            await self._refund(spent, now)
            raise
        for place, store in duplicates.items():
            answers[place] = await self._duplicate(jobs[place], store, now)
        return [answers[place] for place in range(len(jobs))]

    async def _known_elsewhere(self, jobs: Sequence[NewJob]) -> dict[tuple[str, str], QueueStore]:
        """Jobs whose id exists in another queue than theirs, and that queue."""
        where = await self._stores.where([job.id for job in jobs])
        return {
            (job.id, job.queue): store
            for job in jobs
            if (store := where.get(job.id)) is not None and store.queue != job.queue
        }

    async def _duplicate(self, job: NewJob, store: QueueStore, now: datetime | None) -> Enqueued:
        """The answer for a job that another queue already has."""
        [record] = await store.do_get([job.id], now)
        at = now or await self._harbor.time()
        if record is None:  # just pruned
            return Enqueued(job.id, EnqueueResult.DUPLICATE, at, 0)
        return Enqueued(record.id, EnqueueResult.DUPLICATE, at, record.version)

    async def _admit(self, jobs: Sequence[NewJob], now: datetime | None) -> tuple[Any, int] | None:
        """Spend the harbor's enqueue rate for the new ones among these jobs."""
        rate = (await self._gates.rules()).enqueue_rate if jobs else None
        if rate is None:
            return None
        new = await self._new_among(jobs, now or await self._harbor.time())
        count = new.total()
        limits = {queue: await (await self._stores.of(queue)).enqueue_rate() for queue in new}
        for name, one, many in [
            *((queue, limits[queue], new[queue]) for queue in new),
            (EVERY_QUEUE, rate, count),
        ]:
            if one is not None and many > one.count:
                raise never_admitted(name, one, many)
        wait = (
            await self._gates.rate(self._harbor.keys.enqueue_rate, rate, "admit", count, now) if count else 0
        )
        if wait:
            raise RateLimited(EVERY_QUEUE, timedelta(microseconds=wait))
        return rate, count

    async def _new_among(self, jobs: Sequence[NewJob], at: datetime) -> Counter[str]:
        """How many of these jobs are new, by id and by idempotency key."""
        count: Counter[str] = Counter()
        for queue in dict.fromkeys(job.queue for job in jobs):
            store = await self._stores.of(queue)
            mine = [job for job in jobs if job.queue == queue]
            names = dict.fromkeys((job.id, job.idempotency_key) for job in mine)
            fresh: set[Any] = set()
            for job_id, key in names:
                is_known = key is not None and await store.remembers(key, at)
                if not is_known and not (await store.holds([job_id]))[0]:
                    fresh.add(job_id if key is None else key)
            count[queue] = len(fresh)
        return count

    # ------------------------------------------------------------------ families

    @asynccontextmanager
    async def admitted_elsewhere(
        self, home: QueueStore, jobs: Sequence[NewJob], now: datetime | None
    ) -> AsyncIterator[None]:
        """Spend the enqueue rates that the slot of these jobs does not have: of the harbor, of other queues.

        They are given back if nothing is stored. The slot spends that of its own queue itself.
        """
        spent: list[EnqueueBudget] = []
        try:
            for budget in await self._budgets(home, jobs, now):
                wait = await self._gates.spend_or_wait(budget, now)
                if wait:
                    raise RateLimited(budget.queue, timedelta(microseconds=wait))
                spent.append(budget)
            yield
        except Exception as error:
            if not isinstance(error, DriverUnavailable) or error.done is False:
                for budget in spent:
                    await self._gates.give_back(budget, now)
            raise

    async def _budgets(
        self, home: QueueStore, jobs: Sequence[NewJob], now: datetime | None
    ) -> list[EnqueueBudget]:
        """What these jobs cost elsewhere. Raises what no waiting can help."""
        harbor = self._harbor
        others = [await self._stores.of(queue) for queue in {job.queue for job in jobs} - {home.queue}]
        rates = {store.queue: await store.enqueue_rate() for store in others}
        rates[EVERY_QUEUE] = (await self._gates.rules()).enqueue_rate
        if not any(rates.values()):
            return []
        new = Counter(job.queue for job in await self._new_in(home, jobs, now or await harbor.time()))
        slots: list[tuple[HarborSlot | QueueStore, str, str]] = [
            (store, store.queue, store.keys.queue(store.queue).enqueue_rate) for store in others
        ]
        slots.append((harbor, EVERY_QUEUE, harbor.keys.enqueue_rate))
        budgets = [
            EnqueueBudget(slot, queue, key, rate, amount)
            for slot, queue, key in slots
            if (rate := rates[queue]) is not None
            and (amount := new.total() if queue == EVERY_QUEUE else new[queue])
        ]
        for budget in budgets:
            if budget.amount > budget.rate.count:
                raise never_admitted(budget.queue, budget.rate, budget.amount)
        return budgets

    async def _new_in(self, home: QueueStore, jobs: Sequence[NewJob], at: datetime) -> list[NewJob]:
        """Those that spend a rate: as `Arrival.check`, new and done by a worker."""
        held = dict(zip((job.id for job in jobs), await home.holds([job.id for job in jobs]), strict=True))
        known = {job_id for job_id, is_there in held.items() if is_there}
        new: dict[str, NewJob] = {}
        for job in jobs:
            key, bonds = job.idempotency_key, job.bonds
            if (key is not None and await home.remembers(key, at)) or (bonds and bonds.parent in known):
                known.add(job.id)
            if job.id not in known and (bonds is None or bonds.done_by == "worker"):
                new[job.id] = job
        return list(new.values())

    async def _refund(self, spent: tuple[Any, int] | None, now: datetime | None) -> None:
        if spent is not None and spent[1]:
            await self._gates.rate(self._harbor.keys.enqueue_rate, spent[0], "refund", spent[1], now)
