"""The jobs that take part in one of the rarer steps: locked, read, changed in Python, written back.

Everything happens inside one transaction of the caller. `drivers/lifecycle.py` decides what a step does; this
brings it the records that the step can touch, and writes what has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.lifecycle import JobsOfKey
from taskharbor.drivers.postgres.rows import (
    CODES,
    HAD_COPY,
    IS_CHILD,
    IS_COPY,
    IS_KEYED,
    IS_RELATED,
    IS_REMEMBERED,
    RUN_HAD_COPY,
    flags_of,
    headers_text,
    history_text,
    link_flags_of,
    progress_text,
    record_of,
    span_us,
)
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.model.job import Avoid, JobRecord, NewJob
from taskharbor.model.queue import IDEMPOTENCY_WINDOW, NO_RULES, QueueRules, QueueSettings, rules_of
from taskharbor.model.state import JobState
from taskharbor.model.transitions import new_record, waiting_state

Key = tuple[str, bytes]
_BODY = ("type", "payload", "headers", "timeout", "max_attempts", "max_stalls", "min_backoff", "max_backoff")


class HasFamily(Exception):
    """A job of the step is of a family: `FamilyStep` locks its tree first."""


class UnitOfWork:
    """Some jobs of a store at one instant, under lock until the transaction ends: a `JobsInStep`."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._connection = connection
        self._sql = statements
        self.now: datetime
        self._records: dict[str, JobRecord] = {}
        self._stored: dict[str, JobRecord] = {}
        self._links: dict[str, int] = {}
        self._aliases: dict[str, str] = {}
        self._keys: dict[Key, tuple[str, str | None]] = {}  # as stored: holder, next
        self._rules: dict[str, QueueRules] = {}
        self._seqs: list[int] = []
        self._written: dict[str, JobRecord] = {}  # in the order in which it happened
        self._dropped: list[str] = []
        self._merged: list[tuple[str, str]] = []
        self._ended: list[str] = []
        self._revived: list[str] = []
        self._cancels: list[tuple[str, str]] = []

    async def lock(
        self, ids: Iterable[str], now: datetime | None, key: Key | None = None, *, seqs: int = 0
    ) -> None:
        """Lock and read these jobs, those of a key, and whatever is linked to them; draw so many seqs."""
        rows = await self._connection.fetch(self._sql["lock_jobs"], list(ids), *(key or (None, None)), now)
        if not rows:
            raise HasFamily
        facts, *rows = rows
        self.now = facts[-2]
        aliases, keys, settings = msgspec.json.decode(facts[-1])
        self._aliases = dict(aliases or ())
        self._keys = {
            (queue, bytes.fromhex(key)): (holder, blocked) for queue, key, holder, blocked in keys or ()
        }
        self._rules = {
            queue: rules_of(msgspec.convert(given, QueueSettings)) for queue, given in settings or ()
        }
        for row in rows:
            job = record_of(row)
            if job.state is JobState.SCHEDULED:
                job = replace(job, state=waiting_state(job.run_at, self.now))
            self._records[job.id] = self._stored[job.id] = job
            self._links[job.id] = link_flags_of(row)
            if self._links[job.id] & (IS_RELATED | IS_CHILD):
                raise HasFamily
        for _ in range(seqs):
            self._seqs.append(await self._connection.fetchval(self._sql["next_seq"]))

    # ------------------------------------------------------------------ reading

    def get(self, job_id: str) -> JobRecord | None:
        return self._records.get(job_id)

    def find(self, job_id: str) -> JobRecord | None:
        return self._records.get(self._aliases.get(job_id, job_id))

    def jobs_of_key(self, queue: str, key: bytes) -> JobsOfKey:
        ids = {
            job.state: job.id
            for job in self._records.values()
            if job.key == key and job.queue == queue and not job.state.is_terminal
        }
        waiting = ids.get(JobState.READY) or ids.get(JobState.SCHEDULED)
        return JobsOfKey(waiting, ids.get(JobState.RUNNING), ids.get(JobState.BLOCKED))

    def copy_of(self, job: JobRecord) -> JobRecord | None:
        copies = (other for other in self._records.values() if other.speculates_on == job.id)
        return next((copy for copy in copies if not copy.state.is_terminal), None)

    def run_had_copy(self, job: JobRecord) -> bool:
        return bool(self._links.get(job.id, 0) & RUN_HAD_COPY)

    def rules(self, queue: str) -> QueueRules:
        return self._rules.get(queue, NO_RULES)

    def next_seq(self) -> int:
        return self._seqs.pop(0)

    # ------------------------------------------------------------------ changing

    def put(self, job: JobRecord) -> None:
        self._records[job.id] = job
        self._written.pop(job.id, None)
        self._written[job.id] = job

    def drop(self, job: JobRecord) -> None:
        self._records.pop(job.id, None)
        self._written.pop(job.id, None)
        if job.id in self._stored:
            self._dropped.append(job.id)

    def alias(self, job_id: str, target: JobRecord) -> None:
        raise NotImplementedError("the function enqueue does that")

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        self.drop(job)
        self._merged.append((job.id, target.id))
        self._links[target.id] |= self._links[job.id] & IS_REMEMBERED

    def add_copy(self, copy: JobRecord, original: JobRecord) -> None:
        self._links[original.id] |= HAD_COPY | RUN_HAD_COPY
        self.put(original)  # unchanged, but linked to its copy from now on
        self.put(copy)

    def add_failure_job(self, job: NewJob) -> None:
        self.put(new_record(job, 0, self.now))

    def notify_cancel(self, job: JobRecord) -> None:
        if job.worker_id is not None:
            self._cancels.append((job.id, job.worker_id))

    # ------------------------------------------------------------------ idempotency keys

    def remembered(self, queue: str, key: bytes) -> str | None:
        raise NotImplementedError("the function enqueue does that")

    def remember(self, job: NewJob, record: JobRecord) -> None:
        raise NotImplementedError("the function enqueue does that")

    def end_keys(self, job: JobRecord) -> None:
        if self._links.get(job.id, 0) & IS_REMEMBERED:
            self._ended.append(job.id)

    def revive_keys(self, job: JobRecord) -> None:
        if self._links.get(job.id, 0) & IS_REMEMBERED:
            self._revived.append(job.id)

    # ------------------------------------------------------------------ writing

    async def write(self) -> None:
        """Store every change."""
        run = self._connection
        if remembered := self._remembered_jobs():
            await run.execute(self._sql["lock_idempotency"], remembered)
        if self._ended:
            until = self.now + IDEMPOTENCY_WINDOW
            await run.executemany(self._sql["end_keys"], [(job_id, until) for job_id in self._ended])
        if self._revived:
            await run.executemany(self._sql["revive_keys"], [(job_id, self.now) for job_id in self._revived])
        if self._merged:
            await run.executemany(self._sql["merge_away"], self._merged)
        if self._dropped:
            await run.execute(self._sql["drop_jobs"], self._dropped)
        changed = self._changed_jobs()
        bodies = [body_of(job) for job in changed if is_other_work(job, self._stored[job.id])]
        if bodies:  # before the states: a job is in the line of its type
            await run.executemany(self._sql["write_job"], bodies)
        if changed:
            await run.executemany(self._sql["write_state"], [self._state(job) for job in changed])
        new = [inserted(job) for job in self._written.values() if job.id not in self._stored]
        if new:
            await run.executemany(self._sql["insert_job"], new)
        keys = [(*key, *now) for key, stored in self._keys.items() if (now := self._holders(key)) != stored]
        if keys:
            await run.executemany(self._sql["write_key"], keys)
        woken = {job.queue for job in self._written.values() if job.state is JobState.READY}
        if woken:
            await run.execute(self._sql["wake"], sorted(woken))
        if self._cancels:
            await run.executemany(self._sql["notify_cancel"], self._cancels)

    def _remembered_jobs(self) -> list[str]:
        """Jobs whose idempotency keys are written."""
        merged = [job_id for job_id, _ in self._merged if self._links.get(job_id, 0) & IS_REMEMBERED]
        return [*self._ended, *self._revived, *merged]

    def _changed_jobs(self) -> list[JobRecord]:
        """Those that were stored before, with those first that had ended, by queue, state and end.

        They leave rows of `finished` and `child_end`, which they share: everybody locks those in this order.
        """
        changed = [job for job in self._written.values() if job.id in self._stored]
        return sorted(changed, key=self._place_among_ended)

    def _place_among_ended(self, job: JobRecord) -> tuple[bool, str, int, float]:
        before = self._stored[job.id]
        if before.finished_at is None:
            return True, "", 0, 0.0
        return False, before.queue, CODES[before.state], before.finished_at.timestamp()

    def _holders(self, key: Key) -> tuple[str | None, str | None]:
        """Who holds a key now, and who is blocked behind it."""
        of_key = self.jobs_of_key(*key)
        return of_key.running or of_key.waiting, of_key.blocked

    def _state(self, job: JobRecord) -> Sequence[object]:
        is_running = job.state is JobState.RUNNING
        kept = (
            IS_REMEMBERED | HAD_COPY | IS_RELATED | IS_CHILD | (RUN_HAD_COPY if is_running else 0)
        )  # the next run may have one
        links = self._links[job.id] & kept
        links |= IS_KEYED if job.key is not None else 0
        links |= IS_COPY if job.speculates_on is not None else 0
        is_waiting = job.state in (JobState.READY, JobState.SCHEDULED)
        token = job.token if is_running else job.settled_token
        return (
            *(job.id, self.now, 0 if is_waiting else CODES[job.state], links, job.version, job.requires),
            *(-job.priority, job.run_at, job.updated_at, job.attempts, job.stalls, job.starts, job.fence),
            *(job.cancel_requested, None if token is None else token[:32], job.worker_id),
            *(job.lease_expires_at or job.finished_at, job.started_at, flags_of(job.update), job.last_error),
            *(job.failed_at, job.failure_kind, job.result, progress_text(job.progress)),
            history_text(job.history),
        )


def inserted(job: JobRecord) -> Sequence[object]:
    return (
        *(
            job.id,
            job.seq or None,
            job.queue,
            job.type,
            job.payload,
            job.created_at,
            headers_text(job.headers),
        ),
        *(span_us(job.timeout), job.max_attempts, job.max_stalls),
        *(span_us(job.min_backoff), span_us(job.max_backoff), job.requires, -job.priority, job.run_at),
        *(job.fence, job.speculates_on, *_avoid(job.avoid)),
    )


def _avoid(avoid: Avoid | None) -> tuple[str | None, datetime | None, Sequence[str] | None]:
    return (None, None, None) if avoid is None else (avoid.worker, avoid.until, avoid.others)


def body_of(job: JobRecord) -> Sequence[object]:
    return (
        *(job.id, job.type, job.payload, headers_text(job.headers), span_us(job.timeout)),
        *(job.max_attempts, job.max_stalls, span_us(job.min_backoff), span_us(job.max_backoff)),
    )


def is_other_work(job: JobRecord, before: JobRecord) -> bool:
    """Whether what the job does has changed, not only its state."""
    return any(getattr(job, name) != getattr(before, name) for name in _BODY)
