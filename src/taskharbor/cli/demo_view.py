"""What the demo shows: counts per queue, throughput, and recent events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskharbor.cli.tables import Column, rich_table
from taskharbor.cli.terminal import one_line
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, Query
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_FEED_LENGTH = 12
_WATCHED = 1000
_WINDOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Glance:
    """The demo's queues at one moment."""

    counts: dict[str, Counts]
    per_second: float
    workers: list[str]

    def total(self, name: str) -> int:
        return sum(getattr(counts, name) for counts in self.counts.values())

    @property
    def over(self) -> int:
        return self.total("completed") + self.total("failed") + self.total("cancelled")

    @property
    def jobs(self) -> int:
        return sum(counts.total for counts in self.counts.values())

    def line(self) -> str:
        words = [f"{count} {state.value}" for state in JobState if (count := self.total(state.value))]
        return f"{self.over} of {self.jobs} jobs are over: {', '.join(words)}"


class Watcher:
    """Polls the store and returns what changed since the last poll."""

    def __init__(self, driver: Driver, queues: Sequence[str]) -> None:
        self._driver = driver
        self._queues = queues
        self._last: dict[str, JobRecord] = {}
        self._ended: deque[tuple[float, int]] = deque()
        self.feed: deque[str] = deque(maxlen=_FEED_LENGTH)

    async def look(self) -> Glance:
        counts = await self._driver.count(self._queues)
        for queue in self._queues:
            page = await self._driver.find(
                Query(queue=queue, newest_first=True, limit=_WATCHED, payloads=False)
            )
            for job in reversed(page.jobs):
                self._notice(job)
        workers = await self._driver.workers()
        over = sum(one.completed + one.failed + one.cancelled for one in counts.values())
        reports = sorted((worker.report for worker in workers), key=lambda report: report.worker_id)
        names = [f"{one.name or one.worker_id} {len(one.running)}/{one.concurrency}" for one in reports]
        return Glance(counts, self._rate(over), names)

    def _notice(self, job: JobRecord) -> None:
        before = self._last.get(job.id)
        self._last[job.id] = job
        if (text := happening(before, job)) is not None:
            self.feed.append(f"{job.id[-6:]} {job.type} {one_line(text)}")

    def _rate(self, over: int) -> float:
        now = self._driver.clock.monotonic()
        self._ended.append((now, over))
        while now - self._ended[0][0] > _WINDOW_SECONDS:
            self._ended.popleft()
        then, before = self._ended[0]
        return (over - before) / (now - then) if now > then else 0.0


def happening(before: JobRecord | None, job: JobRecord) -> str | None:
    """What happened to a job between two looks, if it is worth a line."""
    attempts, stalls = (0, 0) if before is None else (before.attempts, before.stalls)
    if before is not None and before.state is job.state and (job.attempts, job.stalls) == (attempts, stalls):
        return None
    match job.state:
        case JobState.COMPLETED if job.stalls or job.attempts:
            return "completed after all"
        case JobState.FAILED:
            return f"failed for good: {job.last_error}"
        case JobState.CANCELLED:
            return "was cancelled"
        case JobState.BLOCKED:
            return "waits for the running job of its key"
    if job.stalls > stalls:
        return "lost its process and runs again"
    if job.attempts > attempts:
        return f"failed attempt {job.attempts} and will be tried again: {job.last_error}"
    if job.state is JobState.SCHEDULED and before is None:
        return "is scheduled for later"
    return None


def screen(glance: Glance, feed: Sequence[str], title: str) -> Any:
    """The whole picture for a terminal."""
    from rich.console import Group
    from rich.text import Text

    items = [{"name": name, "counts": counts} for name, counts in glance.counts.items()]
    table = rich_table(_COLUMNS, items)
    workers = ", ".join(glance.workers) or "starting"
    numbers = f"{glance.per_second:.1f} jobs/s    workers: {workers}"
    return Group(
        Text(title, style="bold"),
        table,
        Text(numbers),
        Text(""),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in feed),
    )


def _counter(name: str) -> Column:
    return Column(name.upper(), lambda item: getattr(item["counts"], name), is_number=True)


_COLUMNS = (Column("QUEUE", lambda item: item["name"]), *(_counter(state.value) for state in JobState))
