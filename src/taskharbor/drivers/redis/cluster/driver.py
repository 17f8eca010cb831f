"""ClusterDriver: a harbor whose queues are spread over the slots of a cluster.

Every queue is a store of its own (queue_store.py). This driver splits a verb by queue and merges the
answers. One call over several queues is one step per queue. No index says which queue holds an id: if a
verb does not name the queue, every queue is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Self, TypeVar

from msgspec.structs import replace

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.cursor import Place, cursor_after, place_in
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
    Settled,
    Speculated,
    Wakeups,
    given_up_in,
)
from taskharbor.drivers.redis import health
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.attempts import SWEPT_PER_CLAIM, HarborLimited
from taskharbor.drivers.redis.cluster.enqueue import ClusterEnqueuer
from taskharbor.drivers.redis.cluster.gates import HarborGates, Kept
from taskharbor.drivers.redis.cluster.queue_store import QueueStore, for_queue_stores, posted_job
from taskharbor.drivers.redis.cluster.queue_stores import QueueStores
from taskharbor.drivers.redis.cluster.wakeups import MergedSubscription
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.logbook import Logbook
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.registry import Registry
from taskharbor.drivers.redis.settings_codec import rules_bytes
from taskharbor.errors import (
    ConflictError,
    JobNotFound,
    JobNotInflight,
    LeaseLost,
    StoreRefused,
    TaskHarborError,
)
from taskharbor.model.checks import is_id
from taskharbor.model.clock import Clock
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings
from taskharbor.model.settlement import Settlement
from taskharbor.model.speculation import HeadStart

_T = TypeVar("_T")

_CAPABILITIES = Capabilities(wakeups=True, multiprocess=True, durable=True, remote=True, logbook=True)


class ClusterDriver(Registry, Logbook, Driver):
    """A store in one namespace of a cluster."""

    def __init__(
        self, address: Address, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self.address = address
        self._only_looks = False
        self._is_limited = False  # a claim has met a limit of the whole harbor

    def another(self) -> ClusterDriver:
        one = ClusterDriver(self.address, clock=self.clock, entropy=self.entropy.split("another"))
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def open_to_look(self) -> Self:
        self._only_looks = True
        return await self.open()

    async def do_open(self) -> None:
        self._stores = QueueStores(self.address, self.clock, self.entropy, self.orphans)
        self._stores.makes_epochs = self._stores.harbor.primary.makes_epoch = not self._only_looks
        self._harbor = harbor = self._stores.harbor
        self.primary, self.keys, self.steps = harbor.primary, harbor.keys, harbor.steps
        self._stores.outage = self._harbor.wakeups.outage = self.outage
        self._gates = HarborGates(self._harbor, self.clock, self.entropy.split("gates"))
        self._enqueuer = ClusterEnqueuer(self._stores, self._gates)
        try:
            await self._harbor.primary.open()
            seen = await self._look_at_nodes()
            classes = [one.durability for one in seen]
            await self._harbor.open()
        except BaseException:
            await self.do_close()
            raise
        self.capabilities = replace(self.capabilities, durable=min(classes) != "D0")
        if not self._only_looks:
            health.advise(min(seen, key=lambda one: one.durability), self.address)

    async def _look_at_nodes(self) -> list[health.Health]:
        """Check every primary: each holds some of the queues."""
        found = self._harbor.primary.found or self.address.hosts[0]
        hosts = {host for _, _, host in await self._harbor.primary.slots(found)}
        seen = []
        for host in sorted(hosts):
            address = replace(self.address, mode="single", hosts=(host,))
            primary = Primary(address, Keys(address.namespace), lambda: b"")
            await primary.open()
            try:
                seen.append(await health.look(primary))
            finally:
                await primary.close()
            health.check(seen[-1], self.address)
        return seen

    async def do_close(self) -> None:
        await self._stores.close()

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        await self._check_eviction(dict.fromkeys(job.queue for job in jobs))
        return await self._enqueuer.enqueue(jobs, now)

    async def _check_eviction(self, queues: Iterable[str]) -> None:
        for queue in queues:
            store = await self._stores.of(queue)
            await store.eviction_guard.check_on(store.primary)

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        answer = await self.do_exchange((), claim, now)
        if answer.error is not None:
            raise answer.error
        return Claimed(answer.claimed, answer.given_up)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        try:
            await self._check_eviction(claim.queues)
        except StoreRefused as error:
            return Exchanged(await self.do_settle(settlements, now) if settlements else [], [], error)
        queues = {item.lease.queue for item in settlements}
        answers: list[Settled | LeaseLost] = []
        given_up: tuple[Reclaimed, ...] = ()
        if len(claim.queues) == 1 and queues <= set(claim.queues) and not self._is_special(claim):
            store = await self._stores.of(claim.queues[0])
            try:
                answer = await store.attempts.exchange(settlements, claim, now)
            except HarborLimited as limited:
                self._is_limited, given_up = True, limited.given_up
            else:
                answers = await self._looked_elsewhere(settlements, answer.settled, now)
                if answer.error is None:
                    await self._deliver(now)
                return replace(answer, settled=answers)
            # The acks of that call are written; sent again they would look lost.
            answers = await self._settled_before(settlements, now)
        elif settlements:
            answers = await self.do_settle(settlements, now)
        try:
            await self._deliver(now)
            claimed = await self._claim(claim, now)
        except TaskHarborError as error:  # the settlements are written, whatever happened to the claim
            return Exchanged(answers, [], error, given_up)
        return Exchanged(answers, claimed.jobs, given_up=given_up + claimed.given_up)

    def _is_special(self, claim: Claim) -> bool:
        return self._is_limited or claim.rate is not None

    async def _settled_before(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        """The answers to settlements that this call has already sent once."""
        answers = await self.do_settle(settlements, now) if settlements else []
        records = await self.do_get([item.lease.job_id for item in settlements], now) if settlements else []
        at = now or await self._harbor.time()
        return [
            Settled(record.id, record.state, at, record.version)
            if isinstance(answer, LeaseLost) and record and record.settled_token == item.lease.token
            else answer
            for answer, item, record in zip(answers, settlements, records, strict=True)
        ]

    async def _claim(self, claim: Claim, now: datetime | None) -> Claimed:
        given_up = given_up_in(await self._sweep(claim.queues, now))
        if not self._is_limited and claim.rate is None:
            try:
                claimed = await self._claim_in_turn(claim, now, claim.limit)
                return Claimed(claimed.jobs, given_up + claimed.given_up)
            except HarborLimited as limited:
                self._is_limited, given_up = True, given_up + limited.given_up
        async with self._gates.locked() as is_kept:
            rules = await self._gates.rules()
            self._is_limited = rules.max_running is not None or rules.execute_rate is not None
            room = await self._gates.room(claim, rules, lambda: self._running(now), now)
            claimed = await self._claim_in_turn(claim, now, room, is_kept=is_kept)
            await self._gates.spend(claim, rules, len(claimed.jobs), now)
            return Claimed(claimed.jobs, given_up + claimed.given_up)

    async def _claim_in_turn(
        self, claim: Claim, now: datetime | None, limit: int, *, is_kept: Kept | None = None
    ) -> Claimed:
        """`is_kept`: checks that we still hold the lock of the harbor's limits; called before each claim."""
        jobs: list[JobRecord] = []
        given_up: tuple[Reclaimed, ...] = ()
        for queue in claim.queues:
            if len(jobs) == limit or (is_kept is not None and not await is_kept()):
                break
            store = await self._stores.of(queue)
            one = replace(claim, queues=(queue,), limit=limit - len(jobs), rate=None)
            attempts = store.attempts if is_kept is None else store.counted
            try:
                answer = await attempts.exchange((), one, now)
            except HarborLimited as limited:
                given_up += limited.given_up
                if jobs:
                    break  # jobs claimed before the limit was set
                limited.given_up = given_up
                raise
            jobs += answer.claimed
            given_up += answer.given_up
        return Claimed(jobs, given_up)

    async def _sweep(self, queues: Sequence[str], now: datetime | None) -> list[Reclaimed]:
        """End the expired leases of all queues of a claim before picking from one."""
        stores = [await self._stores.of(queue) for queue in queues]
        return await self._reclaimed(stores, SWEPT_PER_CLAIM, now)

    async def _running(self, now: datetime | None) -> int:
        """Unexpired leases of the whole harbor."""
        at = now or await self._harbor.time()
        after = f"({now_arg(at)}"
        stores = await self._stores.all()
        counts = await asyncio.gather(
            *(
                store.primary.command("ZCOUNT", store.keys.queue(store.queue).leases, after, "+inf")
                for store in stores
            )
        )
        return sum(counts)

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        answers = await self._stores.by_queue(
            [item.lease for item in settlements],
            lambda store, places: _settled(store, [settlements[p] for p in places], now),
        )
        await self._deliver(now)
        return answers

    async def _looked_elsewhere(
        self, settlements: Sequence[Settlement], answers: list[Settled | LeaseLost], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        """Try the other queues for jobs that are not in the queue their lease names: it proves nothing."""
        lost = [place for place, answer in enumerate(answers) if isinstance(answer, JobNotInflight)]
        where = await self._stores.where(list(filter(is_id, (settlements[p].lease.job_id for p in lost))))
        for place in lost:
            lease = settlements[place].lease
            store = where.get(lease.job_id)
            if store is not None and store.queue != lease.queue:
                [answers[place]] = await _settled(store, [settlements[place]], now)
        return answers

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        return await self._stores.by_queue(
            leases,
            lambda store, places: store.attempts.extend(
                [leases[p] for p in places], lease_for, progress, now
            ),
        )

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._reclaimed(await self._stores.all(), limit, now, everywhere=True)

    async def _reclaimed(
        self, stores: Sequence[QueueStore], limit: int, now: datetime | None, *, everywhere: bool = False
    ) -> list[Reclaimed]:
        """End the oldest expired leases of these queues."""
        found = await asyncio.gather(*(store.attempts.expired([store.queue], limit, now) for store in stores))
        chosen = sorted((*lease, number) for number, leases in enumerate(found) for lease in leases)[:limit]
        answers: dict[str, Reclaimed] = {}
        for number in dict.fromkeys(number for *_, number in chosen):
            ids = [job_id for *_, job_id, of in chosen if of == number]
            for answer in await stores[number].attempts.reclaim_these(ids, now):
                answers[answer.id] = answer
        await self._deliver(now, everywhere=everywhere)
        return [answers[job_id] for _, _, job_id, _ in chosen if job_id in answers]

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        moved = 0
        for store in await self._stores.all():
            keys = store.keys.for_promote([store.queue])
            moved += int(await store.primary.run("promote", keys, now_arg(now), limit - moved, store.queue))
        return moved

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        await self.prune_log(limit, now)
        pruned = 0
        for store in await self._stores.all():
            own = store.keys.queue(store.queue)
            keys = [store.keys.data, store.keys.idempotency_ends, own.list, own.done]
            pruned += int(await store.primary.run("prune", keys, now_arg(now), limit - pruned, store.queue))
        return pruned

    async def _deliver(self, now: datetime | None, *, everywhere: bool = False) -> None:
        """Deliver the jobs in the outboxes; `everywhere`: also those that a dead process left."""
        if not (self._stores.has_post or everywhere):
            return
        self._stores.has_post = False
        stores = await self._stores.all() if everywhere else self._stores.met
        for store in stores:
            for packed in await store.posted():
                job = posted_job(packed)
                await (await self._stores.of(job.queue)).receive(job, now)
                await store.forget_post(packed)

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        return await self._stores.by_id(ids, lambda store, some: store.do_cancel(some, now))

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return await (await self._stores.of(queue)).do_cancel_waiting(queue, key, now)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        return await self._stores.by_id(
            ids, lambda store, some: store.do_requeue(some, edit, reset_counts, run_at, delay, now)
        )

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        return await self._stores.by_id(ids, lambda store, some: store.do_delete(some, now))

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        harbor = self._harbor
        if settings.queue != EVERY_QUEUE:
            store = await self._stores.of(settings.queue)
            rules = await store.do_configure_queue(settings, now)
            await harbor.primary.command("SADD", harbor.keys.configured, settings.queue, writes=True)
            return rules
        rules = await super().do_configure_queue(settings, now)
        for store in await self._stores.all():
            await store.take_rules(rules_bytes(for_queue_stores(rules)))
            await store.primary.command("LPUSH", store.keys.queue(store.queue).wake, "1", writes=True)
        return rules

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        store = (await self._stores.where([job_id])).get(job_id, self._harbor)
        return await store.do_speculate(job_id, head_start, now)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._stores.by_id(ids, lambda store, some: store.do_get(some, now))

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._stores.by_id(ids, lambda store, some: store.do_look(some, now))

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        if query.queue is not None:
            return await (await self._stores.of(query.queue)).do_find(query, now)
        stores = await self._stores.all()
        share = replace(
            query, examine=min(query.examine, max(query.limit, query.examine // max(len(stores), 1)))
        )
        pages = await asyncio.gather(*(store.part_of_page([store.queue], share, now) for store in stores))
        sign = -1 if query.newest_first else 1
        # The order is certain only up to the place that every queue was scanned to.
        ends = [last for _, last, _ in pages if last is not None]
        end = (max if query.newest_first else min)(ends) if ends else None
        found = [(place_in(query, job), job) for jobs, _, _ in pages for job in jobs]
        found.sort(key=lambda one: one[0], reverse=query.newest_first)
        certain = [one for one in found if end is None or sign * _compared(one[0], end) <= 0]
        jobs = [job for _, job in certain[: query.limit]]
        examined = sum(count for _, _, count in pages)
        if len(found) > len(jobs) and len(certain) >= query.limit:
            return Page(jobs, cursor_after(query, certain[query.limit - 1][0]), examined)
        return Page(jobs, None if end is None else cursor_after(query, end), examined)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        stores = (
            [await self._stores.of(name) for name in sorted(queues)] if queues else await self._stores.all()
        )
        counts = await asyncio.gather(*(store.do_count([store.queue], now) for store in stores))
        merged = {queue: numbers for one in counts for queue, numbers in one.items()}
        return merged if queues else {queue: numbers for queue, numbers in merged.items() if numbers.total}

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        harbor = self._harbor
        configured = {
            name.decode() for name in await harbor.primary.command("SMEMBERS", harbor.keys.configured)
        }
        names = {*await harbor.steps.queue_names(), *configured} - {EVERY_QUEUE}
        infos = [info for info in await harbor.do_queues(now) if info.queue == EVERY_QUEUE]
        for name in sorted(names):
            info = await (await self._stores.of(name)).info_of(name, now)
            if name in configured or info.counts.total:
                infos.append(info)
        return infos

    async def do_info(self) -> DriverInfo:
        seen = await self._look_at_nodes()
        first = seen[0]
        return DriverInfo(
            driver="redis",
            store=f"{first.product} {first.version}",
            location=self.address.shown,
            durability=min(one.durability for one in seen),
            schema="1",
            at=first.at,
            details={**first.details, "primaries": str(len(seen))},
        )

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        for queue in queues:
            await (await self._stores.of(queue)).wakeups.ring((queue,))

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return MergedSubscription(self._stores.of, self._harbor.wakeups, queues, worker_id)


def _compared(one: Place, other: Place) -> int:
    return (one > other) - (one < other)


async def _settled(
    store: QueueStore, settlements: Sequence[Settlement], now: datetime | None
) -> list[Settled | LeaseLost]:
    return (await store.attempts.exchange(settlements, None, now)).settled
