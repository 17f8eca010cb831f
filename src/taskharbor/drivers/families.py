"""What the end of a job does to the jobs around it: releases, skips, counts, stops, verdicts.

`drivers/lifecycle.py` changes one job for one verb. When a job with bonds ends there, `follow` notes it, and
`carry_out` runs behind the items of the call, in the same step:

- the end is counted at the parent, which may be over by it: so on upwards, at once
- the jobs that come after it, and the children of a stopped parent, are looked at up to a limit. What is left
  is *owed*: stored with the step, and carried out by later calls, oldest first

A callback is a job that waits from the start, so it can be neither lost nor fired twice: a release is one
guarded move of it. Nobody trusts a counter alone: before a release every job that it comes after is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, TypeVar, assert_never

from msgspec.structs import replace

from taskharbor.drivers import lifecycle
from taskharbor.drivers.family_ends import with_ended
from taskharbor.drivers.lifecycle import JobsInStep
from taskharbor.drivers.messages import FamilyEnd
from taskharbor.errors import TaskHarborError
from taskharbor.model.bonds import Stop, When, fails_parent, is_spared
from taskharbor.model.family_steps import (
    bonds_of,
    family_of,
    finished,
    is_failure,
    is_late,
    may_be_seen_over,
    never_runs,
    over_among,
    parent_of,
    released,
    reported_end,
    stopped,
    with_end,
)
from taskharbor.model.job import NO_TIME, JobRecord
from taskharbor.model.queue import EVERY_QUEUE, retention_of
from taskharbor.model.state import TERMINAL, JobState

_Answer = TypeVar("_Answer")

STEP_LIMIT = 100
"""How many other jobs the items of a call may change in their own step."""
CALL_LIMIT = 1000
"""How many owed changes a claim or a `promote` carries out."""


OwedKind = Literal["release", "stop", "events"]
"""release: the jobs that come after it; stop: its children; events: its children that wait for a call."""


class Owed(NamedTuple):
    """A consequence that is not carried out yet, behind the job with the seq `cursor`."""

    no: int
    kind: OwedKind
    job_id: str
    cursor: int = 0


class FamiliesInStep(JobsInStep, Protocol):
    """The jobs of a store inside one step, with what ties them together.

    Methods that take `cursor` and `limit` return jobs in enqueue order with a seq above the cursor.
    """

    to_report: list[FamilyEnd]
    """What this step has ended, for its answer."""

    def follow(self, job: JobRecord) -> None:
        """Remember for `take_ended` that this job has ended in this step."""
        ...

    def take_ended(self) -> list[str]:
        """The ids of the jobs that have ended since the last time, in that order."""
        ...

    def amend(self, job: JobRecord) -> None:
        """Store new counts of a job. Nothing else of it has changed: it keeps its state and its place."""
        ...

    def add_edges(self, job: JobRecord, after: Sequence[str], *, is_park: bool = False) -> None:
        """This job comes after those jobs; with `is_park` until it is released."""
        ...

    def drop_park(self, job: JobRecord) -> None:
        """Forget the edges that a Park added."""
        ...

    def parked_for(self, job: JobRecord) -> Sequence[str]:
        """The ids of the children that a parked job waits for."""
        ...

    def dependents(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        """The jobs that come after this one or are parked for it."""
        ...

    def open_children(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        """The children of a job that are not over."""
        ...

    def open_events(self, job_id: str, limit: int) -> list[JobRecord]:
        """Those of them that are optional and done by a call."""
        ...

    def has_children(self, job_id: str) -> bool:
        """Whether the store has a child of this job, over or not."""
        ...

    def past_deadline(self, limit: int) -> list[JobRecord]:
        """Jobs that are not over and not being stopped, and whose deadline is not after now; oldest first."""
        ...

    def owe(self, kind: OwedKind, job_id: str) -> None:
        """Store a consequence that is to be carried out from its beginning."""
        ...

    def next_owed(self) -> Owed | None:
        """The oldest consequence that is owed."""
        ...

    def owe_rest(self, owed: Owed, cursor: int | None) -> None:
        """It is carried out up to this seq; None: it is done."""
        ...


# ------------------------------------------------------------------ behind the items of a call


def carry_out(jobs: FamiliesInStep, limit: int = STEP_LIMIT) -> int:
    """Count what has ended in this step, then carry out what is owed. Returns how many jobs it looked at."""
    looked = 0
    _count_ends(jobs)
    while looked < limit and (owed := jobs.next_owed()) is not None:
        looked += _carry(jobs, owed, limit - looked)
        _count_ends(jobs)
    return looked


def concluded(jobs: FamiliesInStep, answers: list[_Answer]) -> list[_Answer]:
    """Carry out what follows from the items of a call, unless all were refused. The answers have the ends."""
    if all(isinstance(answer, TaskHarborError) for answer in answers):
        return answers
    carry_out(jobs)
    return with_ended(answers, take_ends(jobs))


def take_ends(jobs: FamiliesInStep) -> tuple[FamilyEnd, ...]:
    """What has ended since the last time, for one answer."""
    ends, jobs.to_report = tuple(jobs.to_report), []
    return ends


def sweep(jobs: FamiliesInStep, limit: int = CALL_LIMIT) -> int:
    """What claims and `promote` do first: end jobs that missed their deadline, carry out what is owed."""
    late = jobs.past_deadline(limit)
    for job in late:
        stop(jobs, job, "deadline")
    return len(late) + carry_out(jobs, limit)


def _count_ends(jobs: FamiliesInStep) -> None:
    while ended := jobs.take_ended():
        for job_id in ended:
            if (job := jobs.get(job_id)) is not None and job.state in TERMINAL:
                _count_end(jobs, job)


def _count_end(jobs: FamiliesInStep, job: JobRecord) -> None:
    if (end := reported_end(job)) is not None:
        jobs.to_report.append(end)
    parent = parent_record(jobs, job)
    if parent is not None:
        parent = with_end(parent, job)
        jobs.amend(parent)
        if is_failure(job) and _fails_fast(parent):
            stop(jobs, parent, "fail_fast")
        else:
            judge(jobs, parent)
    if family_of(job).followers:
        jobs.owe("release", job.id)
    elif _is_forgotten(jobs, job):
        jobs.drop(job)


def parent_record(jobs: JobsInStep, job: JobRecord) -> JobRecord | None:
    parent_id = parent_of(job)
    return None if parent_id is None else jobs.get(parent_id)


def _fails_fast(parent: JobRecord) -> bool:
    bonds, family = bonds_of(parent), family_of(parent)
    is_live = parent.state not in TERMINAL and family.stopping is None
    return bonds.fail_fast and is_live and fails_parent(bonds, family)


def _is_forgotten(jobs: FamiliesInStep, job: JobRecord) -> bool:
    """Without retention a completed child goes at once: its parent has counted it. Others wait for prune."""
    is_child = parent_of(job) is not None
    if jobs.has_children(job.id) or (is_child and job.state is not JobState.COMPLETED):
        return False
    rules = retention_of(jobs.rules(job.queue), jobs.rules(EVERY_QUEUE))
    return rules.of(job.state) == NO_TIME


def judge(jobs: FamiliesInStep, job: JobRecord) -> None:
    """End a job if its own work, its children and what it comes after are over."""
    if may_be_seen_over(job):
        after = finished(job, jobs.now)
        jobs.put(after)
        lifecycle.end(jobs, after)


# ------------------------------------------------------------------ stopping


def stop(
    jobs: FamiliesInStep, job: JobRecord, why: Stop, error: str | None = None, *, spares: bool = True
) -> None:
    """From now on no new work of this job or its children begins; it is over when none of them is open."""
    after = stopped(job, why, error, jobs.now, spares=spares)
    if may_be_seen_over(after):
        after = finished(after, jobs.now, is_part=True)
    jobs.put(after)
    lifecycle.drop_copy(jobs, job)
    if job.state is JobState.RUNNING:
        jobs.notify_cancel(after)
    if job.state is JobState.BLOCKED:
        jobs.drop_park(job)
    if after.state in TERMINAL:
        lifecycle.end(jobs, after)
    elif family_of(after).open:
        jobs.owe("stop", job.id)


def may_run(jobs: FamiliesInStep, job: JobRecord) -> bool:
    """Whether a ready job with bonds may be handed out: in time, and its parent is not being stopped."""
    if is_late(job, jobs.now):
        return False
    parent = parent_record(jobs, job)
    return parent is None or not _is_stopped_with(parent, job)


def _is_stopped_with(parent: JobRecord, child: JobRecord) -> bool:
    family = family_of(parent)
    return family.stopping is not None and not (family.spares and is_spared(child.bonds))


# ------------------------------------------------------------------ what is owed


def _carry(jobs: FamiliesInStep, owed: Owed, limit: int) -> int:
    """One consequence, up to so many jobs. Returns how many it looked at, at least one."""
    page = _page(jobs, owed, limit)
    for job in page:
        if (fresh := jobs.get(job.id)) is not None:  # the one before it may have changed it
            _apply(jobs, owed, fresh)
    jobs.owe_rest(owed, page[-1].seq if len(page) == limit else None)
    return max(len(page), 1)


def _page(jobs: FamiliesInStep, owed: Owed, limit: int) -> list[JobRecord]:
    match owed.kind:
        case "release":
            return jobs.dependents(owed.job_id, owed.cursor, limit)
        case "stop":
            return jobs.open_children(owed.job_id, owed.cursor, limit)
        case "events":
            return jobs.open_events(owed.job_id, limit)
    assert_never(owed.kind)


def _apply(jobs: FamiliesInStep, owed: Owed, job: JobRecord) -> None:
    cause = jobs.get(owed.job_id)
    if cause is None or job.state in TERMINAL:
        return
    if owed.kind == "release":
        if cause.state in TERMINAL:  # else it was requeued, and its next end counts
            _release_after(jobs, job, cause)
    elif owed.kind == "events":
        stop(jobs, job, "stopped", f"stopped: the work of {cause.type} is over")
    elif _is_stopped_with(cause, job):
        _stop_child(jobs, job, cause)


def _stop_child(jobs: FamiliesInStep, job: JobRecord, parent: JobRecord) -> None:
    family, above = family_of(job), family_of(parent)
    if family.stopping is None:
        stop(jobs, job, "stopped", _stopped_with(parent), spares=above.spares)
    elif family.spares and not above.spares:
        stop(jobs, job, family.stopping, spares=False)


def stopped_child(child: JobRecord, parent: JobRecord, now: datetime) -> JobRecord:
    """What a stop makes of a waiting child without relatives of its own; a store may stop many at once."""
    after = stopped(child, "stopped", _stopped_with(parent), now, spares=family_of(parent).spares)
    return finished(after, now, is_part=True)


def _stopped_with(parent: JobRecord) -> str:
    return f"stopped with {parent.type}"


def _release_after(jobs: FamiliesInStep, job: JobRecord, cause: JobRecord) -> None:
    """One job fewer to wait for. The counter may be too low, after a requeue, and never too high."""
    family = family_of(job)
    if job.state is not JobState.BLOCKED or family.stopping is not None or not family.waits_for:
        return
    is_parked = parent_of(cause) == job.id
    if is_parked != bool(jobs.parked_for(job)):
        return  # a job that was released before stays released, whatever it came after does again
    error = None if is_parked else never_runs(bonds_of(job).when, [cause], is_last=False)
    if error is not None:
        stop(jobs, job, "skipped", error)
    elif family.waits_for > 1:
        jobs.amend(_waiting_for(job, family.waits_for - 1))
    else:
        release(jobs, job, is_parked=is_parked)


def release(jobs: FamiliesInStep, job: JobRecord, *, is_parked: bool) -> None:
    """Read all that a blocked job waits for, and let it go, skip it, or wait on."""
    names = jobs.parked_for(job) if is_parked else bonds_of(job).after
    waited = [other for name in names if (other := jobs.get(name)) is not None]
    missing = sum(other.state not in TERMINAL for other in waited)
    when: When = "over" if is_parked else bonds_of(job).when
    error = never_runs(when, over_among(waited), is_last=not missing)
    if error is not None:
        stop(jobs, job, "skipped", error)
    elif missing:
        jobs.amend(_waiting_for(job, missing))
    else:
        after = released(job, jobs.now)
        jobs.put(after)
        if is_parked:
            jobs.drop_park(after)
        judge(jobs, after)


def _waiting_for(job: JobRecord, count: int) -> JobRecord:
    return replace(job, family=replace(family_of(job), waits_for=count))
