"""LogRecorder: counts what one worker, or one scheduler, does, in cells of a minute for the logbook.

It listens to the same events as metrics do. The cell of the running minute is written again and again with
whole numbers, so a lost or repeated write harms nothing, and nothing is read before a write.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from taskharbor.drivers.messages import Settled
from taskharbor.events import AttemptsAnswered, AttemptWentWrong, EventBus, JobGivenUp, JobsClaimed
from taskharbor.model.cause import Cause, cause_of
from taskharbor.model.checks import MAX_TEXT
from taskharbor.model.clock import Clock, micros
from taskharbor.model.job import FailureKind, JobRecord
from taskharbor.model.job_batches import stalled_before, waited_since
from taskharbor.model.log_cells import MAX_CAUSES, MAX_PAIRS, OTHER, CauseNumbers, Numbers, packed
from taskharbor.model.log_series import MINUTE, floor
from taskharbor.model.logbook import CAUSES, KEPT, NUMBERS, LogEntry
from taskharbor.model.settlement import Fail, Retry, Stalled
from taskharbor.model.state import JobState

RELEASE_LABEL = "release"
RELEASE_VARIABLE = "TASKHARBOR_RELEASE"
LATEST_SECONDS = 110.0
"""So long after its first job a cell may be written: the leader merges it two minutes after its end."""

_SAMPLES = 8  # of a batch of equal jobs that are looked at one by one
_MOST_NOTED = 2000  # batches, or single jobs

_FAILED = frozenset({"retried", "failed", "stalled"})
_cause_of: Callable[..., Cause] = lru_cache(256)(cause_of)


def release_of(labels: dict[str, str] | None) -> str:
    """The release that a worker runs: its label of that name, else TASKHARBOR_RELEASE."""
    given = (labels or {}).get(RELEASE_LABEL) or os.environ.get(RELEASE_VARIABLE, "")
    return "".join(filter(str.isprintable, given))[:MAX_TEXT]


class _Minute:
    """What happened within one minute."""

    __slots__ = ("at", "began", "causes", "is_dirty", "numbers")

    def __init__(self, at: datetime, began: float) -> None:
        self.at = at
        self.began = began
        self.numbers: dict[tuple[str, str], Numbers] = {}
        self.causes: dict[tuple[str, str], CauseNumbers] = {}
        self.is_dirty = False

    def of(self, queue: str, type_name: str) -> Numbers:
        self.is_dirty = True
        numbers = self.numbers.get((queue, type_name))
        return self._new(queue, type_name) if numbers is None else numbers

    def _new(self, queue: str, type_name: str) -> Numbers:
        if len(self.numbers) >= MAX_PAIRS:
            queue = type_name = OTHER
        return self.numbers.setdefault((queue, type_name), Numbers(queue, type_name))

    def failed(self, row: CauseNumbers) -> None:
        self.is_dirty = True
        name = (row.cause, row.queue)
        if name not in self.causes and len(self.causes) >= MAX_CAUSES:
            name = (OTHER, OTHER)
            row.cause = row.queue = row.type = OTHER
            row.title, row.frame, row.failure_kind = "Other causes", None, ""
        there = self.causes.setdefault(name, row)
        if there is not row:
            there.add(row)

    def entries(self, by: str) -> list[LogEntry]:
        books: dict[str, list[Any]] = {
            NUMBERS: list(self.numbers.values()),
            CAUSES: list(self.causes.values()),
        }
        return [
            LogEntry(book=book, at=self.at, by=by, data=packed(rows), until=self.at + KEPT[book])
            for book, rows in books.items()
            if rows
        ]


class LogRecorder:
    """The cells of one writer. Safe from any thread.

    What happens to batches is only noted, and counted when cells are taken: the loop that runs jobs goes on.
    """

    def __init__(
        self,
        writer: str,
        clock: Clock,
        *,
        release: str = "",
        queues: Sequence[str] = (),
        types: Sequence[str] = (),
    ) -> None:
        """`queues` and `types` are all that this writer can meet; empty: there may be others."""
        self._writer = writer
        self._clock = clock
        self._release = release
        self._has_one_queue = len(queues) == 1
        self._has_one_type = len(types) == 1
        self._lock = threading.Lock()
        self._noted: deque[Callable[[], None]] = deque()
        self._minutes: list[_Minute] = []
        self._has_copies = False

    def listen(self, events: EventBus, *, runs_jobs: bool = True) -> Callable[[], None]:
        """Count what this writer does from now on; returns a function that stops it."""
        stops = [events.listen(self._given_up, JobGivenUp)]
        if runs_jobs:
            stops += [
                events.listen(self._claimed, JobsClaimed),
                events.listen(self._answered, AttemptsAnswered),
                events.listen(self._went_wrong, AttemptWentWrong),
            ]

        def stop_all() -> None:
            for stop in stops:
                stop()

        return stop_all

    def take(self) -> list[LogEntry]:
        """The cells that changed since the last time, whole. A minute that is long over is forgotten."""
        with self._lock:
            self._count_noted()
            changed = [minute for minute in self._minutes if minute.is_dirty]
            for minute in changed:
                minute.is_dirty = False
            over = self._clock.monotonic() - LATEST_SECONDS
            self._minutes = [one for one in self._minutes if one.began > over]
            entries = [minute.entries(self._writer) for minute in changed if minute in self._minutes]
        return [entry for part in entries for entry in part]

    def not_written(self, entries: Sequence[LogEntry]) -> None:
        """These will be taken again."""
        instants = {entry.at for entry in entries}
        with self._lock:
            for minute in self._minutes:
                minute.is_dirty |= minute.at in instants

    def _note(self, count: Callable[[], None]) -> None:
        self._noted.append(count)
        if len(self._noted) >= _MOST_NOTED:  # nothing takes cells: keep no more than that
            with self._lock:
                self._count_noted()

    def _count_noted(self) -> None:
        while self._noted:
            self._noted.popleft()()

    def _minute(self, at: datetime) -> _Minute:
        if self._minutes and self._minutes[-1].at <= at < self._minutes[-1].at + MINUTE:
            return self._minutes[-1]
        start = floor(at, MINUTE)
        for minute in self._minutes:  # batches are noted in the order of their answers, not of their instants
            if minute.at == start:
                return minute
        self._minutes.append(_Minute(start, self._clock.monotonic()))
        return self._minutes[-1]

    # ------------------------------------------------------------------ what happens

    def _claimed(self, event: JobsClaimed) -> None:
        jobs = event.jobs
        if event.worker_id != self._writer or not jobs:
            return
        if self._are_new(jobs):
            self._note_new(jobs)
            return
        new: dict[tuple[str, str], list[JobRecord]] = {}
        again: dict[tuple[str, str], list[JobRecord]] = {}
        for job in jobs:
            is_new = job.starts == 1 and job.speculates_on is None
            (new if is_new else again).setdefault((job.queue, job.type), []).append(job)
        for group in new.values():
            self._note_new(group)
        for group in again.values():
            self._note_again(group)

    def _note_new(self, jobs: Sequence[JobRecord]) -> None:
        """Jobs of one queue and type, claimed for the first time."""
        first = jobs[0]
        since = [job.run_at or job.created_at for job in _some(jobs)]
        self._note(partial(self._count_claim, first.queue, first.type, since, first.started_at, len(jobs)))

    def _note_again(self, jobs: Sequence[JobRecord]) -> None:
        """Jobs of one queue and type that ran before, and copies."""
        first = jobs[0]
        self._has_copies |= any(job.speculates_on is not None for job in jobs)
        since = [waited_since(job) for job in _some(jobs)]
        stalled = sum(map(stalled_before, jobs))
        waits = (first.queue, first.type, since, first.started_at, len(jobs))
        self._note(partial(self._count_claim, *waits, stalled=stalled))

    def _count_claim(
        self,
        queue: str,
        type_name: str,
        since: list[datetime],
        at: datetime | None,
        total: int,
        stalled: int = 0,
    ) -> None:
        at = at or since[0]
        numbers = self._minute(at).of(queue, type_name)
        numbers.waited(since, at, total)
        numbers.stalled += stalled

    def _answered(self, event: AttemptsAnswered) -> None:
        jobs, answers = event.jobs, event.answers
        if event.worker_id != self._writer or not jobs:
            return
        runs = None if self._has_copies else self._sampled_runs(jobs, answers)
        if runs is not None:
            record = jobs[0].record
            self._note(partial(self._count_done, record.queue, record.type, runs, answers[0].at, len(jobs)))
            return
        groups: dict[tuple[str, str, Sequence[str], bool], list[Any]] = {}
        for job, answer in zip(jobs, answers, strict=True):
            if type(answer) is Settled:
                record, has_run = job.record, job.attempt.started is not None
                name = (record.queue, record.type, _outcomes(job, answer.state), has_run)
                groups.setdefault(name, []).append((job.attempt, answer.at))
        for (queue, type_name, outcomes, has_run), ends in groups.items():
            runs = [attempt.ended - attempt.started for attempt, _ in _some(ends)] if has_run else []
            self._note(partial(self._count_ends, queue, type_name, runs, outcomes, ends[0][1], len(ends)))

    def _count_done(self, queue: str, type_name: str, runs: list[float], at: datetime, total: int) -> None:
        numbers = self._minute(at).of(queue, type_name)
        numbers.completed += total
        numbers.ran(runs, total)

    def _count_ends(
        self,
        queue: str,
        type_name: str,
        runs: list[float],
        outcomes: Sequence[str],
        at: datetime,
        total: int,
    ) -> None:
        numbers = self._minute(at).of(queue, type_name)
        if runs:
            numbers.ran(runs, total)
        for outcome in outcomes:
            setattr(numbers, outcome, getattr(numbers, outcome) + total)

    def _are_new(self, jobs: Sequence[JobRecord]) -> bool:
        """Whether these are of one queue and type, claimed for the first time, and no copies."""
        size, first = len(jobs), jobs[0]
        return (
            [job.starts for job in jobs].count(1) == size
            and [job.speculates_on for job in jobs].count(None) == size
            and (self._has_one_type or [job.type for job in jobs].count(first.type) == size)
            and (self._has_one_queue or [job.queue for job in jobs].count(first.queue) == size)
        )

    def _sampled_runs(self, jobs: Sequence[Any], answers: Sequence[Any]) -> list[float] | None:
        """How long some of these handlers ran; None unless all succeeded and are of one queue and type.

        To look at each record once more, long after its claim, costs more than everything else here: what can
        only have one value is not asked for, and times are read from a few.
        """
        size, first = len(jobs), jobs[0].record
        try:
            if [answer.state for answer in answers].count(JobState.COMPLETED) != size:
                return None
            if not self._has_one_type and [job.record.type for job in jobs].count(first.type) != size:
                return None
            if not self._has_one_queue and [job.record.queue for job in jobs].count(first.queue) != size:
                return None
            return [(one := job.attempt).ended - one.started for job in _some(jobs)]
        except (AttributeError, TypeError):  # a lease error has no state, a handler that never ran no start
            return None

    def _went_wrong(self, event: AttemptWentWrong) -> None:
        is_job_failure = event.outcome in _FAILED and event.state != JobState.CANCELLED and not event.is_copy
        if event.worker_id == self._writer and is_job_failure:
            cause = _cause_of(event.type, event.error or "", event.trace, event.failure_kind)
            self._failed(
                cause,
                event.queue,
                event.type,
                event.failure_kind,
                event.state == JobState.FAILED,
                event.job_id,
            )

    def _given_up(self, event: JobGivenUp) -> None:
        """Counted by the one that found it; its last worker is gone."""
        if event.found_by != self._writer:
            return
        with self._lock:
            numbers = self._minute(self._clock.now()).of(event.queue, event.type)
            numbers.failed += 1
            numbers.stalled += 1
        cause = _cause_of(event.type, "", None, FailureKind.STALLED)
        self._failed(cause, event.queue, event.type, FailureKind.STALLED, True, event.job_id)

    def _failed(
        self, cause: Cause, queue: str, type_name: str, kind: str | None, is_dead: bool, job_id: str
    ) -> None:
        now = self._clock.now()
        at = micros(now)
        row = CauseNumbers(
            *(cause.id, queue, type_name, cause.title, cause.frame, kind or FailureKind.ERROR),
            *(int(not is_dead), int(is_dead), at, at, job_id, self._release),
            first_release=self._release,
        )
        with self._lock:
            self._minute(now).failed(row)


def _some(jobs: Sequence[Any]) -> Sequence[Any]:
    """A few of a batch of equal jobs, from its beginning to its end."""
    return jobs[:: len(jobs) // _SAMPLES or 1]


def _outcomes(job: Any, state: JobState) -> Sequence[str]:
    """How one attempt ended. Of a copy only its success counts: its original goes on."""
    if state is JobState.COMPLETED:
        return ("completed",)
    if job.record.speculates_on is not None:
        return ()
    if state is JobState.CANCELLED:
        return ("cancelled",)
    asked = type(job.end.value)
    if asked is Stalled:
        return ("stalled", "failed") if state is JobState.FAILED else ("stalled",)
    return ("retried",) if asked is Retry else ("failed",) if asked is Fail else ()
