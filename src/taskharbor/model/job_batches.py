"""Batches of jobs as a worker claims and settles them: which are alike, how long they waited and ran.

Most batches are alike: jobs of one queue and task, claimed for the first time, done at the first try. Those
are added up as a whole, by the C code behind comprehensions, `sum`, `min` and `max`; a loop that looks at
each job by itself costs twice as much, and is for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.model.job import AttemptRecord, JobRecord
from taskharbor.model.state import JobState


def alike_claims(jobs: Sequence[JobRecord]) -> list[datetime] | None:
    """Since when these jobs could run; None unless all are of one queue and task, new, and no copies."""
    first, last = jobs[0], jobs[-1]
    queue, task = first.queue, first.type
    if last.type != task or last.queue != queue:
        return None
    since = [
        job.run_at or job.created_at
        for job in jobs
        if job.type == task and job.queue == queue and job.starts == 1 and job.speculates_on is None
    ]
    return since if len(since) == len(jobs) else None


def alike_ends(jobs: Sequence[Any], answers: Sequence[Any]) -> list[float] | None:
    """How long these handlers ran; None when they are not of one queue and task, or not all successes.

    Not for copies: the caller knows that there are none. To ask each record once more, long after
    its claim, takes longer than the rest of this.
    """
    first, last, size = jobs[0].record, jobs[-1].record, len(jobs)
    queue, task = first.queue, first.type
    if last.type != task or last.queue != queue:
        return None
    try:
        if [answer.state for answer in answers].count(JobState.COMPLETED) != size:
            return None
        runs = [
            (attempt := job.attempt).ended - attempt.started
            for job in jobs
            if (record := job.record).type == task and record.queue == queue
        ]
    except (AttributeError, TypeError):  # a lease error has no state, a handler that never ran no start
        return None
    return runs if len(runs) == size else None


def waited_since(record: JobRecord) -> datetime:
    """Since when a claimed job waited: the time of earlier runs was no wait."""
    since = record.run_at or record.created_at
    if record.starts <= 1 or not record.history:
        return since
    return min(max(since, record.history[-1].ended_at), record.started_at or since)


def stalled_before(record: JobRecord) -> bool:
    """Whether the run before this claim stalled and was not counted then: no worker was left to do it."""
    if record.starts <= 1 or not record.history:
        return False
    last = record.history[-1]
    return last.outcome == "stalled" and not _had_ended(record, last)


def _had_ended(record: JobRecord, stall: AttemptRecord) -> bool:
    """Whether the last stall failed this job and was counted then; it was requeued since.

    Without counts it was put back with none, or merged with another job of its key.
    """
    return record.failed_at == stall.ended_at if record.stalls else record.key is None
