"""The verbs that only jobs with bonds, a family or notes need, each a step of the shared rules.

The rules are in `drivers/families.py` and the modules beside it. A step carries out what it owes up to its
limit; the rest is stored and carried out by `sweep`, which claims and sweeps call when the field `t` of the
data says that something is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.families import CALL_LIMIT, STEP_LIMIT, take_ends
from taskharbor.drivers.family_ends import with_ended
from taskharbor.drivers.family_enqueue import Arrival
from taskharbor.drivers.messages import Enqueued, FamilyEnd, Promoted, Resolution, Resolved
from taskharbor.drivers.redis.enqueue import Enqueuer, are_children
from taskharbor.drivers.redis.family_unit import ASK_LATE, ASK_OWED, FamilyUnit
from taskharbor.drivers.redis.large_stops import stop_many
from taskharbor.drivers.redis.notes import NoteAnswer, Notes
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.snapshot import ask_for_job, scoped
from taskharbor.errors import ConflictError, JobNotFound, JobNotInflight
from taskharbor.model.checks import is_id
from taskharbor.model.job import Lease, NewJob, Note
from taskharbor.model.state import TERMINAL


class Families:
    """The family verbs of one driver handle."""

    def __init__(self, steps: OptimisticStep) -> None:
        self._steps = steps
        self._enqueuer = Enqueuer(steps.primary, steps.keys, steps)
        self._notes = Notes(steps)
        self.unreported: tuple[FamilyEnd, ...] = ()  # what calls have ended, for the next answer

    def keep(self, ended: Iterable[FamilyEnd]) -> None:
        """What a call has ended before it is sure of its answer: the next one reports it."""
        self.unreported += tuple(ended)

    def take_unreported(self) -> tuple[FamilyEnd, ...]:
        unreported, self.unreported = self.unreported, ()
        return unreported

    # ------------------------------------------------------------------ in

    async def enqueue(self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None) -> list[Enqueued]:
        if by is not None and not is_id(by.job_id):
            raise JobNotInflight(by.job_id)
        if are_children(jobs):
            first_seq = await self._steps.first_seq(len(jobs))
            answers = await self._enqueuer.enqueue_children(jobs, by, now, first_seq)
            if answers is not None:
                await self._steps.ring({job.queue for job in jobs})
                return answers
        asked = dict.fromkeys(ask for job in jobs for ask in _asked_by(job))
        if by is not None:
            asked[ask_for_job(by.job_id)] = None

        def decide(unit: FamilyUnit) -> list[Enqueued]:
            return with_ended(_stored(unit, jobs, by), take_ends(unit))

        queues = {job.queue for job in jobs}
        return await self._steps.run(list(asked), decide, now, seqs=len(jobs), queues=queues)

    async def resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        new = [item.new for item in items if item.new is not None]
        asked = dict.fromkeys(ask_for_job(item.id) for item in items)
        asked |= dict.fromkeys(ask for job in new for ask in _asked_by(job))

        def decide(unit: FamilyUnit) -> list[Resolved | JobNotFound | ConflictError]:
            return families.concluded(unit, [_resolve_one(unit, item) for item in items])

        queues = {job.queue for job in new}
        return await self._steps.run(list(asked), decide, now, seqs=len(new), queues=queues)

    async def note(self, notes: Sequence[Note], now: datetime | None) -> list[NoteAnswer]:
        return await self._notes.note(notes, now)

    # ------------------------------------------------------------------ time

    async def sweep(self, now: datetime | None, limit: int = CALL_LIMIT) -> int:
        """End jobs that missed their deadline and carry out what is owed: how many were looked at.

        In small steps: a large one would meet a conflict more often than not. What they end is kept.
        """
        looked = 0
        while looked < limit:
            looked += await stop_many(self._steps, limit - looked, now)
            most = min(STEP_LIMIT, limit - looked)
            if most <= 0:
                break
            found = await self._steps.run([ASK_OWED, ASK_LATE], partial(_sweep, limit=most), now)
            looked += found.count
            self.keep(found.ended)
            if not found.count:
                break
        return looked

    async def prune(self, ids: Sequence[str], limit: int, now: datetime | None) -> int:
        """Forget these finished jobs, their children first, up to the limit; returns how many went."""
        pruned = 0
        for job_id in ids:
            gone = 1
            while gone and pruned < limit:
                part = partial(_prune, job_id=job_id, limit=min(STEP_LIMIT, limit - pruned))
                gone = await self._steps.run([ask_for_job(job_id)], part, now)
                pruned += gone
        return pruned


def _asked_by(job: NewJob) -> list[bytes]:
    """What decides about a new job: itself, its keys, its parent and the jobs that it comes after."""
    asked = [ask_for_job(job.id)]
    if job.key is not None:
        asked.append(b"k" + scoped(job.queue, job.key))
    if job.idempotency_key is not None:
        asked.append(b"i" + scoped(job.queue, job.idempotency_key))
    if job.bonds is not None:
        if job.bonds.parent is not None:
            asked.append(ask_for_job(job.bonds.parent))
        asked += map(ask_for_job, job.bonds.after)
    return asked


def _stored(unit: FamilyUnit, jobs: Sequence[NewJob], by: Lease | None) -> list[Enqueued]:
    arrival = Arrival(unit, jobs, by)
    unit.rates = [*unit.rates, *lifecycle.admit(unit, arrival.check())]
    return arrival.store()


def _resolve_one(unit: FamilyUnit, item: Resolution) -> Resolved | JobNotFound | ConflictError:
    error: ConflictError | None = None
    if item.new is not None and unit.get(item.id) is None:
        try:
            _stored(unit, [item.new], None)
        except ConflictError as refused:
            error = refused
    return family_verbs.resolve_one(unit, item, error)


def _sweep(unit: FamilyUnit, limit: int) -> Promoted:
    looked = families.sweep(unit, limit)
    return Promoted(looked, take_ends(unit))


def _prune(unit: FamilyUnit, job_id: str, limit: int) -> int:
    """Forget a finished job, its children first. Returns how many went, at most `limit`."""
    job = unit.get(job_id)
    if job is None or job.state not in TERMINAL:
        return 0
    pruned = 0
    for child in unit.children(job_id, limit):
        pruned += _prune(unit, child.id, limit - pruned)
        if pruned >= limit:
            return pruned
    if unit.has_children(job_id) or family_verbs.is_named(unit, job):
        return pruned
    unit.drop(job)
    return pruned + 1
