"""Batches of jobs, added up: waits as they are claimed, runs as they are answered.

Most batches are alike: jobs of one queue and task, claimed for the first time, done at the first try. Those
are added up as a whole, by the C code behind comprehensions, `sum`, `min` and `max`; a loop that looks at
each job by itself costs twice as much, and is for the others. Both count the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.observe.metric_names import RUN_BUCKETS, WAIT_BUCKETS
from taskharbor.observe.metrics_sample import Labels

_NO_TIME = timedelta()


class JobCounts:
    """What is counted about the jobs of one queue, task and kind of worker."""

    __slots__ = ("completed", "kind", "others", "pair", "run", "run_sum", "wait", "wait_sum")

    def __init__(self, pair: Labels, kind: str) -> None:
        self.pair = pair
        self.kind = kind
        self.completed = 0
        self.others: dict[str, int] = {}
        self.run = [0] * (len(RUN_BUCKETS) + 1)
        self.run_sum = 0.0
        self.wait = [0] * (len(WAIT_BUCKETS) + 1)
        self.wait_sum = 0.0

    def waited(self, since: list[datetime], claimed_at: datetime) -> None:
        """Jobs that could run since these instants were claimed now."""
        first = since[0]
        if since[-1] == first and since.count(first) == len(since):  # enqueued in one call
            seconds = (claimed_at - first).total_seconds()
            self.wait[bisect_left(WAIT_BUCKETS, seconds)] += len(since)
            self.wait_sum += seconds * len(since)
            return
        waits = [claimed_at - instant for instant in since]
        self.wait_sum += sum(waits, _NO_TIME).total_seconds()
        bucket = bisect_left(WAIT_BUCKETS, max(waits).total_seconds())
        if bucket == bisect_left(WAIT_BUCKETS, min(waits).total_seconds()):
            self.wait[bucket] += len(waits)
        else:
            for wait in waits:
                self.wait[bisect_left(WAIT_BUCKETS, wait.total_seconds())] += 1

    def ran(self, runs: Sequence[float]) -> None:
        """Handlers took so many seconds each, whatever came of it."""
        self.run_sum += sum(runs)
        bucket = bisect_left(RUN_BUCKETS, max(runs))
        if bucket == 0 or min(runs) > RUN_BUCKETS[bucket - 1]:
            self.run[bucket] += len(runs)
        else:
            for seconds in runs:
                self.run[bisect_left(RUN_BUCKETS, seconds)] += 1


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
