"""What `taskharbor top` shows: the state of a store, and throughput from two of them.

It uses the driver contract only, so it works with every store and with servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec

from taskharbor.client.needs import HarborNow, QueueNow, Rates, needs, verdict
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import DriverInfo, Query, QueueInfo
from taskharbor.model.cause import cause_of, cause_of_job
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES
from taskharbor.model.schedule import StoredSchedule
from taskharbor.model.state import JobState
from taskharbor.views import instant_text, plain, queue_view, store_view, worker_view

LOOKED_AT = 100
"""How many of the newest failed, scheduled and ready jobs each are searched for what fails."""
WINDOW_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Failing:
    """Jobs of one task that fail alike: how many of them are dead, and how many will try again."""

    task: str
    queue: str
    error: str
    failure_kind: str
    dead: int = 0
    retrying: int = 0
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A store at one moment. `monotonic` is when that was by this machine's clock."""

    store: DriverInfo
    queues: list[QueueInfo]
    workers: list[WorkerInfo]
    failing: list[Failing]
    monotonic: float
    schedules: list[StoredSchedule] = field(default_factory=list)

    @property
    def at(self) -> datetime:
        return self.store.at

    @property
    def listed(self) -> list[QueueInfo]:
        """The queues themselves; the rules of the whole harbor are no queue."""
        return [queue for queue in self.queues if queue.queue != EVERY_QUEUE]


async def look_at(driver: Driver) -> Look:
    """Ask the store what it holds now."""
    return Look(
        store=await driver.info(),
        queues=await driver.queues(),
        workers=await driver.workers(),
        failing=failing_among(await _troubled(driver)),
        schedules=await driver.schedules(),
        monotonic=driver.clock.monotonic(),
    )


async def _troubled(driver: Driver) -> list[JobRecord]:
    """Each state for itself: many new ready jobs must not hide those that wait for another try."""
    found: list[JobRecord] = []
    for state in (JobState.FAILED, JobState.SCHEDULED, JobState.READY):
        page = await driver.find(Query(states=(state,), newest_first=True, limit=LOOKED_AT, payloads=False))
        found += (job for job in page.jobs if job.last_error is not None)
    return found


def failing_among(jobs: Iterable[JobRecord]) -> list[Failing]:
    """The causes that these jobs have in common, the most frequent first."""
    groups: dict[tuple[str, str, str], Failing] = {}
    for job in jobs:
        error = (job.last_error or "").partition("\n")[0]
        cause = cause_of_job(job) or cause_of(job.type, error)
        alike = (job.type, job.queue, cause.id)
        group = groups.get(alike)
        if group is None:
            kind = job.failure_kind or "error"
            group = groups[alike] = Failing(task=job.type, queue=job.queue, error=error, failure_kind=kind)
        if job.state is JobState.FAILED:
            group.dead += 1
        else:
            group.retrying += 1
        if job.failed_at is not None and (group.last_at is None or job.failed_at > group.last_at):
            group.last_at = job.failed_at
    return sorted(groups.values(), key=lambda group: -(group.dead + group.retrying))


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs per second that came in and that ended."""

    arrived: float = 0.0
    ended: float = 0.0

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.arrived + other.arrived, self.ended + other.ended)


class Throughput:
    """Rates per queue over the last seconds, from the change of the counts between two looks.

    What retention takes away meanwhile cannot be seen, so that a rate is a lower bound.
    """

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def add(self, look: Look) -> dict[str, Rate] | None:
        """The rates up to this look; None as long as there was no other."""
        self._looks.append(look)
        while len(self._looks) > 2 and look.monotonic - self._looks[1].monotonic >= WINDOW_SECONDS:
            self._looks.popleft()
        if len(self._looks) < 2:
            return None
        return {queue.queue: self._rate(queue.queue) for queue in look.listed}

    def _rate(self, queue: str) -> Rate:
        """Step by step, so that a prune in one of them does not hide the others."""
        arrived = ended = 0
        looks = list(self._looks)
        for before, after in pairwise(looks):
            held_before, over_before = _sizes(before, queue)
            held, over = _sizes(after, queue)
            done = max(over - over_before, 0)
            ended += done
            arrived += max(held - held_before + done, 0)
        passed = looks[-1].monotonic - looks[0].monotonic
        return Rate(arrived / passed, ended / passed) if passed > 0 else Rate()


def _sizes(look: Look, queue: str) -> tuple[int, int]:
    """How many jobs of a queue are not over, and how many are."""
    for info in look.listed:
        if info.queue == queue:
            held = info.counts.waiting + info.counts.running
            return held, info.counts.total - held
    return 0, 0


def total(rates: dict[str, Rate] | None) -> Rate | None:
    return None if rates is None else sum(rates.values(), Rate())


def snapshot(look: Look, rates: dict[str, Rate] | None) -> dict[str, Any]:
    """A look as plain JSON data."""
    now = _harbor_now(look, rates)
    found = needs(now)
    return {
        "at": instant_text(look.at),
        "verdict": msgspec.to_builtins(verdict(now, found)),
        "needs": msgspec.to_builtins(found),
        "store": plain(store_view(look.store)),
        "throughput": _rate_view(total(rates)),
        "queues": [
            {**plain(queue_view(queue, look.at)), "throughput": _rate_view((rates or {}).get(queue.queue))}
            for queue in look.queues
        ],
        "workers": [plain(worker_view(worker)) for worker in look.workers],
        "failing": [
            {
                "task": group.task,
                "queue": group.queue,
                "error": group.error,
                "failure_kind": group.failure_kind,
                "dead": group.dead,
                "retrying": group.retrying,
                "last_at": instant_text(group.last_at),
            }
            for group in look.failing
        ],
    }


def _harbor_now(look: Look, rates: dict[str, Rate] | None) -> HarborNow:
    """The look as the sentences of the dashboard need it. One process cannot see who was lost."""
    harbor = next((queue.rules for queue in look.queues if queue.queue == EVERY_QUEUE), NO_RULES)
    queues = []
    for info in look.listed:
        rate = (rates or {}).get(info.queue)
        known = Rates() if rate is None else Rates(arrived_per_s=rate.arrived, done_per_s=rate.ended)
        queues.append(QueueNow(info=info, rates=known))
    return HarborNow(at=look.at, queues=queues, harbor=harbor, workers=look.workers, schedules=look.schedules)


def _rate_view(rate: Rate | None) -> dict[str, float] | None:
    return (
        None
        if rate is None
        else {"arrived_per_s": round(rate.arrived, 3), "ended_per_s": round(rate.ended, 3)}
    )
