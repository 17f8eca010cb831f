"""How the jobs of a family may end and start, once more and in other words than the store's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taskharbor.model.bonds import NO_FAMILY
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.testing.simulator.relatives import Relative

COMPLETED, FAILED, CANCELLED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED


def may_run(member: Relative, others: Sequence[Relative]) -> bool:
    """Whether what a job comes after was over as it needs, at any time since it was stored or requeued."""
    when = member.bonds.when
    if not others:
        return True
    if when == "success":
        return all(_well(other, member.opened) for other in others)
    is_all_over = all(other.ended_since(member.opened) for other in others)
    return is_all_over and (when == "over" or any(_badly(other, member.opened) for other in others))


def _well(other: Relative, since: int) -> bool:
    good = {COMPLETED, FAILED} if other.bonds.optional else {COMPLETED}
    return bool(other.ended_since(since) & good)


def _badly(other: Relative, since: int) -> bool:
    bad = {CANCELLED} if other.bonds.optional else {FAILED, CANCELLED}
    return bool(other.ended_since(since) & bad)


def broken_counts(job: JobRecord, kids: Sequence[Relative]) -> Iterator[str]:
    """What the counts of a parent say against the children that were stored."""
    family = job.family or NO_FAMILY
    states = [(kid.bonds.optional, kid.ends[-1][1] if kid.ends else None) for kid in kids]
    counted = {
        "total": len(kids),
        "open": sum(state is None for _, state in states),
        "failed": sum(state is FAILED and not is_optional for is_optional, state in states),
        "excused": sum(state is FAILED and is_optional for is_optional, state in states),
        "cancelled": sum(state is CANCELLED for _, state in states),
    }
    for name, count in counted.items():
        if getattr(family, name) != count:
            yield f"{job.id} counts {getattr(family, name)} children as {name}, there are {count}"


def broken_verdict(
    member: Relative,
    job: JobRecord,
    kids: Sequence[Relative],
    above: Relative | None,
    others: Sequence[Relative],
) -> str | None:
    """What is wrong with the end of a job; None: it had to end so."""
    failed = sum(kid.is_over and kid.ends[-1][1] is FAILED and not kid.bonds.optional for kid in kids)
    too_many = member.bonds.tolerate is not None and failed > member.bonds.tolerate
    if job.failure_kind == "timeout" and job.bonds is not None and job.bonds.deadline is not None:
        is_late = job.finished_at is not None and job.bonds.deadline <= job.finished_at
        return None if is_late or "failed" in member.own else "its deadline is not over"
    if job.state is CANCELLED:
        return _broken_cancel(member, job, above, others)
    if member.is_cancelled:
        return "it was cancelled"
    if job.state is COMPLETED and too_many:
        return f"{failed} of its children failed"
    if job.failure_kind == "child_failed" and "failed" not in member.own:
        return None if too_many else f"{failed} of its children failed"
    wanted = "completed" if job.state is COMPLETED else "failed"
    return None if wanted in member.own else f"its own work is {sorted(member.own)}"


def _broken_cancel(
    member: Relative, job: JobRecord, above: Relative | None, others: Sequence[Relative]
) -> str | None:
    if member.is_cancelled:
        return None
    if job.failure_kind == "skipped":
        when = member.bonds.when
        is_bad = any(_badly(other, member.opened) for other in others)
        is_good = all(_well(other, member.opened) for other in others)
        return (
            None if (is_bad and when == "success") or (is_good and when == "failure") else "nothing skips it"
        )
    if job.failure_kind == "stopped" and above is not None:
        family = None if above.seen is None else above.seen.family
        if (
            family is not None
            and family.stopping is not None
            and family.spares
            and member.bonds.when != "success"
        ):
            return "the stop of its parent spares it"
        is_event = member.bonds.done_by == "call" and member.bonds.optional
        is_stopped = above.stopping_at >= member.opened or is_event
        return None if is_stopped else "its parent was not stopped"
    return None if "cancelled" in member.own else "nobody cancelled it"
