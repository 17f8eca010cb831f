"""Batches of jobs, added up: waits as they are claimed, runs as they are answered."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta

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
