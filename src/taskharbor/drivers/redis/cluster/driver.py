"""ClusterDriver: a harbor whose queues are spread over the slots of a cluster.

Every queue is a store of its own (queue_store.py). This driver splits a verb by queue and merges the
answers. One call over several queues is one step per queue, but a family is one step: all of it is in the
slot of its first job. No index says which slot holds an id: if a verb does not name the queue, every slot
is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.cursor import Place, cursor_after, place_in
from taskharbor.drivers.families import CALL_LIMIT
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
    Noted,
    Page,
    Promoted,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    Resolution,
    Resolved,
    Settled,
    Speculated,
    Wakeups,
)
from taskharbor.drivers.redis import health
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.attempts import HasMoreParts, LimitedElsewhere
from taskharbor.drivers.redis.cluster.claims import ClusterClaims
from taskharbor.drivers.redis.cluster.enqueue import ClusterEnqueuer
from taskharbor.drivers.redis.cluster.families import ClusterFamilies
from taskharbor.drivers.redis.cluster.gates import HarborGates
from taskharbor.drivers.redis.cluster.queue_store import QueueStore, for_queue_stores
from taskharbor.drivers.redis.cluster.queue_stores import QueueStores
from taskharbor.drivers.redis.cluster.wakeups import MergedSubscription
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import Keys, ids_in
from taskharbor.drivers.redis.logbook import Logbook
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.registry import Registry
from taskharbor.drivers.redis.settings_codec import rules_bytes
from taskharbor.errors import (
    BrokenBond,
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
from taskharbor.model.job import JobRecord, Lease, NewJob, Note, Progress
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings
from taskharbor.model.settlement import Settlement
from taskharbor.model.speculation import HeadStart

_T = TypeVar("_T")

_CAPABILITIES = Capabilities(
    wakeups=True, multiprocess=True, durable=True, remote=True, logbook=True, workflows=True
)


class ClusterDriver(Registry, Logbook, Driver):
    """A store in one namespace of a cluster."""

    def __init__(
        self, address: Address, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self.address = address

    def another(self) -> ClusterDriver:
        one = ClusterDriver(self.address, clock=self.clock, entropy=self.entropy.split("another"))
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def do_open(self) -> None:
        self._stores = QueueStores(self.address, self.clock, self.entropy, self.orphans)
        self._stores.only_looks = self._stores.harbor.primary.only_looks = self.only_looks
        self._harbor = harbor = self._stores.harbor
        self.primary, self.keys, self.steps = harbor.primary, harbor.keys, harbor.steps
        self._stores.outage = self._harbor.wakeups.outage = self.outage
        self._gates = HarborGates(self._harbor, self.clock, self.entropy.split("gates"))
        self._enqueuer = ClusterEnqueuer(self._stores, self._gates)
        self._claims = ClusterClaims(self._stores, self._gates)
        self._families = ClusterFamilies(self._stores, self._enqueuer)
        try:
            await self._harbor.primary.open()
            seen = await self._look_at_nodes()
            classes = [one.durability for one in seen]
            await self._harbor.open()
        except BaseException:
            await self.do_close()
            raise
        self.capabilities = replace(self.capabilities, durable=min(classes) != "D0")
        if not self.only_looks:
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

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        return await self._families.enqueue(jobs, by, now)

    async def do_resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        answers = await self._families.resolve(items, now)
        await self._stores.deliver(now)
        return answers

    async def do_note(
        self, notes: Sequence[Note], now: datetime | None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        return await self._families.note(notes, now)

    async def _check_eviction(self, queues: Iterable[str]) -> None:
        for queue in queues:
            store = await self._stores.of(queue)
            await store.eviction_guard.check_on(store.primary)

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        answer = await self.do_exchange((), claim, now)
        if answer.error is not None:
            self._claims.unreported += answer.ended
            raise answer.error
        return Claimed(answer.claimed, answer.given_up, answer.ended)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        try:
            await self._check_eviction(claim.queues)
        except StoreRefused as error:
            return Exchanged(await self.do_settle(settlements, now) if settlements else [], [], error)
        slots = {self._stores.slot_of(item.lease) for item in settlements}
        answers: list[Settled | LeaseLost] = []
        given_up: tuple[Reclaimed, ...] = ()
        store = await self._claims.only_slot(claim)
        if store is not None and slots <= {store.queue}:
            try:
                answer = await store.attempts.exchange(settlements, claim, now)
            except (LimitedElsewhere, HasMoreParts) as refused:
                answers = await self._looked_elsewhere(settlements, list(refused.settled), now)
                given_up = refused.given_up
                self._claims.unreported += store.families.take_unreported()
                await self._claims.learn(claim, refused)
            else:
                self._claims.unreported += answer.ended
                answers = await self._looked_elsewhere(settlements, answer.settled, now)
                if answer.error is None:
                    await self._stores.deliver(now)
                return replace(answer, settled=answers, ended=self._claims.take_unreported())
        elif settlements:
            answers = await self.do_settle(settlements, now)
        try:
            await self._stores.deliver(now)
            claimed = await self._claims.claim(claim, now)
        except TaskHarborError as error:  # the settlements are written, whatever happened to the claim
            return Exchanged(answers, [], error, given_up, self._claims.take_unreported())
        await self._stores.deliver(now)
        given_up += claimed.given_up
        return Exchanged(answers, claimed.jobs, given_up=given_up, ended=self._claims.take_unreported())

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        answers = await self._stores.by_queue(
            [item.lease for item in settlements],
            lambda store, places: _settled(store, [settlements[p] for p in places], now),
        )
        await self._stores.deliver(now)
        return answers

    async def _looked_elsewhere(
        self, settlements: Sequence[Settlement], answers: list[Settled | LeaseLost], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        """Try the other slots for jobs that are not where their lease leads to: it proves nothing."""
        lost = [place for place, answer in enumerate(answers) if isinstance(answer, JobNotInflight)]
        where = await self._stores.where(list(filter(is_id, (settlements[p].lease.job_id for p in lost))))
        for place in lost:
            lease = settlements[place].lease
            store = where.get(lease.job_id)
            if store is not None and store.queue != self._stores.slot_of(lease):
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
        slots = await self._stores.all_queues()
        answers = await self._claims.reclaimed(slots, limit, now)
        await self._stores.deliver(now, everywhere=True)
        await self._stores.heal_parts(slots)
        return answers

    async def do_promote(self, limit: int, now: datetime | None) -> Promoted:
        moved = 0
        for store, queues in await self._stores.all_queues():
            try:
                moved += await store.families.sweep(now, limit - moved)
            finally:
                self._claims.unreported += store.families.take_unreported()
            for queue in queues:
                keys = store.keys.for_promote([queue])
                some = int(await store.primary.run("promote", keys, now_arg(now), limit - moved, queue))
                moved += some
                if some and queue != store.queue:
                    await self._stores.ring([queue])
        await self._stores.deliver(now)
        return Promoted(moved, self._claims.take_unreported())

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        await self.prune_log(limit, now)
        pruned = 0
        for store, queues in await self._stores.all_queues():
            keys = [store.keys.data, store.keys.idempotency_ends]
            for queue in queues:
                own = store.keys.queue(queue)
                keys += (own.list, own.done)
            count, of_families = await store.primary.run("prune", keys, now_arg(now), limit - pruned, *queues)
            pruned += int(count)
            pruned += await store.families.prune(ids_in(of_families), limit - pruned, now)
        return pruned

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
            for home in await store.look_for_parts():
                await store.copy_rules_to(await self._stores.of(home))
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
        if query.queue is None:
            slots = await self._stores.all_queues()
        else:
            slots = [(store, [query.queue]) for store in await self._stores.all_sources(query.queue)]
            if len(slots) == 1:
                return await slots[0][0].do_find(query, now)
        share = replace(
            query, examine=min(query.examine, max(query.limit, query.examine // max(len(slots), 1)))
        )
        pages = await asyncio.gather(*(store.part_of_page(queues, share, now) for store, queues in slots))
        sign = -1 if query.newest_first else 1
        # The order is certain only up to the place that every slot was scanned to.
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
        if queues:
            slots = [(s, [name]) for name in sorted(queues) for s in await self._stores.all_sources(name)]
        else:
            slots = await self._stores.all_queues()
        counts = await asyncio.gather(*(store.do_count(names, now) for store, names in slots))
        merged: dict[str, Counts] = {}
        for queue, numbers in (item for one in counts for item in one.items()):
            merged[queue] = _sum(merged[queue], numbers) if queue in merged else numbers
        if queues:
            return merged
        return {queue: merged[queue] for queue in sorted(merged) if merged[queue].total}

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        harbor = self._harbor
        configured = {
            name.decode() for name in await harbor.primary.command("SMEMBERS", harbor.keys.configured)
        }
        names = {*await harbor.steps.queue_names(), *configured} - {EVERY_QUEUE}
        infos = [info for info in await harbor.do_queues(now) if info.queue == EVERY_QUEUE]
        for name in sorted(names):
            info, *parts = [await store.info_of(name, now) for store in await self._stores.all_sources(name)]
            for part in parts:
                oldest = [at for at in (info.oldest_ready_at, part.oldest_ready_at) if at is not None]
                info = replace(
                    info, counts=_sum(info.counts, part.counts), oldest_ready_at=min(oldest, default=None)
                )
            if name in configured or info.counts.total:
                infos.append(info)
        return infos

    async def do_info(self) -> DriverInfo:
        seen = await self._look_at_nodes()
        stores = await self._stores.all()
        owed = await asyncio.gather(*(one.primary.command("ZCARD", one.keys.owed) for one in stores))
        first = seen[0]
        return DriverInfo(
            driver="redis",
            store=f"{first.product} {first.version}",
            location=self.address.shown,
            durability=min(one.durability for one in seen),
            schema="1",
            at=first.at,
            details={**first.details, "primaries": str(len(seen))},
            owed=min(sum(map(int, owed)), CALL_LIMIT),
        )

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        for queue in queues:
            await (await self._stores.of(queue)).wakeups.ring((queue,))

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return MergedSubscription(self._stores.of, self._harbor.wakeups, queues, worker_id)


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(**{name: getattr(one, name) + getattr(other, name) for name in Counts.__struct_fields__})


def _compared(one: Place, other: Place) -> int:
    return (one > other) - (one < other)


async def _settled(
    store: QueueStore, settlements: Sequence[Settlement], now: datetime | None
) -> list[Settled | LeaseLost]:
    return (await store.attempts.exchange(settlements, None, now)).settled
