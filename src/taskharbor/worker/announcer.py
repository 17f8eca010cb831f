"""The counters, log lines and events of a worker.

An event that every job causes is built only if it has a listener.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.given_up import report_given_up
from taskharbor.drivers.messages import FamilyEnd, Reclaimed, Settled
from taskharbor.drivers.outage import Outage
from taskharbor.errors import DriverUnavailable, Forbidden, LeaseLost
from taskharbor.events import (
    AttemptFinished,
    AttemptsAnswered,
    AttemptWentWrong,
    DriverTrouble,
    EventBus,
    HandlerAbandoned,
    JobParked,
    JobsClaimed,
    JobStarted,
    LeasesExtended,
    LeaseWasLost,
    RanTwice,
    WorkerStarted,
    WorkerStopped,
)
from taskharbor.model.job import JobRecord
from taskharbor.model.outcome import Failed, Outcome, Snoozed, Succeeded
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Stalled
from taskharbor.model.speculation import SPECULATE_HEADER
from taskharbor.model.state import JobState
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker.attempt import log_fields
from taskharbor.worker.leased_jobs import LeasedJob

_log = logging.getLogger("taskharbor.worker")

MAX_TYPES_LOGGED = 100

_OUTCOMES: dict[type, str] = {
    Ack: "completed",
    Retry: "retried",
    Fail: "failed",
    Stalled: "stalled",
    Cancelled: "cancelled",
    Release: "released",
    Park: "parked",
}


class Announcer:
    """Reports for one run of a worker, from the event loop and from the heartbeat's thread."""

    def __init__(self, options: WorkerOptions, worker_id: str, events: EventBus, outage: Outage) -> None:
        self._options = options
        self._outage = outage
        self._worker_id = worker_id
        self._events = events
        self.finished = 0
        self.handed_back = 0  # of those that finished, the ones that never began
        self._rare: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """finished, released, leases_lost, ran_twice, given_up, abandoned, driver_errors"""
        return {"finished": self.finished, **self._rare}

    @property
    def ran(self) -> int:
        """How many jobs began and ended: what `max_jobs` counts."""
        return self.finished - self.handed_back

    # ------------------------------------------------------------------ the worker

    def worker_started(self, types: tuple[str, ...], *, resolves: bool = False) -> None:
        options = self._options
        _log.info(
            "worker %s serves %s, %d at once",
            self._worker_id,
            ", ".join(options.claimed_queues),
            options.concurrency,
        )
        others = "left to other workers" if options.unknown_types == "skip" else "sent to the dead letters"
        if resolves:
            others = f"looked up by name, and {others} if there is none"
        _log.info(
            "worker %s runs %s; jobs of other tasks are %s", self._worker_id, _tasks_text(types), others
        )
        self._events.emit(
            WorkerStarted(
                worker_id=self._worker_id,
                kind=options.kind,
                queues=options.claimed_queues,
                concurrency=options.concurrency,
                types=types,
            )
        )

    def worker_stopped(self, why: str) -> None:
        _log.info("worker %s has stopped (%s)", self._worker_id, why)
        self._events.emit(
            WorkerStopped(
                worker_id=self._worker_id, kind=self._options.kind, why=why, released=self._rare["released"]
            )
        )

    # ------------------------------------------------------------------ the way of a job

    def claimed(self, jobs: Sequence[JobRecord]) -> None:
        if JobsClaimed in self._events.heard:
            self._events.emit(JobsClaimed(worker_id=self._worker_id, kind=self._options.kind, jobs=jobs))

    def answered(self, jobs: Sequence[LeasedJob], answers: Sequence[Settled | LeaseLost]) -> None:
        if AttemptsAnswered in self._events.heard:
            kind = self._options.kind
            self._events.emit(
                AttemptsAnswered(worker_id=self._worker_id, kind=kind, jobs=jobs, answers=answers)
            )

    def started(self, leased: LeasedJob) -> None:
        """Called only if JobStarted has a listener."""
        record = leased.record
        claimed_at = record.started_at or record.updated_at
        self._events.emit(
            JobStarted(
                job_id=record.id,
                type=record.type,
                queue=record.queue,
                worker_id=self._worker_id,
                kind=self._options.kind,
                attempt=record.attempts + 1,
                fence=record.fence,
                waited_seconds=max((claimed_at - record.eligible_at).total_seconds(), 0.0),
            )
        )

    def settled(self, leased: LeasedJob, answer: Settled) -> None:
        """The store has accepted it: only now is it counted."""
        self.finished += 1
        end = leased.end
        if type(end.value) is Release:
            self._rare["released"] += 1
            self.handed_back += leased.attempt.started is None
        outcome = end.outcome
        error = None if type(outcome) is Succeeded else getattr(outcome, "reason", None)
        kind = AttemptFinished if error is None else AttemptWentWrong
        if type(end.value) is Park and answer.state is not JobState.CANCELLED:
            kind = JobParked
        if kind in self._events.heard:
            self._events.emit(self._finish_of(kind, leased, answer, error))

    def _finish_of(
        self, event: type[AttemptFinished], leased: LeasedJob, answer: Settled, error: str | None
    ) -> AttemptFinished:
        record, attempt, outcome = leased.record, leased.attempt, leased.end.outcome
        return event(
            job_id=record.id,
            type=record.type,
            queue=record.queue,
            worker_id=self._worker_id,
            kind=self._options.kind,
            attempt=record.attempts + 1,
            fence=record.fence,
            outcome="snoozed" if isinstance(outcome, Snoozed) else _OUTCOMES[type(leased.end.value)],
            state=str(answer.state),
            seconds=0.0 if attempt.started is None else attempt.ended - attempt.started,
            error=error,
            failure_kind=outcome.failure_kind if isinstance(outcome, Failed) else None,
            is_copy=record.speculates_on is not None,
            trace=outcome.trace if isinstance(outcome, Failed) else None,
        )

    # ------------------------------------------------------------------ trouble

    def lost(self, leased: LeasedJob, cause: str) -> None:
        """`cause` is one word, a colon, and the rest."""
        record = leased.record
        self._rare["leases_lost"] += 1
        _log.warning(
            "lost the lease of job %s (%s): %s", record.id, record.type, cause, extra=self._fields(leased)
        )
        word, _, error = cause.partition(": ")
        self._events.emit(
            LeaseWasLost(
                job_id=record.id,
                type=record.type,
                queue=record.queue,
                worker_id=self._worker_id,
                fence=record.fence,
                cause=word,
                error=error,
                kind=self._options.kind,
            )
        )

    def given_up(self, jobs: Sequence[Reclaimed]) -> None:
        """Jobs whose last allowed lease, of any worker, ran out; one of our claims found them."""
        self._rare["given_up"] += len(jobs)
        report_given_up(jobs, self._events, found_by=self._worker_id, kind=self._options.kind)

    def ended(self, ends: Sequence[FamilyEnd]) -> None:
        """Families that one of our calls ended, and jobs that it skipped."""
        report_ended(ends, self._events)

    def overtaken(self, leased: LeasedJob, outcome: Outcome) -> None:
        """A handler continued after its transaction had completed the job, and failed."""
        reason = getattr(outcome, "reason", None) or type(outcome).__name__
        _log.warning(
            "job %s (%s) ended after its transaction was committed and stays completed: %s",
            leased.record.id, leased.record.type, reason,
        )  # fmt: skip

    def ran_twice(self, leased: LeasedJob) -> None:
        """The handler did its work, and it does not count. With speculation that is intended."""
        record = leased.record
        if record.speculates_on is not None or SPECULATE_HEADER in record.headers:
            return
        self._rare["ran_twice"] += 1
        self._events.emit(
            RanTwice(
                job_id=record.id,
                type=record.type,
                queue=record.queue,
                worker_id=self._worker_id,
                fence=record.fence,
            )
        )

    def abandoned(self, leased: LeasedJob, where: str) -> None:
        record, reason = leased.record, leased.attempt.cancellation.reason or "timeout"
        self._rare["abandoned"] += 1
        _log.warning(
            "the handler of job %s (%s) was asked to stop (%s) and keeps running in its %s without a slot",
            record.id,
            record.type,
            reason,
            where,
            extra=self._fields(leased),
        )
        self._events.emit(
            HandlerAbandoned(
                job_id=record.id,
                type=record.type,
                queue=record.queue,
                worker_id=self._worker_id,
                where=where,
                reason=reason,
            )
        )

    def _fields(self, leased: LeasedJob) -> dict[str, object]:
        record = leased.record
        return log_fields(record.id, record.type, record.queue, record.attempts + 1, self._worker_id)

    def trouble(self, verb: str, error: BaseException, failures: int) -> None:
        self._rare["driver_errors"] += 1
        if isinstance(error, DriverUnavailable | TimeoutError):
            self._outage.failed(verb, error)
        else:
            is_logged = failures & (failures - 1) == 0  # the 1st, 2nd, 4th, 8th ...: it may last for hours
            is_final = isinstance(error, Forbidden)  # the worker ends with this error
            level = logging.WARNING if is_logged and not is_final else logging.DEBUG
            _log.log(level, "%s failed (%d in a row): %s", verb, failures, error)
        if DriverTrouble in self._events.heard:
            text = f"{type(error).__name__}: {error}"
            self._events.emit(
                DriverTrouble(worker_id=self._worker_id, verb=verb, error=text, failures=failures)
            )

    def extended(self, count: int, refused: int, seconds: float) -> None:
        if LeasesExtended in self._events.heard:
            self._events.emit(
                LeasesExtended(worker_id=self._worker_id, count=count, refused=refused, seconds=seconds)
            )


def _tasks_text(types: tuple[str, ...]) -> str:
    names = ", ".join(types[:MAX_TYPES_LOGGED])
    more = f" and {len(types) - MAX_TYPES_LOGGED} more" if len(types) > MAX_TYPES_LOGGED else ""
    return f"{len(types)} task{'' if len(types) == 1 else 's'}{': ' if names else ''}{names}{more}"
