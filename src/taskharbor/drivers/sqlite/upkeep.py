"""What time brings: leases that expire, jobs that are due. Retention that is over: prune.py."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.families import concluded
from taskharbor.drivers.family_verbs import reclaim_one
from taskharbor.drivers.messages import Promoted, Reclaimed
from taskharbor.drivers.sqlite.families import FamilyRecords
from taskharbor.drivers.sqlite.family_verbs import sweep_if_due
from taskharbor.drivers.sqlite.records import drop_orphan
from taskharbor.drivers.sqlite.rows import json_array
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.state import JobState

# ------------------------------------------------------------------ reclaim


def reclaim(step: Step, queues: Sequence[str] | None, limit: int) -> list[Reclaimed]:
    """Up to `limit` expired leases of these queues, or of all, oldest first."""
    if queues is None:
        queues = [queue for (queue,) in step.fetch_all("reclaim_queues")]
    claims = step.fetch_all("reclaim_claims", queues=json_array(queues), now=step.us, limit=limit)
    leases = sorted(
        (expires_at, seq, no, job_id, flags, queue)
        for no, expires_at, seqs in claims
        for seq, job_id, flags, queue in step.fetch_all("reclaim_jobs", no=no, seqs=seqs)
    )
    records = FamilyRecords(step)
    answers: list[Reclaimed] = []
    for _, seq, no, job_id, flags, queue in leases[:limit]:
        if job_id is None:
            step.add_row("claim_leave", no, 1)
            drop_orphan(step, queue, seq, JobState.RUNNING, flags)
        elif (done := reclaim_one(records, job_id)) is not None:
            answers.append(done)
    return concluded(records, answers) if records.has_families else answers


# ------------------------------------------------------------------ promote


def promote_all(step: Step, limit: int) -> Promoted:
    """Line up due jobs, and carry out what is owed."""
    swept, moved = sweep_if_due(step, limit), 0
    for (queue,) in step.fetch_all("promote_queues"):
        if moved < limit:
            moved += promote(step, queue, limit - moved)
    return Promoted(swept.count + moved, swept.ended)


def promote(step: Step, queue: str, limit: int) -> int:
    """Line up due jobs of one queue; answers how many of them are listed.

    Nothing that can be read changes: a due job already reads ready.
    """
    last = step.fetch_one("promote_last", queue=queue, now=step.us, limit=limit)
    if last is None:
        return 0
    bound = {"queue": queue, "at": last[0], "seq": last[1]}
    moved = 0
    for block, listed in step.fetch_all("promote_count", **bound):
        step.count_block(queue, block, JobState.SCHEDULED, -listed)
        step.count_block(queue, block, JobState.READY, +listed)
        moved += listed
    step.execute("promote_ready", **bound)
    step.execute("promote_leave", **bound)
    step.notices.queues.add(queue)
    step.has_timed = True
    return moved
