"""Enqueue on a cluster: queue by queue, each in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.lifecycle import never_admitted
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.redis.cluster.gates import HarborGates
from taskharbor.drivers.redis.cluster.queue_store import QueueStore
from taskharbor.drivers.redis.cluster.queue_stores import QueueStores
from taskharbor.errors import RateLimited
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

    async def _refund(self, spent: tuple[Any, int] | None, now: datetime | None) -> None:
        if spent is not None and spent[1]:
            await self._gates.rate(self._harbor.keys.enqueue_rate, spent[0], "refund", spent[1], now)
