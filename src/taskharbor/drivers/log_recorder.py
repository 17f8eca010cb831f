"""LogRecorder: counts what one worker, or one scheduler, does, in cells of a minute for the logbook.

It listens to the same events as metrics do. The cell of the running minute is written again and again with
whole numbers, so a lost or repeated write harms nothing, and nothing is read before a write.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from taskharbor.drivers.messages import Settled
from taskharbor.events import AttemptsAnswered, AttemptWentWrong, EventBus, JobGivenUp, JobsClaimed
from taskharbor.model.cause import Cause, cause_of
from taskharbor.model.checks import MAX_TEXT
from taskharbor.model.clock import Clock, micros
from taskharbor.model.job import FailureKind, JobRecord
from taskharbor.model.job_batches import alike_claims, alike_ends, stalled_before, waited_since
from taskharbor.model.log_cells import MAX_CAUSES, MAX_PAIRS, OTHER, CauseNumbers, Numbers, packed
from taskharbor.model.log_series import MINUTE, floor
from taskharbor.model.logbook import CAUSES, KEPT, NUMBERS, LogEntry
from taskharbor.model.settlement import Fail, Retry, Stalled
from taskharbor.model.state import JobState

RELEASE_LABEL = "release"
RELEASE_VARIABLE = "TASKHARBOR_RELEASE"
LATEST = timedelta(seconds=100)
"""So long after its minute a cell may still be written: the leader merges it when it is two minutes old."""

_FAILED = frozenset({"retried", "failed", "stalled"})
_cause_of: Callable[..., Cause] = lru_cache(256)(cause_of)


def release_of(labels: dict[str, str] | None) -> str:
    """The release that a worker runs: its label of that name, else TASKHARBOR_RELEASE."""
    given = (labels or {}).get(RELEASE_LABEL) or os.environ.get(RELEASE_VARIABLE, "")
    return "".join(filter(str.isprintable, given))[:MAX_TEXT]


class _Minute:
    """What happened within one minute."""

    __slots__ = ("at", "causes", "is_dirty", "numbers")

    def __init__(self, at: datetime) -> None:
        self.at = at
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
    """The cells of one writer. Safe from any thread."""

    def __init__(self, writer: str, clock: Clock, *, release: str = "") -> None:
        self._writer = writer
        self._clock = clock
        self._release = release
        self._lock = threading.Lock()
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
        now = self._clock.now()
        with self._lock:
            changed = [minute for minute in self._minutes if minute.is_dirty]
            for minute in changed:
                minute.is_dirty = False
            self._minutes = [one for one in self._minutes if now < one.at + MINUTE + LATEST]
            entries = [minute.entries(self._writer) for minute in changed if minute in self._minutes]
        return [entry for part in entries for entry in part]

    def not_written(self, entries: Sequence[LogEntry]) -> None:
        """These will be taken again."""
        instants = {entry.at for entry in entries}
        with self._lock:
            for minute in self._minutes:
                minute.is_dirty |= minute.at in instants

    def _minute(self) -> _Minute:
        at = self._clock.now()
        if self._minutes and self._minutes[-1].at <= at < self._minutes[-1].at + MINUTE:
            return self._minutes[-1]
        start = floor(at, MINUTE)
        for minute in self._minutes:  # a clock that was set back
            if minute.at == start:
                return minute
        self._minutes.append(_Minute(start))
        return self._minutes[-1]

    # ------------------------------------------------------------------ what happens

    def _claimed(self, event: JobsClaimed) -> None:
        jobs = event.jobs
        if event.worker_id != self._writer or not jobs:
            return
        first, since = jobs[0], alike_claims(jobs)
        with self._lock:
            minute = self._minute()
            if since is not None and first.started_at is not None:
                minute.of(first.queue, first.type).waited(since, first.started_at)
                return
            for record in jobs:
                self._claimed_one(minute.of(record.queue, record.type), record)

    def _claimed_one(self, numbers: Numbers, record: JobRecord) -> None:
        since = waited_since(record)
        numbers.waited([since], record.started_at or since)
        numbers.stalled += stalled_before(record)
        self._has_copies |= record.speculates_on is not None

    def _answered(self, event: AttemptsAnswered) -> None:
        jobs, answers = event.jobs, event.answers
        if event.worker_id != self._writer or not jobs:
            return
        runs = None if self._has_copies else alike_ends(jobs, answers)
        with self._lock:
            minute = self._minute()
            if runs is not None:
                record = jobs[0].record
                numbers = minute.of(record.queue, record.type)
                numbers.completed += len(runs)
                numbers.ran(runs)
                return
            for job, answer in zip(jobs, answers, strict=True):
                if type(answer) is Settled:
                    _count_end(minute.of(job.record.queue, job.record.type), job, answer)

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
            numbers = self._minute().of(event.queue, event.type)
            numbers.failed += 1
            numbers.stalled += 1
        cause = _cause_of(event.type, "", None, FailureKind.STALLED)
        self._failed(cause, event.queue, event.type, FailureKind.STALLED, True, event.job_id)

    def _failed(
        self, cause: Cause, queue: str, type_name: str, kind: str | None, is_dead: bool, job_id: str
    ) -> None:
        at = micros(self._clock.now())
        row = CauseNumbers(
            *(cause.id, queue, type_name, cause.title, cause.frame, kind or FailureKind.ERROR),
            *(int(not is_dead), int(is_dead), at, at, job_id, self._release),
        )
        with self._lock:
            self._minute().failed(row)


def _count_end(numbers: Numbers, job: Any, answer: Settled) -> None:
    """How one attempt ended. Of a copy only its success counts: its original goes on."""
    attempt, asked = job.attempt, type(job.end.value)
    if attempt.started is not None:
        numbers.ran([attempt.ended - attempt.started])
    if answer.state is JobState.COMPLETED:
        numbers.completed += 1
    elif job.record.speculates_on is not None:
        return
    elif answer.state is JobState.CANCELLED:
        numbers.cancelled += 1
    else:
        numbers.retried += asked is Retry
        numbers.stalled += asked is Stalled
        numbers.failed += asked is Fail or (asked is Stalled and answer.state is JobState.FAILED)
