"""What the end of a family may look like: the rules that one parent and its children show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from taskharbor.model.bonds import Bonds, Family, fails_parent
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState


@dataclass
class FamilyVerdict:
    """What a world came to."""

    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    runs: int = 0
    deaths: int = 0
    met: Counter[str] = field(default_factory=Counter)


@dataclass
class Known:
    """What the store has answered, by job: accepted completions, first values of notes, accepted events."""

    acks: Counter[str] = field(default_factory=Counter)
    notes: dict[tuple[str, str], bytes] = field(default_factory=dict)
    events: dict[str, bytes] = field(default_factory=dict)


def broken_rules(job: JobRecord, kids: Sequence[JobRecord], known: Known) -> Iterator[str]:
    """The rules that a job breaks at rest, each with what was seen."""
    if not job.state.is_terminal:
        yield f"F5: {job.id} ({job.type}) is {job.state} at rest: {job.family}"
    if known.acks[job.id] > 1:
        yield f"F3: {job.id} was completed {known.acks[job.id]} times"
    yield from _broken_counts(job, kids)
    for note in job.notes:
        if known.notes.get((job.id, note.name), note.data) != note.data:
            yield f"F7: note {note.name} of {job.id} has changed"
    sent = known.events.get(job.id)
    if sent is not None and (job.state, job.result) != (JobState.COMPLETED, sent):
        yield f"F9: event {job.id} was accepted, and is {job.state} ({job.failure_kind})"


def _broken_counts(job: JobRecord, kids: Sequence[JobRecord]) -> Iterator[str]:
    family, bonds = job.family or Family(), job.bonds or Bonds()
    if kids and (family.total, family.open) != (len(kids), 0):
        yield f"F4: {job.id} counts {family.total} children, {family.open} open, of {len(kids)}"
    failed = sum(kid.state is JobState.FAILED and not (kid.bonds or Bonds()).optional for kid in kids)
    if family.failed != failed:
        yield f"F4: {job.id} counts {family.failed} failed children of {failed}"
    is_failed = fails_parent(bonds, family)
    if kids and job.state is JobState.COMPLETED and is_failed:
        yield f"F6: {job.id} completed, and {failed} of its children failed"
    if job.failure_kind == "child_failed" and not is_failed:
        yield f"F6: {job.id} failed by its children, and {failed} of them did"
