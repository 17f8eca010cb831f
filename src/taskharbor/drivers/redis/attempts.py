"""Claims and settlements.

What concerns no other job is settled together with the claim in one script call. Everything else is settled
in a unit of work, and the claim follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from taskharbor.drivers.families import concluded
from taskharbor.drivers.family_ends import with_ended, without_ended
from taskharbor.drivers.family_verbs import settle_one
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    Exchanged,
    FamilyEnd,
    Reclaimed,
    Settled,
    given_up_in,
)
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.connection import Command
from taskharbor.drivers.redis.encoding import (
    ClaimGrant,
    claimed_records,
    head_fields,
    now_arg,
    record_of,
    token_bytes,
)
from taskharbor.drivers.redis.families import Families
from taskharbor.drivers.redis.family_fields import FamilyFields, fields_in
from taskharbor.drivers.redis.family_unit import FamilyUnit
from taskharbor.drivers.redis.keys import Keys, ids_in
from taskharbor.drivers.redis.leases import LOST, Leases
from taskharbor.drivers.redis.many_queues import FEW_QUEUES, ManyQueues, OfMany
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.scripts import SCRIPTS
from taskharbor.drivers.redis.settlements import Other, other_arguments
from taskharbor.drivers.redis.snapshot import ask_for_job
from taskharbor.errors import (
    DriverUnavailable,
    JobNotInflight,
    LeaseLost,
    TaskHarborError,
)
from taskharbor.model.checks import are_ids, is_id
from taskharbor.model.clock import instant, span_micros
from taskharbor.model.entropy import Entropy
from taskharbor.model.family_steps import reported_end
from taskharbor.model.job import JobRecord, Lease
from taskharbor.model.settlement import Ack, Park, Settlement
from taskharbor.model.state import JobState

if TYPE_CHECKING:
    from taskharbor.drivers.redis.wakeups import WakeupForwarder

SettleAnswer = Settled | LeaseLost
SWEPT_PER_CLAIM = 100
SweptFirst = Literal["", "expired", "owed"]
"""Nothing; expired leases; those, and what families owe."""
_DONE: dict[SweptFirst, str] = {"": "", "expired": "1", "owed": "2"}
_STATES = {0: JobState.READY, 1: JobState.SCHEDULED, 3: JobState.COMPLETED, 4: JobState.FAILED}
"""By the number that exchange.lua answers."""


class AckGroup:
    """Acks from one claim: what they share is sent once."""

    __slots__ = ("has_results", "ids", "places", "queue", "results", "token", "worker_id")

    def __init__(self, lease: Lease, queue: str, *, has_results: bool) -> None:
        self.queue = queue
        self.token = lease.token
        self.worker_id = lease.worker_id
        self.has_results = has_results
        self.places: list[int] = []
        self.ids: list[str] = []
        self.results: list[bytes] = []

    def arguments(self, queue: int) -> tuple[Any, ...]:
        worker = self.worker_id or ""
        ids = head_fields(self.ids)
        return queue, token_bytes(self.token), worker, len(self.results), ids, *self.results


class AtOnce(NamedTuple):
    """The settlements that exchange.lua can take, by their places in the call."""

    acks: Sequence[AckGroup] = ()
    others: Sequence[tuple[int, str, Other]] = ()
    """Place, queue, settlement."""

    def places(self) -> list[int]:
        """In the order in which the script answers."""
        acks = [place for group in self.acks for place in group.places]
        return acks + [place for place, _, _ in self.others]


NOTHING = AtOnce()


def at_once_in(settlements: Sequence[Settlement]) -> AtOnce:
    """Empty if one job comes twice: then the order decides."""
    groups: dict[tuple[str, str, str | None, bool], AckGroup] = {}
    others: list[tuple[int, str, Other]] = []
    ids: list[str] = []
    last: AckGroup | None = None
    for place, item in enumerate(settlements):
        lease = item.lease
        ids.append(lease.job_id)
        queue = lease.queue
        if queue is None:
            continue
        if type(item) is not Ack:
            if isinstance(item, Other):
                others.append((place, queue, item))
            continue
        has_results = item.result is not None
        if (
            last is None
            or lease.token != last.token
            or queue != last.queue
            or lease.worker_id != last.worker_id
            or has_results is not last.has_results
        ):
            name = (queue, lease.token, lease.worker_id, has_results)
            last = groups.get(name)
            if last is None:
                last = groups[name] = AckGroup(lease, queue, has_results=has_results)
        last.places.append(place)
        last.ids.append(lease.job_id)
        if item.result is not None:
            last.results.append(b"r" + item.result)
    if len(set(ids)) != len(ids) or not are_ids(ids):
        return NOTHING
    return AtOnce(list(groups.values()), others)


def ends_in(jobs: Sequence[Sequence[bytes]]) -> list[FamilyEnd]:
    """The ends of parents that were over with their last child: id, head, body, bonds and family of each."""
    found = [
        reported_end(
            record_of(packed_id, head, body, of_family=FamilyFields(bonds or None, family, None, ()))
        )
        for packed_id, head, body, bonds, family in jobs
    ]
    return [end for end in found if end is not None]


class ClaimRefused(Exception):
    """One slot of a cluster cannot decide this claim alone. Nothing was claimed.

    `settled` has the answers to the settlements of the call, which are written; `given_up` what its sweep
    gave up before. What that ended is kept (families.py).
    """

    settled: tuple[SettleAnswer, ...] = ()
    given_up: tuple[Reclaimed, ...] = ()


class LimitedElsewhere(ClaimRefused):
    """A limit of the whole harbor, or of a queue with parts in other slots: this slot cannot count it."""


class HasMoreParts(ClaimRefused):
    """The queue has jobs in more slots than the caller knows (cluster/queue_store.py)."""


class Attempts(Leases):
    """The claim and settle verbs of one driver handle."""

    def __init__(
        self,
        primary: Primary,
        keys: Keys,
        steps: OptimisticStep,
        entropy: Entropy,
        orphans: Orphans,
        families: Families,
        *,
        is_one_queue: bool = False,
    ) -> None:
        """`is_one_queue`: one queue of a cluster, which cannot see what runs in the others."""
        super().__init__(primary, keys, steps, orphans)
        self._is_one_queue = is_one_queue
        self._entropy = entropy
        self._families = families
        # Extra keys cost time, so the keys of a limit are sent only after one was met.
        self._sees_rates = False
        self._sees_leases = False
        self.is_counted = False  # the caller counts what runs in the whole harbor
        self.parts_known = 0  # of the queue, in other slots: the caller claims from those, too
        self._many_queues = ManyQueues(primary, keys)
        self.forwarder: WakeupForwarder | None = None

    # ------------------------------------------------------------------ settle and claim

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime | None
    ) -> Exchanged:
        some = claim
        if claim is not None and len(claim.queues) > FEW_QUEUES:
            some = await self._many_queues.narrowed(claim, self._stirred(settlements), now)
        answer = await self._exchanged(settlements, some, now)
        if claim is not None and self.forwarder is not None and answer.error is None:
            await self.forwarder.after_claim(claim, len(answer.claimed))
        if claim is not None and self._families.unreported:
            return replace(answer, ended=self._families.take_unreported())
        return answer

    def _stirred(self, settlements: Sequence[Settlement]) -> set[str]:
        """Queues in which there may be something since the last look."""
        woken = () if self.forwarder is None else self.forwarder.woken
        return {item.lease.queue for item in settlements if item.lease.queue}.union(woken)

    async def _exchanged(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime | None
    ) -> Exchanged:
        if not settlements and claim is not None:
            claimed = await self._at_once_claimed(claim, now)
            return Exchanged([], claimed.jobs, given_up=claimed.given_up)
        answers: dict[int, SettleAnswer] = {}
        jobs: list[JobRecord] | None = None
        some = at_once_in(settlements)
        if places := some.places():
            # With other settlements in the call, the claim comes after those.
            is_all = len(places) == len(settlements)
            try:
                jobs = await self._at_once(answers, settlements, some, claim if is_all else None, now)
            except ClaimRefused as refused:
                refused.settled = tuple(answers[place] for place in range(len(settlements)))
                raise
            jobs = jobs if is_all else None
        left = [place for place in range(len(settlements)) if place not in answers]
        if left:
            rest = await self._settle_rest([settlements[p] for p in left], now, is_some_done=bool(answers))
            answers |= zip(left, rest, strict=True)
        in_order = [answers[place] for place in range(len(settlements))]
        if claim is None or jobs is not None:
            return Exchanged(in_order, jobs or [])
        try:
            claimed = await self._at_once_claimed(claim, now)
        except TaskHarborError as error:
            return Exchanged(in_order, [], error)
        except ClaimRefused as refused:
            refused.settled = tuple(in_order)
            raise
        return Exchanged(in_order, claimed.jobs, given_up=claimed.given_up)

    async def _settle_rest(
        self, settlements: Sequence[Settlement], now: datetime | None, *, is_some_done: bool
    ) -> list[SettleAnswer]:
        try:
            return await self._settle(settlements, now)
        except DriverUnavailable as error:
            if not is_some_done:
                raise
            # Acks before these are written, so `done=False` would be wrong.
            raise DriverUnavailable("the connection was lost between two settlements", done=None) from error

    async def _at_once_claimed(self, claim: Claim, now: datetime | None) -> Claimed:
        jobs = await self._at_once({}, (), NOTHING, claim, now)
        return await self._claim(claim, now) if jobs is None else Claimed(jobs)

    async def _at_once(
        self,
        answers: dict[int, SettleAnswer],
        settlements: Sequence[Settlement],
        some: AtOnce,
        claim: Claim | None,
        now: datetime | None,
    ) -> list[JobRecord] | None:
        """Settle and claim in one script call. None if something is left over and nothing was claimed."""
        token = self._entropy.token()
        places = some.places()
        call = await self._call(some, claim, token, now, has_more=len(places) < len(settlements))
        reply = await self._primary.run_in_epoch("exchange", *call)
        over: Sequence[Any] = ()
        if type(reply[0]) is list:
            reply[0], over, woken = reply[0]
            await self._steps.ring(map(bytes.decode, woken))
        at = instant(int(reply[0]))
        for place, answer in zip(places, reply[1:], strict=False):
            job_id = settlements[place].lease.job_id
            if type(answer) is int:
                answers[place] = Settled(job_id, _STATES[answer & 7], at, answer >> 3)
            elif answer != b"S":
                answers[place] = LOST[answer](job_id)
        if over:
            answers |= zip(answers, with_ended(list(answers.values()), ends_in(over)), strict=True)
        if claim is None:
            return []
        return self._handed_out(reply, len(places) + 1, claim, token)

    def _handed_out(
        self, reply: Sequence[Any], start: int, claim: Claim, token: str
    ) -> list[JobRecord] | None:
        word = reply[start]
        if word == b"leases" and self._is_one_queue:
            raise LimitedElsewhere
        if word == b"parts":
            raise HasMoreParts
        if word != b"jobs":
            self._sees_rates = self._sees_rates or word == b"rates"
            self._sees_leases = self._sees_leases or word == b"leases"
            return None
        at_us = int(reply[0])
        at = instant(at_us)
        first, beyond = start + 3, start + 3 + 3 * reply[start + 1]
        if reply[start + 2]:
            self._orphans.note(ids_in(reply[start + 2]))
        more = {
            number - 1: (story or None, key.partition(b"\0")[2] or None, fields_in(fields))
            for number, story, key, fields in zip(*(reply[beyond + i :: 4] for i in range(4)), strict=True)
        }
        handed = ClaimGrant(token, claim.worker_id, at, at_us, at + claim.lease_for)
        return claimed_records(reply[first:beyond], more, handed)

    # ------------------------------------------------------------------ a claim that is sent ahead

    def fresh_token(self) -> str:
        return self._entropy.token()

    async def claim_command(self, claim: Claim, token: str) -> Command:
        """A claim by the server's clock, as a command for the listening connection to send."""
        keys, *arguments = await self._call(NOTHING, claim, token, None)
        return ("EVALSHA", SCRIPTS["exchange"].digest, len(keys), *keys, self._primary.epoch, *arguments)

    def parked_jobs(self, reply: Sequence[Any], claim: Claim, token: str) -> list[JobRecord] | None:
        """The jobs of a parked claim; None if the script refused it in this form."""
        return self._handed_out(reply, 1, claim, token)

    # ------------------------------------------------------------------ claims

    async def _claim(self, claim: Claim, now: datetime | None) -> Claimed:
        """Claim after ending the expired leases of these queues, and carrying out what families owe.

        What that ends is kept: the claim behind it may fail.
        """
        reclaimed, ended = without_ended(await self.sweep(claim.queues, SWEPT_PER_CLAIM, now))
        self._families.keep(ended)
        given_up = given_up_in(reclaimed)
        done: SweptFirst = "expired"
        while True:
            token = self._entropy.token()
            reply = await self._primary.run_in_epoch(
                "exchange", *await self._call(NOTHING, claim, token, now, done=done)
            )
            if reply[1] == b"owed":
                await self._families.sweep(now)
                done = "owed"
                continue
            try:
                jobs = self._handed_out(reply, 1, claim, token)
            except ClaimRefused as refused:
                refused.given_up = given_up
                raise
            if jobs is not None:
                return Claimed(jobs, given_up)

    async def _call(
        self,
        some: AtOnce,
        claim: Claim | None,
        token: str,
        now: datetime | None,
        *,
        done: SweptFirst = "",
        has_more: bool = False,
    ) -> tuple[Any, ...]:
        """The keys and arguments of exchange.lua, after the epoch.

        `done`: what was swept before; `has_more`: the caller settles more than `some`.
        """
        keys = self._keys
        queues = {queue: place for place, queue in enumerate(claim.queues if claim else (), 1)}
        arguments: list[Any] = []
        for group in some.acks:
            arguments += group.arguments(queues.setdefault(group.queue, len(queues) + 1))
        for _, queue, item in some.others:
            arguments += other_arguments(item, queues.setdefault(queue, len(queues) + 1))
        named = [keys.data, keys.idempotency_ends, keys.relatives, keys.look_from]
        for queue in queues:
            own = keys.queue(queue)
            named += (own.list, own.ready, own.later, own.leases, own.done, own.wake)
        counts = (len(some.acks), len(some.others), "1" if has_more else "")
        head = [now_arg(now), len(queues), *queues, *counts]
        if claim is None:
            return named, *head, *arguments
        with_rates = self._sees_rates or claim.rate is not None
        if with_rates:
            named += [keys.queue(queue).execute_rate for queue in queues]
            named += (keys.execute_rate, keys.worker_rate(claim.worker_id))
        further: int | str = ""
        if self.is_counted:
            further = 0
        elif self._sees_leases:
            others = [name for name in await self._steps.queue_names() if name not in queues]
            named += [keys.queue(name).leases for name in others]
            further = len(others)
        return (
            named,
            *head,
            *arguments,
            len(claim.queues),
            claim.limit,
            span_micros(claim.lease_for),
            claim.worker_id,
            bytes.fromhex(token),
            "1" if with_rates else "",
            "" if claim.rate is None else claim.rate.count,
            "" if claim.rate is None else claim.rate.per_us,
            _DONE[done],
            further,
            self.parts_known or "",
            "1" if isinstance(claim, OfMany) else "",
            len(claim.lanes),
            *claim.lanes,
            *(claim.types or ()),
        )

    # ------------------------------------------------------------------ settle, one record after the other

    async def _settle(self, settlements: Sequence[Settlement], now: datetime | None) -> list[SettleAnswer]:
        asked = dict.fromkeys(
            ask_for_job(item.lease.job_id) for item in settlements if is_id(item.lease.job_id)
        )
        for item in settlements:
            if isinstance(item, Park):
                asked |= dict.fromkeys(map(ask_for_job, item.after))

        def decide(unit: FamilyUnit) -> list[SettleAnswer]:
            answers = [
                settle_one(unit, item) if is_id(item.lease.job_id) else JobNotInflight(item.lease.job_id)
                for item in settlements
            ]
            return concluded(unit, answers)

        return await self._steps.run(list(asked), decide, now, seqs=len(asked))
