"""The verbs of families: enqueue with bonds, resolve, note, and what is owed."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers import families, family_verbs
from taskharbor.drivers.family_ends import with_ended
from taskharbor.drivers.family_enqueue import Arrival
from taskharbor.drivers.lifecycle import admit
from taskharbor.drivers.messages import Enqueued, Noted, Promoted, Resolution, Resolved
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.families import FamilyRecords
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import BrokenBond, ConflictError, JobNotFound, LeaseLost, RateLimited
from taskharbor.model.job import Lease, NewJob, Note

Resolutions = list[Resolved | JobNotFound | ConflictError]


def enqueue_family(step: Step, jobs: Sequence[NewJob], by: Lease | None) -> list[Enqueued] | RateLimited:
    """Every job of one call, some with bonds; or why none was stored."""
    records = FamilyRecords(step)
    answers = _enqueue(step, records, jobs, by)
    return answers if isinstance(answers, RateLimited) else with_ended(answers, families.take_ends(records))


def _enqueue(
    step: Step, records: FamilyRecords, jobs: Sequence[NewJob], by: Lease | None
) -> list[Enqueued] | RateLimited:
    records.expect([job.id for job in jobs])
    arrival = Arrival(records, jobs, by)
    new = arrival.check()
    if step.rules and gates.limits_enqueues(step):
        refusal = gates.admit(step, admit(records, new))
        if refusal is not None:
            return refusal
    return arrival.store()


def resolve(step: Step, items: Sequence[Resolution]) -> Resolutions:
    """Per item what became of the job, or why it was refused."""
    records = FamilyRecords(step)
    answers: Resolutions = [
        family_verbs.resolve_one(records, item, _created(step, records, item)) for item in items
    ]
    return families.concluded(records, answers)


def _created(step: Step, records: FamilyRecords, item: Resolution) -> ConflictError | None:
    """Store the job of an item that is not there yet; or why it cannot be."""
    if item.new is None or records.get(item.id) is not None:
        return None
    try:
        answer = _enqueue(step, records, [item.new], None)
    except ConflictError as refused:
        return refused
    return answer if isinstance(answer, RateLimited) else None


def note(step: Step, notes: Sequence[Note]) -> list[Noted | LeaseLost | BrokenBond]:
    records = FamilyRecords(step)
    return [family_verbs.note_one(records, one) for one in notes]


def sweep(step: Step, limit: int = families.CALL_LIMIT) -> Promoted:
    """End jobs that missed their deadline, and carry out what is owed."""
    records = FamilyRecords(step)
    looked = families.sweep(records, limit)
    return Promoted(looked, families.take_ends(records))


def sweep_if_due(step: Step, limit: int = families.CALL_LIMIT) -> Promoted:
    return sweep(step, limit) if step.fetch_one("family_due", now=step.us)[0] else Promoted(0)
