"""Claims and settlements.

Settlements of any kind travel with the claim in one statement. What is left over (copies, failure jobs, keys
that another transaction has locked, lost leases) is settled one by one in a transaction of its own. A
claim is never part of that transaction: it may have to wait for a limit, and while it waits it must hold no
locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from operator import le
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.family_ends import without_ended
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    Exchanged,
    Reclaimed,
    Settled,
    given_up_in,
)
from taskharbor.drivers.postgres.claim_start import LEFT_END, ClaimStart
from taskharbor.drivers.postgres.connections import our_names
from taskharbor.drivers.postgres.family_step import FamilyStep
from taskharbor.drivers.postgres.faults import FOREIGN, translated
from taskharbor.drivers.postgres.leases import CAREFUL, LOST, RESULTS, Leases
from taskharbor.drivers.postgres.rows import STATES, claimed_of, granted, span_us
from taskharbor.drivers.postgres.settlements import NOTHING, Batch, batch_of, settle_arguments
from taskharbor.drivers.postgres.unit_of_work import HasFamily, UnitOfWork
from taskharbor.errors import DriverUnavailable, LeaseLost, TaskHarborError
from taskharbor.model.checks import is_id
from taskharbor.model.clock import instant
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack, Park, Settlement
from taskharbor.model.state import JobState

Answer = Settled | LeaseLost
_A = TypeVar("_A", Claimed, Exchanged)
_BACK, _FLAGS, _COUNTED, _AT, _HAS_COUNTS, _ODD, _MORE = 0, 1, 2, 5, 6, 9, 11  # of the first row of exchange
_DONE, _STATES, _VERSIONS, _SETTLED_AT = 13, 14, 15, 16
_MUST_RECLAIM, _IS_OWED, _OF_FAMILIES = (
    1,
    8,
    16,
)  # flags; others: something is left over or at a gate
_json = msgspec.json.Decoder()


class Swept(msgspec.Struct, frozen=True):
    """What the sweep inside a claim brought about: jobs given up, and ids to reclaim one by one.

    With each the place of its lease among those that ran out.
    """

    jobs: Mapping[int, Reclaimed] = {}
    left: Mapping[str, int] = {}

    def given_up(self, answers: Iterable[Reclaimed] = ()) -> tuple[Reclaimed, ...]:
        """The jobs given up, by the end of their leases, with those among the answers about `left`."""
        found = {**self.jobs, **{self.left[answer.id]: answer for answer in answers}}
        return given_up_in(found[place] for place in sorted(found))


_NOTHING_SWEPT = Swept()
_TRIES = 100
_LOOKS_EVERY = 100  # claims


class ClaimSignals:
    """What the claims of a handle report to its wake-up listener."""

    def __init__(self) -> None:
        self.listens = False  # whether this handle has a subscription
        self.unmarked: set[str] = set()  # of the queues listened to, those that must be marked as idle
        self.held: set[str] = (
            set()
        )  # jobs that were handed out here and not settled yet, while there is a subscription
        self.shape = ""  # what the last claim could take, but for its queues
        self.found_enough = False  # whether the last claim brought all it asked for
        self.claims = 0  # begun so far
        self.claim_seconds = 0.0  # how long the last one took
        self.on_claimed: Callable[[], None] = _nothing  # a claim was answered
        self.on_not_enough: Callable[[], None] = _nothing  # it came back short, and has marked its queues

    @contextmanager
    def marking(self, claim: Claim | None) -> Iterator[list[str] | None]:
        """The queues of a claim to mark as idle if it comes back short: those without a mark.

        Removing a mark sends a notification, which adds the queue to `unmarked`. It may arrive before the
        answer to the claim, so what it adds meanwhile must stay.
        """
        idle = [queue for queue in claim.queues if queue in self.unmarked] if claim and self.unmarked else []
        self.unmarked.difference_update(idle)
        try:
            yield idle or None
        except BaseException:
            self.unmarked.update(idle)
            raise

    def answered(self, claim: Claim, rows: Sequence[Any], idle: list[str] | None) -> None:
        self.found_enough = len(rows) > claim.limit
        if self.listens:
            self.shape = (
                f"{','.join(claim.lanes)} {'' if claim.types is None else ','.join(sorted(claim.types))}"
            )
            self.held.update(row[0] for row in rows[1:])
            self.on_claimed()
        if self.listens and not self.found_enough:
            self.on_not_enough()
        else:
            self.unmarked.update(idle or ())


class Attempts(Leases):
    """The attempt verbs of a driver handle."""

    _start: ClaimStart
    _signals: ClaimSignals

    # ------------------------------------------------------------------ settle and claim

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        return self._claim_with_ends(await self._claim(claim, now))

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        return self._with_ends((await self._exchange(settlements, None, now)).settled)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        if settlements:
            return self._claim_with_ends(await self._exchange(settlements, claim, now))
        got = await self._claim(claim, now)
        return self._claim_with_ends(Exchanged([], got.jobs, None, got.given_up))

    def _claim_with_ends(self, answer: _A) -> _A:
        return replace(answer, ended=self._take_unreported()) if self._unreported else answer

    async def _exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime | None
    ) -> Exchanged:
        """One statement, unless something is left over: then that first, and the claim in another one."""
        if self._signals.held:
            self._signals.held.difference_update([settlement.lease.job_id for settlement in settlements])
        if claim is not None and self._is_owing:
            await self._sweep_families(now)
        if self._far:
            await self._look_again(now)
        batch = batch_of([settlement.lease for settlement in settlements])
        answers: dict[int, Answer] = {}
        swept = _NOTHING_SWEPT
        of_families = has_released = False
        if batch.ids:
            is_all = len(batch.ids) == len(settlements)
            asked = claim if is_all else None
            head, jobs, swept = await self._ask(settle_arguments(batch, settlements), asked, now)
            if head[_COUNTED] is not None:
                has_released = await self._judge_counted(head[_COUNTED], now)
            if asked is not None:
                has_released = await self._look_beside(head, now) or has_released
            if is_all and not head[_FLAGS]:
                answer = Exchanged(_all_done(head, batch), jobs, None, swept.given_up())
                return await self._with_released(answer, asked, now) if has_released else answer
            answers = _done(head, batch)
            of_families = bool(head[_FLAGS] & _OF_FAMILIES)
            if jobs:  # not enough of them, because something is owed to families
                self._is_owing = True
                settled = [answers[place] for place in range(len(settlements))]
                return Exchanged(settled, jobs, None, swept.given_up())
        left = [place for place in range(len(settlements)) if place not in answers]
        if left:
            with _after(answers):
                answers |= await self._settle_one_by_one(left, settlements, now, of_families=of_families)
        settled = [answers[place] for place in range(len(settlements))]
        if claim is None:
            return Exchanged(settled, [])
        try:
            got = await self._claim(claim, now, swept)
            return Exchanged(settled, got.jobs, None, got.given_up)
        except TaskHarborError as error:
            return Exchanged(settled, [], error, swept.given_up())

    async def _with_released(self, answer: Exchanged, claim: Claim | None, now: datetime | None) -> Exchanged:
        """A family has ended behind the claim: what it released may fill the rest of it."""
        if claim is None or len(answer.claimed) >= claim.limit:
            return answer
        try:
            got = await self._claim(replace(claim, limit=claim.limit - len(answer.claimed)), now)
        except TaskHarborError:
            return answer
        jobs = [*answer.claimed, *got.jobs]
        return replace(answer, claimed=jobs, given_up=(*answer.given_up, *got.given_up))

    async def _claim(self, claim: Claim, now: datetime | None, swept: Swept | None = None) -> Claimed:
        """A claim and nothing else. `swept`: what a try before it brought about, and left to reclaim."""
        given_up: tuple[Reclaimed, ...] = ()
        jobs: list[JobRecord] = []
        if self._is_owing:
            await self._sweep_families(now)
        if self._far:
            await self._look_again(now)
        for _ in range(_TRIES):
            if swept is not None:
                reclaimed, ended = without_ended(await self._reclaim_one_by_one(list(swept.left), now))
                self._unreported += ended
                given_up += swept.given_up(reclaimed)
            head, jobs, swept = await self._ask(NOTHING, claim, now)
            has_released = bool(head[_FLAGS] & _IS_OWED and await self._sweep_families(now))
            has_released = await self._look_beside(head, now) or has_released
            if has_released and not jobs:
                given_up += swept.given_up()
                swept = None
                continue
            if not head[_FLAGS] & _MUST_RECLAIM:
                given_up += swept.given_up()
                break
        return Claimed(jobs, given_up)

    async def _look_beside(self, head: Sequence[Any], now: datetime | None) -> bool:
        """Did a claim end families for others? One that came back short looks, a full one seldom."""
        is_due = head[_HAS_COUNTS] or not self._signals.claims % _LOOKS_EVERY
        return bool(is_due) and await self._look_for_others(now)

    async def _ask(
        self, settling: tuple[Any, ...], claim: Claim | None, now: datetime | None
    ) -> tuple[Sequence[Any], list[JobRecord], Swept]:
        """The statement: its first row, the jobs that it handed out, and what it swept."""
        signals = self._signals
        signals.claims += claim is not None
        began = self.clock.monotonic()
        token = self.entropy.token()
        start = LEFT_END if claim is None else self._start.arguments(claim, now)
        with signals.marking(claim) as idle:
            rows = await self._connections.rows(
                self._sql["exchange"], now, *settling, *_claim_arguments(claim, token), idle, *start
            )
        head = rows[0]
        if claim is None:
            return head, [], _NOTHING_SWEPT
        swept = _NOTHING_SWEPT if head[_MORE] is None else self._swept(head[_MORE])
        if head[_FLAGS] and head[_FLAGS] != _IS_OWED:
            signals.unmarked.update(idle or ())
            self._start.clear()
            return head, [], swept
        if len(rows) > 1 and rows[-1][0] is None:
            self.orphans.note(_json.decode(rows[-1][_MORE]))
            rows = rows[:-1]
        signals.claim_seconds = self.clock.monotonic() - began
        signals.answered(claim, rows, idle)
        lease = granted(token, claim.worker_id, head[_AT], claim.lease_for)
        jobs = [claimed_of(row, lease) for row in rows[1:]]
        if head[_ODD] or not _rise(jobs):
            jobs.sort(key=_place_in(claim))
        self._start.learn(claim, jobs, head[_AT], now, None if head[_BACK] is None else int(head[_BACK]))
        return head, jobs, swept

    def _swept(self, text: str) -> Swept:
        """What the sweep inside a claim brought about."""
        rows = _json.decode(text)
        self.orphans.note([row[0] for row in rows if row[3] == LOST])
        jobs = {
            ord_: Reclaimed(job_id, queue, type_, RESULTS[result], stalls, instant(at), version)
            for job_id, queue, type_, result, stalls, at, version, ord_ in rows
            if result in RESULTS
        }
        return Swept(jobs, {row[0]: row[7] for row in rows if row[3] == CAREFUL})

    # ------------------------------------------------------------------ one record after the other

    async def _settle_one_by_one(
        self,
        places: Sequence[int],
        settlements: Sequence[Settlement],
        now: datetime | None,
        *,
        of_families: bool,
    ) -> dict[int, Answer]:
        """The settlements at these places, in a transaction of their own."""

        async def settle(connection: Any) -> dict[int, Answer]:
            return await self._settle_in(connection, places, settlements, now)

        if not of_families and Park not in {type(settlements[place]) for place in places}:
            with suppress(HasFamily):
                return await self._connections.step(settle)
        return await self._settle_families(places, settlements, now)

    async def _settle_families(
        self, places: Sequence[int], settlements: Sequence[Settlement], now: datetime | None
    ) -> dict[int, Answer]:
        chosen = [settlements[place] for place in places]
        ids = [settlement.lease.job_id for settlement in chosen]
        answers = await self._family_step(ids, now, lambda jobs: _settle(jobs, chosen))
        return dict(zip(places, answers, strict=True))

    async def _settle_in(
        self, connection: Any, places: Sequence[int], settlements: Sequence[Settlement], now: datetime | None
    ) -> dict[int, Answer]:
        jobs = UnitOfWork(connection, self._sql)
        await jobs.lock({job_id for place in places if is_id(job_id := settlements[place].lease.job_id)}, now)
        answers = {place: lifecycle.settle_one(jobs, settlements[place]) for place in places}
        await jobs.write()
        return answers

    @asynccontextmanager
    async def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AsyncIterator[Any]:
        """Hands out an asyncpg connection."""
        step: FamilyStep | None = None
        async with self._connections.lend() as connection:
            transaction = connection.transaction(isolation="read_committed")
            with translated(writes=False):
                await transaction.start()
            try:
                yield connection
                with translated(writes=False):
                    async with our_names(connection):
                        answer, step = await self._ack_in(connection, ack(), now)
                if isinstance(answer, LeaseLost):
                    raise answer
            except BaseException:
                if not connection.is_closed():
                    with suppress(*FOREIGN):
                        await transaction.rollback()
                raise
            with translated():
                await transaction.commit()
            on_settled(answer)
        if step is not None:
            await self._carry_on(step, now)

    async def _ack_in(
        self, connection: Any, ack: Ack, now: datetime | None
    ) -> tuple[Answer, FamilyStep | None]:
        """One ack inside a transaction that the caller began and will commit; with the step of its family."""
        self._signals.held.discard(ack.lease.job_id)
        batch = batch_of([ack.lease])
        if batch.ids:
            [row] = await connection.fetch(self._sql["settle_or_leave"], now, *settle_arguments(batch, [ack]))
            at, done, states, versions = row
            if done is None or done:
                state = JobState.COMPLETED if done is None else STATES[states[0]]
                return Settled(ack.lease.job_id, state, at, versions[0]), None
        try:
            return (await self._settle_in(connection, [0], [ack], now))[0], None
        except HasFamily:
            ids = [ack.lease.job_id]
            [answer], step = await self._family_step_in(
                connection, ids, now, lambda jobs: _settle(jobs, [ack])
            )
            return answer, step


def _settle(jobs: FamilyStep, settlements: Iterable[Settlement]) -> list[Answer]:
    return families.concluded(jobs, [family_verbs.settle_one(jobs, one) for one in settlements])


@contextmanager
def _after(answers: Mapping[int, Answer]) -> Iterator[None]:
    """What went before is written, so it would be wrong to say that nothing was done."""
    try:
        yield
    except DriverUnavailable as error:
        if error.done is not False or not answers:
            raise
        raise DriverUnavailable("the connection was lost between two settlements", done=None) from error


def _nothing() -> None:
    """There is no subscription."""


def _claim_arguments(claim: Claim | None, token: str) -> tuple[Any, ...]:
    """The arguments of exchange from p_queues to p_rate_us."""
    if claim is None:
        return ("{}", [], "", 0, 0, None, None, None, None)
    rate = (None, None) if claim.rate is None else (claim.rate.count, claim.rate.per_us)
    return (
        *(_names(claim.queues), claim.lanes, claim.worker_id, claim.limit, span_us(claim.lease_for)),
        *(token, claim.types, *rate),
    )


def _rise(jobs: Sequence[JobRecord]) -> bool:
    """Are these in the order in which they were taken? `exchange` returns those of one queue, lane and rank
    by id, which is nearly always their order.
    """
    seqs, ats = [job.seq for job in jobs], [job.eligible_at for job in jobs]
    return all(map(le, seqs, seqs[1:])) and all(map(le, ats, ats[1:]))


def _place_in(claim: Claim) -> Callable[[JobRecord], tuple[Any, ...]]:
    """What claimed jobs are sorted by: the order of the loops of `exchange`."""
    queues = {queue: place for place, queue in enumerate(claim.queues)}
    lanes = {lane: place for place, lane in enumerate(claim.lanes)}
    return lambda job: (queues[job.queue], lanes[job.requires], -job.priority, job.eligible_at, job.seq)


def _names(names: Sequence[str]) -> str:
    """Names as one text that the server reads as an array: a list is encoded name by name, and a worker may
    name thousands of queues. In quotes, because a queue may be called null.
    """
    inner = '","'.join(names)
    return f'{{"{inner}"}}'


def _all_done(head: Sequence[Any], batch: Batch) -> list[Answer]:
    """The answers when nothing is left over."""
    if head[_DONE] is not None or type(batch.places) is not range:
        answers = _done(head, batch)
        return [answers[place] for place in range(len(answers))]
    at, [version], completed = head[_SETTLED_AT], head[_VERSIONS], JobState.COMPLETED
    return [Settled(job_id, completed, at, version) for job_id in batch.ids]


def _done(head: Sequence[Any], batch: Batch) -> dict[int, Answer]:
    """The settlements that the statement has done, by place."""
    at, places, ids = head[_SETTLED_AT], batch.places, batch.ids
    if not ids:
        return {}
    if head[_DONE] is None:
        [version] = head[_VERSIONS]
        return {
            place: Settled(job_id, JobState.COMPLETED, at, version)
            for place, job_id in zip(places, ids, strict=True)
        }
    return {
        places[ord_ - 1]: Settled(ids[ord_ - 1], STATES[state], at, version)
        for ord_, state, version in zip(head[_DONE], head[_STATES] or (), head[_VERSIONS] or (), strict=True)
    }
