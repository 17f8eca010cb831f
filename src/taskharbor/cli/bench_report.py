"""The report of `taskharbor bench`: whether every job ended once and as expected, and how fast."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from taskharbor.cli.columns import counted
from taskharbor.cli.tables import Column
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_S = JobState


@dataclass(frozen=True, slots=True)
class JobFate:
    """The expected end of a job: its kind, its state, and how many attempts fail."""

    kind: str
    ends: JobState = _S.COMPLETED
    failures: int = 0


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of all values does not exceed; None without any value."""
    if not ordered:
        return None
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


@dataclass(slots=True)
class Tally:
    """The jobs of one kind, or of all. `seconds` are the times from the enqueue to the end."""

    name: str
    merged: int = 0
    completed: int = 0
    failed: int = 0
    others: int = 0
    retries: int = 0
    seconds: array[float] = field(default_factory=lambda: array("d"))
    first: datetime | None = None
    last: datetime | None = None

    @property
    def jobs(self) -> int:
        return self.completed + self.failed + self.others

    def add(self, job: JobRecord) -> None:
        match job.state:
            case _S.COMPLETED:
                self.completed += 1
            case _S.FAILED:
                self.failed += 1
            case _:
                self.others += 1
        self.retries += retries_of(job)
        self.first = job.created_at if self.first is None else min(self.first, job.created_at)
        if job.finished_at is not None:
            self.seconds.append((job.finished_at - job.created_at).total_seconds())
            self.last = job.finished_at if self.last is None else max(self.last, job.finished_at)

    def view(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        span = 0.0 if self.first is None or self.last is None else (self.last - self.first).total_seconds()
        return {
            "name": self.name,
            "jobs": self.jobs,
            "merged": self.merged,
            "completed": self.completed,
            "failed": self.failed,
            "retries": self.retries,
            "p50_s": percentile(ordered, 0.5),
            "p95_s": percentile(ordered, 0.95),
            "p99_s": percentile(ordered, 0.99),
            "max_s": percentile(ordered, 1.0),
            "jobs_per_s": per_second(len(ordered), span),
        }


def retries_of(job: JobRecord) -> int:
    """`attempts` counts those that failed; behind the last one of a dead letter came no other."""
    return max(job.attempts - 1, 0) if job.state is _S.FAILED else job.attempts


class MixReport:
    """Adds up the results job by job and notes what is wrong."""

    def __init__(
        self, expected: Mapping[str, JobFate], ends: Mapping[str, int], kinds: Sequence[str]
    ) -> None:
        """`ends`: how often the workers ended each job, by the answers of the store."""
        self._expected = expected
        self._ends = ends
        self._kinds = {kind: Tally(kind) for kind in kinds}
        self._all = Tally("all")
        self.problems: list[str] = []

    def add(self, asked: str, job: JobRecord | None) -> None:
        """Add the job that the store has under the id `asked`."""
        fate = self._expected[asked]
        if job is None:
            self.problems.append(f"lost: {fate.kind} {asked} is not in the store")
            return
        if job.id != asked:  # it was blocked behind a job of its key that ran again, and joined it
            self.merge(fate.kind)
            return
        self._kinds[fate.kind].add(job)
        self._all.add(job)
        if (wrong := self._wrong(job, fate)) is not None:
            self.problems.append(f"{fate.kind} {asked} {wrong}")

    def merge(self, kind: str, count: int = 1) -> None:
        """Add requests of this kind that were merged into a waiting job of their key."""
        self._kinds[kind].merged += count
        self._all.merged += count

    def close(self, stored: int) -> None:
        """Compare with the number of jobs that the store counts in the queue."""
        if stored != self._all.jobs:
            self.problems.append(f"the store counts {stored} jobs, but {self._all.jobs} were enqueued")

    def rows(self) -> list[dict[str, Any]]:
        return [tally.view() for tally in (*self._kinds.values(), self._all) if tally.jobs or tally.merged]

    def _wrong(self, job: JobRecord, fate: JobFate) -> str | None:
        """What is wrong with this job; None if it ended as expected."""
        if not job.state.is_terminal:
            return f"never ended: it is {job.state}"
        if job.state is not fate.ends:
            return f"ended {job.state}, not {fate.ends}"
        if job.attempts != fate.failures:
            return f"failed {counted(job.attempts, 'time')}, not {fate.failures}"
        if (ends := self._ends.get(job.id, 0)) > 1:
            return f"ended {ends} times"
        return None


def per_second(count: int, seconds: float) -> float | None:
    return round(count / seconds, 1) if seconds > 0 else None


RATE = Column(
    "JOBS/S", lambda row: f"{row['jobs_per_s']:,.0f}" if row["jobs_per_s"] else None, is_number=True
)
