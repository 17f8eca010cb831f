"""How jobs stop running, or stop for good, in the reference model, and everything that follows from it."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers.messages import ReclaimResult
from taskharbor.model.entropy import derived_id
from taskharbor.model.job import FAILURE_TYPE, AttemptRecord, NewJob, Update
from taskharbor.model.queue import Retention
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.reference.budgets import Gated
from taskharbor.testing.reference.jobs import DATA, RETRY, UNSAID, choose, waiting


class Ending(Gated):
    """The ends of attempts and of jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.first_jobs: dict[tuple[str, bytes], tuple[str, datetime | None]] = {}  # idempotency: job, end

    def _leave(
        self, job: Any, outcome: str, why: str | None, now: datetime, error_class: str | None = None
    ) -> None:
        """The attempt is over: into the history with it, away with the lease."""
        if outcome != "completed" or job.starts > 1:
            run = (job.fence, job.worker_id, job.started_at, now)
            entry = AttemptRecord(*run, outcome, why, error_class)
            job.history = (*job.history, entry)[-10:]
        job.token = job.lease_expires_at = job.worker_id = None
        self._touch(job, now)

    def _end(self, job: Any, state: JobState, now: datetime) -> None:
        """The job is over, and whatever waited for that happens."""
        self._move(job, state)
        job.finished_at = now
        for blocked in self._of_key(job.queue, job.key, JobState.BLOCKED):
            blocked.update = None
            self._move(blocked, waiting(blocked.run_at, now))
            self._touch(blocked, now)
        for key, (job_id, ends_at) in self.first_jobs.items():
            if job_id == job.id and (ends_at is None or ends_at > now):
                self.first_jobs[key] = (job_id, now + timedelta(hours=24))
        if state is JobState.FAILED:
            self._report_failure(job, now)
        self._drop_copy(job.id, now)
        if self._keep(job) == timedelta(0) and job.speculates_on is None:
            self._forget(job)

    def _wait_again(self, job: Any, run_at: datetime | None, now: datetime) -> bool:
        """The job waits for another try, as one with the job blocked behind it; was there one?"""
        job.run_at = run_at
        blocked_jobs = list(self._of_key(job.queue, job.key, JobState.BLOCKED))
        for blocked in blocked_jobs:
            job.run_at = choose(blocked.update.run_at, run_at, blocked.run_at, now)
            self._take_over(job, blocked, blocked.update)
            del self.jobs[blocked.id]
            self.aliases[blocked.id] = job.id
            self.touched.add(blocked.id)
            for key, (job_id, _) in self.first_jobs.items():
                if job_id == blocked.id:
                    self.first_jobs[key] = (job.id, None)
        self._move(job, waiting(job.run_at, now))
        return bool(blocked_jobs)

    def _take_over(self, there: Any, new: Any, update: Update) -> None:
        names = (DATA if update.data else ()) + (RETRY if update.retry else ())
        for name in names:
            setattr(there, name, getattr(new, name))
        if update.reset_counts:
            there.attempts = there.stalls = 0

    def _stall(self, job: Any, why: str, now: datetime, token: str | None = None) -> ReclaimResult:
        job.settled_token = token
        job.stalls += not job.cancel_requested
        self._leave(job, "cancelled" if job.cancel_requested else "stalled", why, now)
        if job.cancel_requested:
            self._end(job, JobState.CANCELLED, now)
            return ReclaimResult.CANCELLED
        if 0 < job.max_stalls <= job.stalls:
            job.last_error, job.failure_kind, job.failed_at = why, "stalled", now
            self._end(job, JobState.FAILED, now)
            return ReclaimResult.FAILED
        return ReclaimResult.MERGED if self._wait_again(job, None, now) else ReclaimResult.REQUEUED

    def _report_failure(self, job: Any, now: datetime) -> None:
        fail_queue = self._rule(job.queue, "fail_queue") or self._rule("*", "fail_queue")
        if fail_queue is None or job.type == FAILURE_TYPE or job.speculates_on is not None:
            return
        failure = {name: getattr(job, name) for name in ("id", "type", "queue", "attempts", "stalls")}
        failure |= {"key": None if job.key is None else job.key.decode(), "failure_kind": job.failure_kind}
        failure |= {"payload": base64.b64encode(job.payload).decode(), "error": job.last_error}
        new = NewJob(
            id=derived_id(job.id, job.fence, "failed", now),
            type=FAILURE_TYPE,
            payload=msgspec.json.encode(failure),
            queue=fail_queue,
            max_attempts=100,
            max_stalls=3,
            min_backoff=timedelta(seconds=10),
            max_backoff=timedelta(minutes=15),
        )
        self._create(new, now)

    def _keep(self, job: Any) -> timedelta | None:
        kept = self._rule(job.queue, "retention") or self._rule("*", "retention") or Retention()
        span: timedelta | None = getattr(kept, job.state.value)
        return span

    # ------------------------------------------------------------------ copies

    def _copies(self, job_id: str) -> list[Any]:
        """The live copy of a job, if it has one."""
        copies = [job for job in self.jobs.values() if job.speculates_on == job_id]
        return [copy for copy in copies if copy.state not in TERMINAL]

    def _drop_copy(self, job_id: str, now: datetime) -> None:
        for copy in self._copies(job_id):
            copy.token = copy.lease_expires_at = copy.worker_id = None
            self._touch(copy, now)
            self._end(copy, JobState.CANCELLED, now)

    def _win(self, original: Any, result: bytes | None, now: datetime) -> None:
        """The original is completed by its copy; its own later settlement finds nothing in flight."""
        original.result = result
        if original.state is JobState.RUNNING:
            self._leave(original, "superseded", UNSAID, now)
        else:
            self._touch(original, now)
        self._end(original, JobState.COMPLETED, now)
