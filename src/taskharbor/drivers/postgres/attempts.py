"""Handing out jobs and ending attempts.

Acks of jobs that concern nobody else travel with the claim in one statement. Everything else is
settled record by record in a transaction before it. A claim never joins such a transaction: it may have to
wait at the gate of a limit, and whoever waits there must hold nothing that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.messages import (
    Claim,
    Exchanged,
    Extended,
    Reclaimed,
    Settled,
    given_up_in,
    reclaimed,
)
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.postgres.acks import NO_ACKS, Acks, acks_of, is_id, numbered, numbered_acks
from taskharbor.drivers.postgres.connections import Connections
from taskharbor.drivers.postgres.floors import NO_FLOORS, Floors
from taskharbor.drivers.postgres.ledger import Ledger
from taskharbor.drivers.postgres.rows import claimed_of, granted, progress_text, span_us
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.errors import DriverUnavailable, JobNotInflight, LeaseLost, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import FAILURE_TYPE, NO_TIME, JobRecord, Lease, Progress
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.state import JobState
from taskharbor.model.transitions import (
    dropped,
    failure_job,
    held,
    lease_error,
    merged,
    new_record,
    settled,
    stalled,
    unblocked,
    won,
)

Answer = Settled | LeaseLost
_SWEPT_PER_CLAIM = 100
_AT, _FLAGS, _BACK, _DONE, _VERSIONS, _SETTLED_AT = 5, 1, 0, 12, 13, 14  # of the first row of exchange.sql
_MUST_SWEEP = 1  # a flag; the others say that acks are left over, or that others stand at a gate
_MORE = 11  # of the others: set when a job is not plain


class Attempts:
    """The attempt verbs of one driver handle."""

    def __init__(
        self,
        connections: Connections,
        statements: Statements,
        entropy: Entropy,
        clock: Clock,
        orphans: Orphans,
    ) -> None:
        self._connections = connections
        self._sql = statements
        self._entropy = entropy
        self._orphans = orphans
        self._clock = clock
        self._floors = Floors(clock)
        self.listens = False  # while somebody listens for wake-ups on this handle
        self.unmarked: set[str] = set()  # of the queues listened to, those that must be marked as hungry
        self.held: set[str] = (
            set()
        )  # jobs that were handed out here and not settled yet, while somebody listens
        self.shape = ""  # what the last claim could take, but for its queues
        self.found_enough = False  # whether the last claim brought all it asked for
        self.claims = 0  # begun so far
        self.claim_seconds = 0.0  # how long the last one took
        self.on_claimed: Callable[[], None] = _nothing  # a claim was answered
        self.on_not_enough: Callable[[], None] = (
            _nothing  # it has brought less than it could, and marked its queues
        )

    # ------------------------------------------------------------------ settle and claim

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None, now: datetime | None
    ) -> Exchanged:
        if self.held:
            self.held.difference_update([settlement.lease.job_id for settlement in settlements])
        acks = acks_of(settlements)
        if acks is not None:
            return await self._settle_and_claim(settlements, acks, claim, now)
        self._floors.forget()
        quick, others = _parted(settlements)
        answers: dict[int, Answer] = {}
        if quick:  # first of all: the others take some round trips, and leases go on running out
            items = [settlements[place] for place in quick]
            acked = await self._settle_and_claim(items, numbered_acks(items), None, now)
            answers |= zip(quick, acked.settled, strict=True)
        with _after(answers):
            await self._set_apart([settlements[place].lease for place in others])
            answers |= await self._settle(others, settlements, now)
        if claim is None:
            return Exchanged(_in_order(answers), [])
        try:
            rest = await self._settle_and_claim((), NO_ACKS, claim, now)
        except TaskHarborError as error:
            rest = Exchanged([], [], error)
        return Exchanged(_in_order(answers), rest.claimed, rest.error, rest.given_up)

    async def _settle_and_claim(
        self, items: Sequence[Settlement], acks: Acks, claim: Claim | None, now: datetime | None
    ) -> Exchanged:
        """One statement, if that is possible; else acks that are left over, sweep and claim one by one."""
        self.claims += claim is not None
        began = self._clock.monotonic()
        token = self._entropy.token()
        floors = NO_FLOORS if claim is None else self._floors.arguments(claim, now)
        with self._marking(claim) as hungry:
            rows = await self._connections.rows(
                self._sql["exchange"],
                *_arguments(acks, claim, now, token, sweeps=True, hungry=hungry),
                *floors,
            )
        head = rows[0]
        if not head[_FLAGS]:
            self.claim_seconds = self._clock.monotonic() - began
            jobs = self._handed_out(rows, claim, token, hungry)
            if claim is not None:
                back = None if head[_BACK] is None else int(head[_BACK])
                self._floors.learn(claim, jobs, head[_AT], now, back)
            return Exchanged(_all_done(head, acks), jobs)

        self.unmarked.update(hungry or ())
        self._floors.forget()
        answers = _done(head, acks)
        left = [place for place in range(len(items)) if place not in answers]
        with _after(answers):
            answers |= await self._settle(left, items, now)
        if claim is None:
            return Exchanged(_in_order(answers), [])
        swept: list[Reclaimed] = []
        try:
            if head[_FLAGS] & _MUST_SWEEP:
                swept = await self._sweep(claim.queues, _SWEPT_PER_CLAIM, now)
            jobs = await self._reserve(claim, now)
            return Exchanged(_in_order(answers), jobs, given_up=given_up_in(swept))
        except TaskHarborError as error:
            if not items:
                raise
            return Exchanged(_in_order(answers), [], error, given_up_in(swept))

    async def _reserve(self, claim: Claim, now: datetime | None) -> list[JobRecord]:
        """A claim and nothing else, after the expired leases of its queues were dealt with."""
        token = self._entropy.token()
        with self._marking(claim) as hungry:
            rows = await self._connections.rows(
                self._sql["exchange"],
                *_arguments(NO_ACKS, claim, now, token, hungry=hungry),
                *NO_FLOORS,
            )
        return self._handed_out(rows, claim, token, hungry)

    @contextmanager
    def _marking(self, claim: Claim | None) -> Iterator[list[str] | None]:
        """The queues of a claim to mark as hungry if it finds too little. A mark that somebody took away was
        told of, so all the others are still there. Such a word may come before the answer to the claim: what
        it adds to `unmarked` must stay.
        """
        hungry = (
            [queue for queue in claim.queues if queue in self.unmarked] if claim and self.unmarked else []
        )
        self.unmarked.difference_update(hungry)
        try:
            yield hungry or None
        except BaseException:
            self.unmarked.update(hungry)
            raise

    def _handed_out(
        self, rows: Sequence[Any], claim: Claim | None, token: str, hungry: list[str] | None
    ) -> list[JobRecord]:
        if claim is None:
            return []
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
            self.unmarked.update(hungry or ())
        if len(rows) == 1:
            return []
        lease = granted(token, claim.worker_id, rows[0][_AT], claim.lease_for)
        jobs = [claimed_of(row, lease) for row in rows[1:]]
        if any(row[_MORE] is not None for row in rows):  # plain ones come in order
            jobs.sort(key=_order_of(claim))
        return jobs

    # ------------------------------------------------------------------ settle, one record after the other

    async def _set_apart(self, leases: Sequence[Lease]) -> None:
        """Give these jobs places of their own, in a step of its own.

        The step that settles them takes some round trips, and must not keep heartbeats of the jobs that were
        claimed together with them waiting for so long.
        """
        asked = [lease for lease in leases if is_usable(lease)]
        await self._connections.rows(
            self._sql["unpack"], [lease.job_id for lease in asked], sorted({lease.token for lease in asked})
        )

    async def _settle(
        self, places: Sequence[int], settlements: Sequence[Settlement], now: datetime | None
    ) -> dict[int, Answer]:
        """The settlements at these places, in a transaction of their own."""
        if not places:
            return {}
        return await self._connections.step(
            lambda connection: self._settle_in(connection, places, settlements, now)
        )

    async def _settle_in(
        self, connection: Any, places: Sequence[int], settlements: Sequence[Settlement], now: datetime | None
    ) -> dict[int, Answer]:
        ledger = Ledger(connection, self._sql)
        ids = {settlements[place].lease.job_id for place in places}
        tokens = {lease.token for place in places if is_usable(lease := settlements[place].lease)}
        await ledger.lock(filter(is_id, ids), now, tokens=tokens)
        answers = {place: settle_one(ledger, settlements[place]) for place in places}
        await ledger.write()
        return answers

    async def settle_in(self, connection: Any, settlement: Settlement, now: datetime | None) -> Answer:
        """One settlement inside a transaction that somebody else began and will commit."""
        self.held.discard(settlement.lease.job_id)
        return (await self._settle_in(connection, [0], [settlement], now))[0]

    async def extend(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        again = _repeated(leases)
        if again:  # the same job twice in one call: one after the other
            first = [place for place in range(len(leases)) if place not in again]
            answers = dict(
                zip(
                    first,
                    await self.extend([leases[p] for p in first], lease_for, progress, now),
                    strict=True,
                )
            )
            answers |= zip(
                again, await self.extend([leases[p] for p in again], lease_for, progress, now), strict=True
            )
            return [answers[place] for place in range(len(leases))]
        return await self._extend(leases, lease_for, progress, now)

    async def _extend(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        # Sorted, so that two batches over the same jobs never wait for each other crosswise.
        places = sorted(
            (place for place, lease in enumerate(leases) if is_usable(lease)), key=lambda p: leases[p].job_id
        )
        asked = [leases[place] for place in places]
        texts = [progress_text(progress.get(lease.job_id)) for lease in asked] if progress else []
        rows = await self._connections.rows(
            self._sql["extend"],
            now,
            [lease.job_id for lease in asked],
            *numbered(asked),
            texts if any(texts) else None,
            span_us(lease_for),
        )
        answers: dict[int, Extended | LeaseLost] = {}
        for ord_, fence, worker, queue, is_cancelled, version, expires_at, at in rows:
            lease = asked[ord_ - 1]
            held_now = Lease(lease.job_id, lease.token, fence, expires_at, worker, queue)
            answers[places[ord_ - 1]] = Extended(held_now, is_cancelled, at, version)
        lost = [place for place in range(len(leases)) if place not in answers]
        if lost:
            answers |= zip(lost, await self._why_lost([leases[place] for place in lost], now), strict=True)
        return [answers[place] for place in range(len(leases))]

    async def _why_lost(self, leases: Sequence[Lease], now: datetime | None) -> list[LeaseLost]:
        rows = await self._connections.rows(
            self._sql["read_leases"],
            [lease.job_id for lease in leases if is_id(lease.job_id)],
            now,
            writes=False,
        )
        seen = {row[0]: row for row in rows}
        return [_lease_error(seen.get(lease.job_id), lease) for lease in leases]

    # ------------------------------------------------------------------ expired leases

    async def reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._sweep(None, limit, now)

    async def _sweep(self, queues: Sequence[str] | None, limit: int, now: datetime | None) -> list[Reclaimed]:
        """Expired leases of these queues, or of all."""
        lost: list[str] = []

        async def sweep(connection: Any) -> list[Reclaimed]:
            lost.clear()  # it may be tried again
            picked = await connection.fetch(
                self._sql["pick_expired"], now, None if queues is None else list(queues), limit
            )
            if not picked:
                return []
            ledger = Ledger(connection, self._sql)
            await ledger.lock([row[0] for row in picked], now)
            answers = []
            for row in picked:
                job = ledger.records.get(row[0])
                # A copy may have ended with its original, a moment ago in this very loop.
                if job is not None and job.state is JobState.RUNNING:
                    answers.append(_reclaim(ledger, job))
            await ledger.write()
            if gone := [row[0] for row in picked if row[0] not in ledger.records]:
                lost.extend(row[0] for row in await connection.fetch(self._sql["drop_lost"], gone))
            return answers

        answers = await self._connections.step(sweep)
        self._orphans.note(lost)
        return answers


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
    """Nobody listens."""


# ------------------------------------------------------------------ which acks can be quick


def _parted(settlements: Sequence[Settlement]) -> tuple[list[int], list[int]]:
    """The places of acks that may travel with the claim, and of all the others."""
    ids = [item.lease.job_id for item in settlements]
    if len(set(ids)) < len(ids):  # the same job twice: the order counts
        return [], list(range(len(ids)))
    quick: list[int] = []
    others: list[int] = []
    for place, item in enumerate(settlements):
        (quick if isinstance(item, Ack) and is_usable(item.lease) else others).append(place)
    return quick, others


def _repeated(leases: Sequence[Lease]) -> list[int]:
    seen: set[str] = set()
    again = []
    for place, lease in enumerate(leases):
        if lease.job_id in seen:
            again.append(place)
        seen.add(lease.job_id)
    return again


def is_usable(lease: Lease) -> bool:
    """Whether the server can be asked about it; one that nobody can hold is refused without."""
    return is_id(lease.job_id) and "\0" not in lease.token and "\0" not in (lease.worker_id or "")


def _arguments(
    acks: Acks,
    claim: Claim | None,
    now: datetime | None,
    token: str = "",
    *,
    sweeps: bool = False,
    hungry: list[str] | None = None,
) -> list[Any]:
    """The arguments of exchange.sql."""
    mine = (now, acks.text, acks.numbers, acks.tokens, acks.workers, acks.results)
    if claim is None:
        return [*mine, "{}", [], "", 0, 0, "", None, None, None, False, None]
    rate = (None, None) if claim.rate is None else (claim.rate.count, claim.rate.per_us)
    return [
        *(
            *mine,
            _as_array(claim.queues),
            claim.lanes,
            claim.worker_id,
            claim.limit,
            span_us(claim.lease_for),
        ),
        *(token, claim.types, *rate, sweeps, hungry),
    ]


def _as_array(names: Sequence[str]) -> str:
    """Names as one text that the server reads as an array: a list is encoded name by name, and a worker may
    name thousands of queues. In quotes, because a queue may be called null.
    """
    inner = '","'.join(names)
    return f'{{"{inner}"}}'


def _all_done(head: Sequence[Any], acks: Acks) -> list[Answer]:
    """The answers when nothing is left over."""
    if not acks.ids:
        return []
    if head[_DONE] is not None:
        return _in_order(_done(head, acks))
    at, [version], completed = head[_SETTLED_AT], head[_VERSIONS], JobState.COMPLETED
    return [Settled(job_id, completed, at, version) for job_id in acks.ids]


def _done(head: Sequence[Any], acks: Acks) -> dict[int, Answer]:
    """The acks that the statement has settled, by place."""
    if not acks.ids:
        return {}
    if head[_DONE] is None:
        return dict(enumerate(_all_done(head, acks)))
    at, completed = head[_SETTLED_AT], JobState.COMPLETED
    return {
        ord_ - 1: Settled(acks.ids[ord_ - 1], completed, at, version)
        for ord_, version in zip(head[_DONE], head[_VERSIONS], strict=True)
    }


def _in_order(answers: dict[int, Answer]) -> list[Answer]:
    return [answers[place] for place in range(len(answers))]


def _order_of(claim: Claim) -> Any:
    """The order of claims as a sort key."""
    queues = {queue: place for place, queue in enumerate(claim.queues)}
    lanes = {lane: place for place, lane in enumerate(claim.lanes)}
    return lambda job: (queues[job.queue], lanes[job.requires], -job.priority, job.eligible_at, job.seq)


def _lease_error(row: Sequence[Any] | None, lease: Lease) -> LeaseLost:
    """Why a lease was refused, in the order that every driver keeps."""
    if row is None or row[1] is None:
        return JobNotInflight(lease.job_id)
    _, token, worker, expires_at, at = row
    record = JobRecord(
        id=lease.job_id,
        seq=0,
        type="",
        queue="",
        state=JobState.RUNNING,
        payload=b"",
        created_at=at,
        updated_at=at,
        token=token,
        worker_id=worker,
        lease_expires_at=expires_at,
    )
    # A lease that holds again by now was refused a moment ago: it ran out in between.
    return lease_error(record, lease, at) or JobNotInflight(lease.job_id)


# ------------------------------------------------------------------ one record and what follows from it


def settle_one(ledger: Ledger, settlement: Settlement) -> Answer:
    lease = settlement.lease
    job = held(ledger.records.get(lease.job_id), lease, ledger.at)
    if isinstance(job, LeaseLost):
        return job
    after = settled(job, settlement, ledger.at)
    is_win = after.state is JobState.COMPLETED and isinstance(settlement, Ack)
    if is_win and job.speculates_on is not None and isinstance(settlement, Ack):
        _win(ledger, job.speculates_on, settlement.result)
    after = _leave(ledger, job, after)
    drop_copy_of(ledger, after.id)
    return Settled(after.id, after.state, ledger.at, after.version)


def _reclaim(ledger: Ledger, job: JobRecord) -> Reclaimed:
    had_blocked = ledger.of_key(job, JobState.BLOCKED) is not None
    after = _leave(ledger, job, stalled(job, "", ledger.at))
    if after.state.is_terminal:
        drop_copy_of(ledger, after.id)
    return reclaimed(after, ledger.at, had_blocked=had_blocked)


def _leave(ledger: Ledger, before: JobRecord, after: JobRecord) -> JobRecord:
    """A job that left `running`, with everything that follows from it in the same step."""
    blocked = ledger.of_key(before, JobState.BLOCKED)
    if blocked is not None and not after.state.is_terminal:
        after = merged(after, blocked, ledger.at)
        ledger.merge_away(blocked, after.id)
    ledger.put(after)
    if after.state.is_terminal:
        if blocked is not None:
            ledger.put(unblocked(blocked, ledger.at))
        end(ledger, after)
    return after


def end(ledger: Ledger, job: JobRecord) -> None:
    """What the end of a job sets off: its failure job, its idempotency window, its retention."""
    if job.state is JobState.FAILED and job.type != FAILURE_TYPE and job.speculates_on is None:
        fail_queue = ledger.fail_queue(job.queue)
        if fail_queue is not None:
            ledger.put(new_record(failure_job(job, fail_queue, ledger.at), 0, ledger.at))
    ledger.ended(job.id)
    if ledger.retention(job.queue).of(job.state) == NO_TIME:
        ledger.drop(job)


def _win(ledger: Ledger, original_id: str, result: bytes | None) -> None:
    """The copy finished first: it completes its original."""
    original = ledger.records.get(original_id)
    if original is not None and not original.state.is_terminal:
        after = won(original, result, ledger.at)
        ledger.put(after)
        if original.state is JobState.RUNNING:
            ledger.tell_of_cancel(original.id, original.worker_id)
        end(ledger, after)


def drop_copy_of(ledger: Ledger, job_id: str) -> None:
    copy = ledger.copy_of(job_id)
    if copy is not None:
        ledger.put(dropped(copy, ledger.at))
        ledger.tell_of_cancel(copy.id, copy.worker_id)
