"""Claims over the slots of a cluster: queue after queue; of a queue with parts, the best jobs of all of them.

Limits that no slot can count alone (of the harbor, of queues with parts) are counted under a lock: gates.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from taskharbor.drivers.family_ends import without_ended
from taskharbor.drivers.messages import Claim, Claimed, FamilyEnd, Reclaimed, given_up_in
from taskharbor.drivers.redis.attempts import SWEPT_PER_CLAIM, HasMoreParts, LimitedElsewhere
from taskharbor.drivers.redis.cluster.gates import HarborGates, Kept
from taskharbor.drivers.redis.cluster.queue_store import QueueStore
from taskharbor.drivers.redis.cluster.queue_stores import QueueStores
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import rank_of
from taskharbor.errors import DriverUnavailable
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import QueueRules

_T = TypeVar("_T")


class ClusterClaims:
    """The claims of one handle on a cluster."""

    def __init__(self, stores: QueueStores, gates: HarborGates) -> None:
        self._stores = stores
        self._gates = gates
        self.is_limited = False  # a claim has met a limit of the whole harbor
        self._limited: set[str] = set()  # queues with parts and a limit
        self.unreported: tuple[FamilyEnd, ...] = ()  # what claims have ended, for the answer

    async def only_slot(self, claim: Claim) -> QueueStore | None:
        """The one slot that can decide this claim, as far as this handle knows."""
        if len(claim.queues) > 1 or claim.rate is not None or self.is_limited:
            return None
        own = await self._stores.of(claim.queues[0])
        return None if own.parts else own

    async def learn(self, claim: Claim, refused: HasMoreParts | LimitedElsewhere) -> None:
        """Why the one slot has refused: the next claim takes another way."""
        [queue] = claim.queues
        own = await self._stores.of(queue)
        if isinstance(refused, HasMoreParts):
            await own.look_for_parts()
        elif await own.look_for_parts():
            self._limited.add(queue)
        else:
            self.is_limited = True

    def take_unreported(self) -> tuple[FamilyEnd, ...]:
        unreported, self.unreported = self.unreported, ()
        return unreported

    async def claim(self, claim: Claim, now: datetime | None) -> Claimed:
        """The jobs, and those given up; what it ended is `unreported` until the answer takes it."""
        reclaimed, ended = without_ended(await self._sweep(claim.queues, now))
        self.unreported += ended
        given_up = given_up_in(reclaimed)
        if not (self.is_limited or claim.rate is not None or self._limited & set(claim.queues)):
            try:
                claimed = await self._in_turn(claim, now, claim.limit)
                return Claimed(claimed.jobs, given_up + claimed.given_up)
            except LimitedElsewhere as limited:
                given_up += limited.given_up
        async with self._gates.locked() as is_kept:
            rules = await self._gates.rules()
            self.is_limited = _has_limits(rules)
            room = await self._gates.room(claim, rules, lambda: self._running(None, now), now)
            claimed = await self._in_turn(claim, now, room, is_kept=is_kept)
            with suppress(
                DriverUnavailable
            ):  # the jobs are taken: better too many than none for their worker
                await self._gates.spend(claim, rules, len(claimed.jobs), now)
            return Claimed(claimed.jobs, given_up + claimed.given_up)

    async def _in_turn(
        self, claim: Claim, now: datetime | None, limit: int, *, is_kept: Kept | None = None
    ) -> Claimed:
        """`is_kept`: checks that we still hold the lock of the limits; called before each queue."""
        jobs: list[JobRecord] = []
        given_up: tuple[Reclaimed, ...] = ()
        for queue in claim.queues:
            if len(jobs) == limit or not await _is_still_kept(is_kept, jobs):
                break
            one = replace(claim, queues=(queue,), limit=limit - len(jobs), rate=None)
            try:
                claimed = await self._of_queue(one, now, is_kept)
            except LimitedElsewhere as limited:
                given_up += limited.given_up
                if jobs:
                    break  # jobs claimed before the limit was set
                limited.given_up = given_up
                raise
            except DriverUnavailable:
                if not jobs:
                    raise
                break  # the jobs of other queues need not wait for this one's server
            jobs += claimed.jobs
            given_up += claimed.given_up
        return Claimed(jobs, given_up)

    async def _of_queue(self, claim: Claim, now: datetime | None, is_kept: Kept | None) -> Claimed:
        [queue] = claim.queues
        own = await self._stores.of(queue)
        given_up: tuple[Reclaimed, ...] = ()
        if not own.parts:
            try:
                return await self._from(own, claim, now, is_kept)
            except HasMoreParts as refused:
                given_up = refused.given_up
                await own.look_for_parts()
        while True:
            try:
                claimed = await self._of_parts(own, claim, now, is_kept)
                return Claimed(claimed.jobs, given_up + claimed.given_up)
            except HasMoreParts as refused:
                given_up += refused.given_up
                await own.look_for_parts()

    async def _from(
        self, store: QueueStore, claim: Claim, now: datetime | None, is_kept: Kept | None
    ) -> Claimed:
        attempts = store.attempts if is_kept is None else store.counted
        try:
            answer = await attempts.exchange((), claim, now)
        finally:
            self.unreported += store.families.take_unreported()
        self.unreported += answer.ended
        if answer.claimed and store.queue != claim.queues[0]:
            self._stores.remember_claim(answer.claimed[0].lease.token, store)
        return Claimed(answer.claimed, answer.given_up)

    # ------------------------------------------------------------------ queues with parts

    async def _of_parts(
        self, own: QueueStore, claim: Claim, now: datetime | None, is_kept: Kept | None
    ) -> Claimed:
        """The best jobs of a queue in all its slots, in order."""
        places = await self._places(own, claim, now)
        rules = QueueRules() if is_kept is None else await self._limits_of(own)
        room = await self._room(own, list(places), rules, claim, now)
        jobs: list[JobRecord] = []
        given_up: tuple[Reclaimed, ...] = ()
        for store, share in [*_shares(places, room).items(), *dict.fromkeys(places, room).items()]:
            limit = min(share, room - len(jobs))  # first everybody's share; then the rest, from who has some
            if limit <= 0:
                continue
            if jobs and not await _is_still_kept(is_kept, jobs):
                break
            try:
                claimed = await self._from(store, replace(claim, limit=limit), now, is_kept)
            except (LimitedElsewhere, HasMoreParts) as refused:
                given_up += refused.given_up
                if jobs:
                    break  # jobs claimed before it was so
                refused.given_up = given_up
                raise
            except DriverUnavailable:
                if not jobs:
                    raise
                continue
            jobs += claimed.jobs
            given_up += claimed.given_up
            if store is not own:  # its own slot spends what it hands out itself
                try:
                    await self._spend(own, rules, len(claimed.jobs), now)
                except DriverUnavailable:
                    break  # what was claimed must reach its worker, and nothing more is taken
        if jobs and len(jobs) == claim.limit:
            await self._stores.ring([own.queue])  # there may be more, in slots where nobody waits
        jobs.sort(key=lambda job: _place_in_line(claim, job))
        return Claimed(jobs, given_up)

    async def _places(
        self, own: QueueStore, claim: Claim, now: datetime | None
    ) -> dict[QueueStore, list[bytes]]:
        """The places in line of the next jobs, by slot. A part whose server is away has none for now."""
        while True:
            known, sources = own.parts, await self._stores.sources(own.queue)
            others = asyncio.gather(*(_if_there(_peek(store, claim, now)) for store in sources[1:]))
            parts, first, found = await asyncio.gather(own.look_for_parts(), _peek(own, claim, now), others)
            if parts == known:
                places = zip(sources, [first, *found], strict=True)
                return {store: some for store, some in places if some is not None}

    async def _limits_of(self, own: QueueStore) -> QueueRules:
        rules = await own.rules()
        (self._limited.add if _has_limits(rules) else self._limited.discard)(own.queue)
        return rules

    async def _room(
        self,
        own: QueueStore,
        sources: Sequence[QueueStore],
        rules: QueueRules,
        claim: Claim,
        now: datetime | None,
    ) -> int:
        room = claim.limit
        if rules.max_running is not None and len(sources) <= len(own.parts):
            raise DriverUnavailable(
                f"a server with jobs of {own.queue!r} is away: what runs cannot be counted", done=False
            )
        if rules.max_running is not None:
            running = await self._running([(store, [own.queue]) for store in sources], now)
            room = min(room, rules.max_running - running)
        if rules.execute_rate is not None:
            key = own.keys.queue(own.queue).execute_rate
            room = min(room, await self._gates.rate(key, rules.execute_rate, "room", 0, now, own))
        return max(room, 0)

    async def _spend(self, own: QueueStore, rules: QueueRules, count: int, now: datetime | None) -> None:
        if rules.execute_rate is not None and count:
            key = own.keys.queue(own.queue).execute_rate
            await self._gates.rate(key, rules.execute_rate, "spend", count, now, own)

    # ------------------------------------------------------------------ leases

    async def _sweep(self, queues: Sequence[str], now: datetime | None) -> list[Reclaimed]:
        """End the expired leases of all queues of a claim before picking from one."""
        slots: dict[QueueStore, list[str]] = {}
        for queue in queues:
            for store in await self._stores.sources(queue):
                slots.setdefault(store, []).append(queue)
        own = {await self._stores.of(queue) for queue in queues}
        answers = await self.reclaimed(list(slots.items()), SWEPT_PER_CLAIM, now, must_answer=own)
        await self._stores.deliver(now)
        return answers

    async def reclaimed(
        self,
        slots: Sequence[tuple[QueueStore, Sequence[str]]],
        limit: int,
        now: datetime | None,
        *,
        must_answer: Set[QueueStore] | None = None,
    ) -> list[Reclaimed]:
        """End the oldest expired leases of these queues in these slots; `must_answer`: None for all."""

        async def expired(store: QueueStore, queues: Sequence[str]) -> list[tuple[float, bytes, str]]:
            leases = store.attempts.expired(queues, limit, now)
            if must_answer is None or store in must_answer:
                return await leases
            return await _if_there(leases) or []

        found = await asyncio.gather(*(expired(store, queues) for store, queues in slots))
        chosen = sorted((*lease, number) for number, leases in enumerate(found) for lease in leases)[:limit]
        answers: dict[str, Reclaimed] = {}
        for number in dict.fromkeys(number for *_, number in chosen):
            ids = [job_id for *_, job_id, of in chosen if of == number]
            try:
                reclaimed = await slots[number][0].attempts.reclaim_these(ids, now)
            except DriverUnavailable:
                if not answers:
                    raise
                break  # the leases that have ended must be reported
            answers |= {answer.id: answer for answer in reclaimed}
        return [answers[job_id] for _, _, job_id, _ in chosen if job_id in answers]

    async def _running(
        self, slots: Sequence[tuple[QueueStore, Sequence[str]]] | None, now: datetime | None
    ) -> int:
        """Unexpired leases of these queues in these slots, or of the whole harbor."""
        at = now or await self._stores.harbor.time()
        after = f"({now_arg(at)}"
        counts = await asyncio.gather(
            *(
                store.primary.command("ZCOUNT", store.keys.queue(queue).leases, after, "+inf")
                for store, queues in slots or await self._stores.all_queues()
                for queue in queues
            )
        )
        return sum(counts)


async def _is_still_kept(is_kept: Kept | None, jobs: Sequence[JobRecord]) -> bool:
    """Whether more may be claimed under the lock. If its server is away, jobs that were claimed go out."""
    try:
        return is_kept is None or await is_kept()
    except DriverUnavailable:
        if not jobs:
            raise
        return False


async def _if_there(answer: Awaitable[_T]) -> _T | None:
    """None if the server is away."""
    try:
        return await answer
    except DriverUnavailable:
        return None


def _has_limits(rules: QueueRules) -> bool:
    return rules.max_running is not None or rules.execute_rate is not None


async def _peek(store: QueueStore, claim: Claim, now: datetime | None) -> list[bytes]:
    [queue] = claim.queues
    own = store.keys.queue(queue)
    keys = [store.keys.data, own.ready, own.later]
    lanes, types = claim.lanes, claim.types or ()
    found: list[bytes] = await store.primary.run(
        "peek", keys, now_arg(now), queue, claim.limit, len(lanes), *lanes, *types, writes=False
    )
    return found


def _shares(places: Mapping[QueueStore, Sequence[bytes]], room: int) -> Counter[QueueStore]:
    """How many of the next jobs are in which slot; empty when all of them fit."""
    everyone = sorted((place, number) for number, found in enumerate(places.values()) for place in found)
    if len(everyone) <= room:
        return Counter()
    stores = list(places)
    return Counter(stores[number] for _, number in everyone[:room])


def _place_in_line(claim: Claim, job: JobRecord) -> tuple[int, int, datetime, int]:
    return claim.lanes.index(job.requires), rank_of(job.priority), job.eligible_at, job.seq
