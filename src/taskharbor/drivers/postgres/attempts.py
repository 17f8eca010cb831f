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
from typing import Any

import msgspec

from taskharbor.drivers import lifecycle
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
from taskharbor.drivers.postgres.faults import FOREIGN, translated
from taskharbor.drivers.postgres.leases import CAREFUL, LOST, RESULTS, Leases
from taskharbor.drivers.postgres.rows import STATES, claimed_of, granted, span_us
from taskharbor.drivers.postgres.settlements import NOTHING, Batch, batch_of, settle_arguments
from taskharbor.drivers.postgres.unit_of_work import UnitOfWork
from taskharbor.errors import DriverUnavailable, LeaseLost, TaskHarborError
from taskharbor.model.checks import is_id
from taskharbor.model.clock import instant
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.state import JobState

Answer = Settled | LeaseLost
_BACK, _FLAGS, _AT, _MORE = 0, 1, 5, 11  # of the first row of exchange
_DONE, _STATES, _VERSIONS, _SETTLED_AT = 13, 14, 15, 16
_MUST_RECLAIM = 1  # a flag; the others: settlements are left over, or others are at a gate
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
        return await self._claim(claim, now)

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        return (await self._exchange(settlements, None, now)).settled

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        if settlements:
            return await self._exchange(settlements, claim, now)
        got = await self._claim(claim, now)
        return Exchanged([], got.jobs, None, got.given_up)

    async def _exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime | None
    ) -> Exchanged:
        """One statement, unless something is left over: then that first, and the claim in another one."""
        if self._signals.held:
            self._signals.held.difference_update([settlement.lease.job_id for settlement in settlements])
        batch = batch_of([settlement.lease for settlement in settlements])
        answers: dict[int, Answer] = {}
        swept = _NOTHING_SWEPT
        if batch.ids:
            is_all = len(batch.ids) == len(settlements)
            asked = claim if is_all else None
            head, jobs, swept = await self._ask(settle_arguments(batch, settlements), asked, now)
            if is_all and not head[_FLAGS]:
                return Exchanged(_all_done(head, batch), jobs, None, swept.given_up())
            answers = _done(head, batch)
        left = [place for place in range(len(settlements)) if place not in answers]
        if left:
            with _after(answers):
                answers |= await self._settle_one_by_one(left, settlements, now)
        settled = [answers[place] for place in range(len(settlements))]
        if claim is None:
            return Exchanged(settled, [])
        try:
            got = await self._claim(claim, now, swept)
            return Exchanged(settled, got.jobs, None, got.given_up)
        except TaskHarborError as error:
            return Exchanged(settled, [], error, swept.given_up())

    async def _claim(self, claim: Claim, now: datetime | None, swept: Swept | None = None) -> Claimed:
        """A claim and nothing else. `swept`: what a try before it brought about, and left to reclaim."""
        given_up: tuple[Reclaimed, ...] = ()
        jobs: list[JobRecord] = []
        for _ in range(_TRIES):
            if swept is not None:
                given_up += swept.given_up(await self._reclaim_one_by_one(list(swept.left), now))
            head, jobs, swept = await self._ask(NOTHING, claim, now)
            if not head[_FLAGS] & _MUST_RECLAIM:
                given_up += swept.given_up()
                break
        return Claimed(jobs, given_up)

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
        if head[_FLAGS]:
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
        self, places: Sequence[int], settlements: Sequence[Settlement], now: datetime | None
    ) -> dict[int, Answer]:
        """The settlements at these places, in a transaction of their own."""

        async def settle(connection: Any) -> dict[int, Answer]:
            return await self._settle_in(connection, places, settlements, now)

        return await self._connections.step(settle)

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
        async with self._connections.lend() as connection:
            transaction = connection.transaction(isolation="read_committed")
            with translated(writes=False):
                await transaction.start()
            try:
                yield connection
                with translated(writes=False):
                    async with our_names(connection):
                        answer = await self._ack_in(connection, ack(), now)
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

    async def _ack_in(self, connection: Any, ack: Ack, now: datetime | None) -> Answer:
        """One ack inside a transaction that the caller began and will commit."""
        self._signals.held.discard(ack.lease.job_id)
        batch = batch_of([ack.lease])
        if batch.ids:
            [row] = await connection.fetch(self._sql["settle_or_leave"], now, *settle_arguments(batch, [ack]))
            at, done, states, versions = row
            if done is None or done:
                return Settled(
                    ack.lease.job_id,
                    JobState.COMPLETED if done is None else STATES[states[0]],
                    at,
                    versions[0],
                )
        return (await self._settle_in(connection, [0], [ack], now))[0]


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
