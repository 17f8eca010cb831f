"""The verbs of families, and what is owed to them. The rules are in `drivers/families.py`.

Each call is one step (family_step.py) in a transaction of its own, or of the caller's. What an end does to
other trees is owed: written with the step, and carried out right behind it, or by a later call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.drivers import families, family_verbs
from taskharbor.drivers.families import CALL_LIMIT, STEP_LIMIT, take_ends
from taskharbor.drivers.family_ends import with_ended
from taskharbor.drivers.family_enqueue import Arrival
from taskharbor.drivers.messages import Enqueued, FamilyEnd, Noted, Resolution, Resolved
from taskharbor.drivers.postgres.connections import Handle
from taskharbor.drivers.postgres.family_rows import is_mere_child
from taskharbor.drivers.postgres.family_step import Asked, FamilyStep
from taskharbor.drivers.postgres.faults import is_known_id
from taskharbor.drivers.postgres.settlements import are_usable
from taskharbor.drivers.postgres.statements import Statements, as_array, refusal
from taskharbor.errors import (
    BrokenBond,
    ConflictError,
    DriverError,
    DriverMisbehaved,
    InvalidArgument,
    JobNotFound,
    LeaseLost,
    TaskHarborError,
)
from taskharbor.model.checks import is_id
from taskharbor.model.family_steps import family_of, is_late
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.state import TERMINAL

_T = TypeVar("_T")
_PRUNED_AT_ONCE = 100  # roots in one step
_SECOND_LOOK = 1.0  # seconds
_LOOK_EVERY = 1.0  # seconds


class Families(Handle):
    """The family verbs of a driver handle."""

    _is_owing = False
    """Whether a step of this handle has left something to do: its next claim looks."""
    _unreported: tuple[FamilyEnd, ...] = ()
    """What sweeps of this handle have ended, for its next answer."""
    _far: dict[str, None]
    """Parents to look at again,"""
    _far_until = 0.0
    """and when."""
    _looked_to: str | None = None
    """The parent up to which this handle has looked for those that are over; None: begin with the first."""
    _looks_from = 0.0
    """When a claim or a reclaim may look for them again."""

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        if trusted := trusted_ids(jobs):
            try:
                return await self._enqueue_family(jobs, by, now, trusted)
            except (KnownJobs, BrokenBond, InvalidArgument):
                pass
            except DriverMisbehaved as error:
                if not is_known_id(error):
                    raise
        return await self._enqueue_family(jobs, by, now, ())

    async def _enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None, trusted: Collection[str]
    ) -> list[Enqueued]:
        step = FamilyStep(self._sql)

        async def enqueue(connection: Any) -> list[Enqueued]:
            return await answered(connection, arrival_of(step, jobs, by, now, trusted=trusted))

        answers = await self._connections.step(enqueue)
        await self._carry_on(step, now)
        return self._with_ends(answers)

    async def do_resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        def resolve(jobs: FamilyStep) -> list[Resolved | JobNotFound | ConflictError]:
            return families.concluded(jobs, [_resolve_one(jobs, item) for item in items])

        new = [item.new for item in items if item.new is not None]
        ids = [*(item.id for item in items), *_named_by(new)]
        return self._with_ends(await self._family_step(ids, now, resolve, seqs=len(new)))

    async def do_note(
        self, notes: Sequence[Note], now: datetime | None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        if len(notes) == 1 and (noted := await self._take_note(notes[0], now)) is not None:
            return [noted]
        ids = [note.lease.job_id for note in notes if note.lease is not None]
        return await self._family_step(
            ids, now, lambda jobs: [family_verbs.note_one(jobs, note) for note in notes]
        )

    async def _take_note(self, note: Note, now: datetime | None) -> Noted | None:
        """The usual note, by one statement; None: nothing is written, and a step finds out why."""
        lease = note.lease
        if lease is None or not is_id(lease.job_id) or not are_usable([(lease.token, lease.worker_id)]):
            return None
        asked = (now, lease.job_id, lease.token[:32], lease.worker_id, note.name, note.data)
        rows = await self._connections.rows(self._sql["take_note"], *asked)
        return Noted(lease.job_id, note.name, note.data, *rows[0]) if rows else None

    # ------------------------------------------------------------------ counts

    async def _judge_counted(self, counted: str, now: datetime | None) -> bool:
        """End the parents at which children were counted by sets, if none is open: was one looked at?

        `counted` is the answer of `settle_members`. Where few children are left, others may have ended them
        at the same moment, and nobody saw all of it: this looks again, after the commit, and the last one to
        commit sees everything. Where many are left, `_look_again` does so a second later. What is owed is
        carried out, too.
        """
        parents = counted.split(" ")
        is_owed = parents[-1] == "3"
        self._is_owing = self._is_owing or is_owed
        if far := [one[1:] for one in parents if one[0] == "2"]:
            self._note_far(far)
        over = [one[1:] for one in parents if one[0] == "0"]
        near = [one[1:] for one in parents if one[0] == "1"]
        has_judged = await self._judge_if_over(over, near, now)
        if is_owed:
            await self._carry_out_owed(now)
        return has_judged or is_owed

    async def _look_again(self, now: datetime | None, *, at_once: bool = False) -> None:
        """The second look, of a handle that has left many children open at these parents."""
        if at_once or self.clock.monotonic() >= self._far_until:
            far, self._far = list(self._far), {}
            await self._judge_if_over([], far, now)

    async def _look_for_others(self, now: datetime | None) -> bool:
        """The look that a handle which died has not made, of claims and reclaims: did that end a family?"""
        at = self.clock.monotonic()
        if at < self._looks_from:
            return False
        self._looks_from = at + _LOOK_EVERY
        with suppress(DriverError):
            if await self._judge_all_over(now, STEP_LIMIT, among=STEP_LIMIT):
                await self._sweep_families(now, STEP_LIMIT)
                return True
        return False

    def _note_far(self, parents: Iterable[str]) -> None:
        if not self._far:
            self._far_until = self.clock.monotonic() + _SECOND_LOOK
        self._far.update(dict.fromkeys(parents))

    async def _judge_if_over(self, over: list[str], near: list[str], now: datetime | None) -> bool:
        """The children are counted, whatever becomes of this: what fails here is tried again later."""
        try:
            if near:
                rows = await self._connections.rows(self._sql["over_families"], as_array(near), writes=False)
                over = [*over, *(row[0] for row in rows)]
            if over:
                ended = await self._family_step(over, now, lambda jobs: _judged(jobs, over))
                self._unreported += ended  # behind the await: other calls of this handle add to it meanwhile
        except BaseException as error:  # a caller that waits no longer is no reason to forget them
            self._note_far([*over, *near])
            if not isinstance(error, DriverError):
                raise
            return False
        return bool(over)

    # ------------------------------------------------------------------ steps

    async def _family_step(
        self, ids: Iterable[str], now: datetime | None, change: Callable[[FamilyStep], _T], *, seqs: int = 0
    ) -> _T:
        """A step in a transaction of its own, and what follows from it."""
        answer, done = await self._family_step_alone(list(ids), now, change, seqs=seqs)
        await self._carry_on(done, now)
        return answer

    async def _family_step_alone(
        self, ids: Sequence[str], now: datetime | None, change: Callable[[FamilyStep], _T], *, seqs: int = 0
    ) -> tuple[_T, FamilyStep]:
        """The step without what follows from it."""
        done = FamilyStep(self._sql)

        async def step(connection: Any) -> _T:
            return await answered(connection, done.asked(ids, now, change, seqs=seqs))

        return await self._connections.step(step), done

    async def _family_step_in(
        self, connection: Any, ids: Sequence[str], now: datetime | None, change: Callable[[FamilyStep], _T]
    ) -> tuple[_T, FamilyStep]:
        """The step in a transaction of the caller's. What follows from it is left for after the commit."""
        step = FamilyStep(self._sql, carries=False, in_transaction=True)
        return await answered(connection, step.asked(ids, now, change)), step

    async def _carry_on(self, step: FamilyStep, now: datetime | None) -> None:
        """What a step has left to do, up to a limit. The step itself is stored, whatever becomes of this."""
        if step.owes:
            await self._carry_out_owed(now)
        await self._look_behind(step, now)

    async def _carry_out_owed(self, now: datetime | None) -> None:
        """Something is owed: carry out some of it at once. If there is more, the next claim does it."""
        self._is_owing = True
        with suppress(DriverError):
            self._is_owing = await self._sweep_families(now, STEP_LIMIT) >= STEP_LIMIT

    async def _look_behind(self, step: FamilyStep, now: datetime | None) -> None:
        """After the commit of a step that has ended children beside others: is it the last one to commit?"""
        if lowered := step.lowered:
            await self._judge_if_over([], lowered, now)

    def _with_ends(self, answers: list[_T]) -> list[_T]:
        if self._unreported and not all(isinstance(answer, TaskHarborError) for answer in answers):
            return with_ended(answers, self._take_unreported())
        return answers

    def _take_unreported(self) -> tuple[FamilyEnd, ...]:
        unreported, self._unreported = self._unreported, ()
        return unreported

    async def _sweep_families(self, now: datetime | None, limit: int = CALL_LIMIT) -> int:
        """End jobs that missed their deadline, carry out what is owed: how many jobs were looked at.

        What that ends is `_unreported` until an answer reports it.
        """
        late = await self._connections.rows(self._sql["late_families"], now, limit, writes=False)
        looked = await self._judge_all_over(now, limit)
        if late:
            ids = [row[0] for row in late]
            looked += await self._family_step_swept(ids, now, lambda jobs: _end_late(jobs, ids, limit))
        while looked < limit and (more := await self._carry_out_some(now, limit - looked)):
            looked += more
        self._is_owing = looked >= limit
        return looked

    async def _judge_all_over(self, now: datetime | None, limit: int, *, among: int | None = None) -> int:
        """End parents without open children whose last one was counted by a handle that died: how many.

        To look at all of them would cost more the more families are open: a call looks at some, the next one
        at those behind.
        """
        rows = await self._connections.rows(
            self._sql["parents_over"], self._looked_to, among or CALL_LIMIT, writes=False
        )
        [(over, last)] = rows
        if len(over) > limit:
            over = over[:limit]
            last = over[-1]
        if over:
            await self._family_step_swept(over, now, lambda jobs: _judge(jobs, over))
        self._looked_to = last
        return len(over)

    async def _family_step_swept(
        self, ids: Sequence[str], now: datetime | None, change: Callable[[FamilyStep], _T]
    ) -> _T:
        """A step of a sweep, which carries out what is owed in any case."""
        answer, done = await self._family_step_alone(ids, now, change)
        self._unreported += take_ends(done)
        await self._look_behind(done, now)
        return answer

    async def _carry_out_some(self, now: datetime | None, limit: int) -> int:
        """The oldest consequences that are owed and that no other call carries out; 0: there are none."""

        step = FamilyStep(self._sql)

        async def carry_out(connection: Any) -> int:
            rows = await connection.fetch(self._sql["next_owed"], limit)
            if not rows:
                return 0
            asked = step.asked((), now, lambda jobs: families.carry_out(jobs, limit), owed=(rows, limit))
            return await answered(connection, asked)

        looked = await self._connections.step(carry_out)
        self._unreported += take_ends(step)
        await self._look_behind(step, now)
        return looked

    async def _prune_families(self, limit: int, now: datetime | None) -> int:
        """Forget families whose roots are due, children first: how many jobs went."""
        due = await self._connections.rows(self._sql["due_families"], now, limit, writes=False)
        roots = [row[0] for row in due]
        pruned = 0
        for start in range(0, len(roots), _PRUNED_AT_ONCE):
            some = roots[start : start + _PRUNED_AT_ONCE]
            if pruned < limit:
                left = limit - pruned
                pruned += await self._family_step_swept(
                    some,
                    now,
                    lambda jobs, some=some, left=left: _prune(jobs, some, left),  # type: ignore[misc]
                )
        return pruned


async def answered(connection: Any, asked: Asked[_T]) -> _T:
    """Run a step on a connection of asyncpg that has a transaction open."""
    rows: Any = None
    while True:
        try:
            ask = asked.send(rows)
        except StopIteration as over:
            answer: _T = over.value
            return answer
        rows = await connection.fetch(ask.statement, *ask.arguments)


# ------------------------------------------------------------------ enqueue


def arrival_of(
    step: FamilyStep,
    jobs: Sequence[NewJob],
    by: Lease | None,
    now: datetime | None,
    *,
    always_wake: bool = False,
    trusted: Collection[str] = (),
) -> Asked[list[Enqueued]]:
    """An enqueue of jobs with bonds, or under a lease. Raises before anything is written.

    `trusted`: ids that are not looked up, see `trusted_ids`. Whatever this raises then may come from that.
    """
    spending: list[NewJob] = []

    def arrive(inside: FamilyStep) -> list[Enqueued]:
        arrival = Arrival(inside, jobs, by)
        spending[:] = arrival.check()
        if trusted and arrival.repeats_some:
            raise KnownJobs
        return with_ended(arrival.store(), take_ends(inside))

    answers = yield from step.asked(
        [
            *(job.id for job in jobs if job.id not in trusted),
            *(name for name in _named_by(jobs) if name not in trusted),
            *([] if by is None else [by.job_id]),
        ],
        now,
        arrive,
        new_ids=trusted,
        once=[(job.queue, job.idempotency_key, job.id) for job in jobs if job.idempotency_key is not None],
        queues=sorted({job.queue for job in jobs}),
        seqs=len(jobs),
        keys=[(job.queue, job.key) for job in jobs if job.key is not None],
        admits=lambda: spending,
        always_wake=always_wake,
    )
    if step.refusal is not None:
        queue, result, detail = step.refusal
        raise refusal(len(spending), queue=queue, result=result, detail=detail)
    return answers


class KnownJobs(Exception):
    """A call that was trusted to be new repeats jobs."""


def trusted_ids(jobs: Sequence[NewJob]) -> set[str]:
    """The ids of children that are taken for new until the store objects: to look them up costs more."""
    ids = {job.id for job in jobs if is_mere_child(job.bonds) and job.idempotency_key is None}
    return ids if ids and len({job.id for job in jobs}) == len(jobs) else set()


def stored_in(statements: Statements, jobs: Sequence[NewJob], now: datetime | None) -> Asked[list[Enqueued]]:
    """The same in a transaction of the caller's, who commits: nothing is carried out in it."""
    step = FamilyStep(statements, carries=False, in_transaction=True)
    return arrival_of(step, jobs, None, now, always_wake=True)


def _named_by(jobs: Iterable[NewJob]) -> list[str]:
    bonds = [job.bonds for job in jobs if job.bonds is not None]
    return [
        *(one.parent for one in bonds if one.parent is not None),
        *(name for one in bonds for name in one.after),
    ]


def _judged(jobs: FamilyStep, ids: Iterable[str]) -> tuple[FamilyEnd, ...]:
    _judge(jobs, ids)
    return take_ends(jobs)


def _judge(jobs: FamilyStep, ids: Iterable[str]) -> None:
    for job_id in ids:
        if (job := jobs.get(job_id)) is not None:
            families.judge(jobs, job)
    families.carry_out(jobs)


def _resolve_one(jobs: FamilyStep, item: Resolution) -> Resolved | JobNotFound | ConflictError:
    error = None
    if item.new is not None and jobs.get(item.id) is None:
        try:
            arrival = Arrival(jobs, [item.new], None)
            arrival.check()
            arrival.store()
        except ConflictError as refused:
            error = refused
    return family_verbs.resolve_one(jobs, item, error)


# ------------------------------------------------------------------ time


def _end_late(jobs: FamilyStep, ids: Sequence[str], limit: int) -> int:
    late = [job for job_id in ids if (job := jobs.get(job_id)) is not None and _is_to_stop(job, jobs.now)]
    for job in late:
        families.stop(jobs, job, "deadline")
    return len(late) + families.carry_out(jobs, limit)


def _is_to_stop(job: JobRecord, now: datetime) -> bool:
    return job.state not in TERMINAL and family_of(job).stopping is None and is_late(job, now)


def _prune(jobs: FamilyStep, roots: Sequence[str], limit: int) -> int:
    pruned = 0
    for job_id in roots:
        job = jobs.get(job_id)
        if job is not None and job.state in TERMINAL and pruned < limit:
            pruned += _prune_tree(jobs, job, limit - pruned)
    return pruned


def _prune_tree(jobs: FamilyStep, job: JobRecord, limit: int) -> int:
    """Forget a job that is over, its children first: how many went, at most `limit`."""
    pruned = 0
    if family_of(job).total:
        for child in jobs.children(job.id, limit):
            if pruned < limit:
                pruned += _prune_tree(jobs, child, limit - pruned)
    if pruned >= limit or jobs.has_children(job.id) or family_verbs.is_named(jobs, job):
        return pruned
    jobs.drop(job)
    return pruned + 1
