"""The records that take part in one of the rarer steps: locked, read, changed in Python, written back.

Everything happens inside one transaction of the caller. `taskharbor.model.transitions` says what a
step does to a record; this knows which other records it concerns, and what to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from taskharbor.drivers.postgres.rows import (
    CODES,
    HAD_COPY,
    IS_COPY,
    IS_KEYED,
    IS_REMEMBERED,
    RUN_HAD_COPY,
    avoid_text,
    flags_of,
    headers_text,
    history_text,
    progress_text,
    record_of,
    span_us,
    ties_of,
)
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import (
    EVERY_QUEUE,
    IDEMPOTENCY_WINDOW,
    NO_RULES,
    QueueRules,
    QueueSettings,
    Retention,
    fail_queue_of,
    retention_of,
    rules_of,
)
from taskharbor.model.state import JobState

_settings = msgspec.json.Decoder(QueueSettings)
_FACTS = 5  # columns of the first row of lock_jobs.sql, behind those of a record
_BODY = ("type", "payload", "headers", "timeout", "max_attempts", "max_stalls", "min_backoff", "max_backoff")


class Ledger:
    """Some records of one store at one instant, under lock until the transaction ends."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._connection = connection
        self._sql = statements
        self.at: datetime
        self.records: dict[str, JobRecord] = {}
        self._ties: dict[str, int] = {}
        self._aliases: dict[str, str] = {}
        self._rules: dict[str, QueueRules] = {}
        self._stored: dict[str, JobRecord] = {}
        self._written: dict[str, JobRecord] = {}  # in the order in which it happened
        self._gone: list[str] = []
        self._merged: list[tuple[str, str]] = []
        self._ended: list[str] = []
        self._woken: set[str] = set()
        self._cancels: list[tuple[str, str]] = []

    # ------------------------------------------------------------------ reading

    async def lock(
        self, ids: Iterable[str], now: datetime | None, *, tokens: Iterable[str] | None = None
    ) -> None:
        """Lock and read these jobs and whatever is tied to them. `tokens`: of their leases, if known."""
        wanted = list(ids)
        facts, *rows = await self._connection.fetch(
            self._sql["lock_jobs"], wanted, None if tokens is None else list(tokens), now
        )
        for row in rows:
            record = self.records[row[0]] = self._stored[row[0]] = record_of(row)
            self._ties[record.id] = ties_of(row)
        self.at, alias_ids, targets, queues, settings = facts[-_FACTS:]
        self._aliases = dict(zip(alias_ids or (), targets or (), strict=True))
        self._rules = {
            name: rules_of(_settings.decode(text))
            for name, text in zip(queues or (), settings or (), strict=True)
        }

    def find(self, job_id: str) -> JobRecord | None:
        """The job of an id, or the one it stands for."""
        return self.records.get(self._aliases.get(job_id, job_id))

    def of_key(self, job: JobRecord, *states: JobState) -> JobRecord | None:
        """The job of the same key that stands in one of these states."""
        if job.key is None:
            return None
        same = (other for other in self.records.values() if (other.queue, other.key) == (job.queue, job.key))
        return next((other for other in same if other.state in states), None)

    def copy_of(self, job_id: str) -> JobRecord | None:
        """The living copy of a job."""
        copies = (other for other in self.records.values() if other.speculates_on == job_id)
        return next((copy for copy in copies if not copy.state.is_terminal), None)

    def run_had_copy(self, job: JobRecord) -> bool:
        """Whether the run of this job that goes on now has or had a copy."""
        return bool(self._ties.get(job.id, 0) & RUN_HAD_COPY)

    def retention(self, queue: str) -> Retention:
        return retention_of(self._rule(queue), self._rule(EVERY_QUEUE))

    def fail_queue(self, queue: str) -> str | None:
        return fail_queue_of(self._rule(queue), self._rule(EVERY_QUEUE))

    def _rule(self, queue: str) -> QueueRules:
        return self._rules.get(queue, NO_RULES)

    # ------------------------------------------------------------------ changing

    def put(self, job: JobRecord) -> None:
        self.records[job.id] = job
        self._written.pop(job.id, None)
        self._written[job.id] = job
        if job.state is JobState.READY:
            self._woken.add(job.queue)
        if job.speculates_on is not None and job.speculates_on in self._ties:
            self._ties[job.speculates_on] |= HAD_COPY

    def note_copy_of(self, job: JobRecord) -> None:
        """Its run gets a copy in this step, and no other one."""
        self._ties[job.id] |= RUN_HAD_COPY

    def drop(self, job: JobRecord) -> None:
        """Forget a job and the ids that stand for it."""
        self.records.pop(job.id, None)
        self._written.pop(job.id, None)
        if job.id in self._stored:
            self._gone.append(job.id)

    def merge_away(self, job: JobRecord, target: str) -> None:
        """Forget a record whose id stands for another job from now on."""
        self.drop(job)
        self._merged.append((job.id, target))
        self._ties[target] |= self._ties[job.id] & IS_REMEMBERED

    def ended(self, job_id: str) -> None:
        """Its idempotency keys are remembered for a while from now."""
        if self._ties.get(job_id, 0) & IS_REMEMBERED:
            self._ended.append(job_id)

    async def lives_again(self, job_id: str) -> None:
        """Idempotency keys that are still remembered hold until the job's next end."""
        await self._connection.execute(self._sql["idempotency_lives_again"], job_id, self.at)

    def tell_of_cancel(self, job_id: str, worker: str | None) -> None:
        if worker is not None:
            self._cancels.append((job_id, worker))

    # ------------------------------------------------------------------ writing

    async def write(self, *, wakes: bool = True) -> None:
        """Store every change. Rows leave before others take their place under a key."""
        run = self._connection
        if self._ended:
            until = self.at + IDEMPOTENCY_WINDOW
            await run.executemany(self._sql["idempotency_ends"], [(job_id, until) for job_id in self._ended])
        for job_id, target in self._merged:
            await run.execute(self._sql["merge_away"], job_id, target)
        if self._gone:
            await run.execute(self._sql["forget"], self._gone)
            lined_up = [job_id for job_id in self._gone if self._stored[job_id].state is JobState.READY]
            if lined_up:
                await run.execute(self._sql["leave_line"], lined_up)
        changed = [job for job in self._written.values() if job.id in self._stored]
        bodies = [_body(job) for job in changed if _is_other_work(job, self._stored[job.id])]
        if bodies:  # before the places: a job stands in the line of its type
            await run.executemany(self._sql["write_job"], bodies)
        if changed:
            await run.executemany(self._sql["write_place"], [self._place(job) for job in changed])
        for job in self._written.values():
            if job.id not in self._stored:
                await self._insert(job)
        if wakes and self._woken:
            await run.execute(self._sql["wake"], sorted(self._woken))
        for job_id, worker in self._cancels:
            await run.execute(self._sql["tell_of_cancel"], job_id, worker)

    async def _insert(self, job: JobRecord) -> None:
        await self._connection.execute(
            self._sql["insert_job"],
            *(job.id, job.queue, job.type, job.payload, job.created_at, headers_text(job.headers)),
            *(span_us(job.timeout), job.max_attempts, job.max_stalls),
            *(span_us(job.min_backoff), span_us(job.max_backoff), job.speculates_on, avoid_text(job.avoid)),
            *(
                job.requires,
                -job.priority,
                IS_COPY if job.speculates_on else 0,
                job.fence,
                job.run_at,
                job.seq,
            ),
        )

    def _place(self, job: JobRecord) -> Sequence[object]:
        is_running = job.state is JobState.RUNNING
        kept = IS_REMEMBERED | HAD_COPY | (RUN_HAD_COPY if is_running else 0)  # the next run may have one
        ties = self._ties.get(job.id, 0) & kept
        ties |= IS_KEYED if job.key is not None else 0
        ties |= IS_COPY if job.speculates_on is not None else 0
        return (
            *(
                job.id,
                job.version,
                job.requires,
                -job.priority,
                CODES[job.state],
                ties,
                job.eligible_at,
                job.run_at,
            ),
            *(job.updated_at, job.attempts, job.stalls, job.starts, job.fence, job.cancel_requested),
            *(job.token if is_running else job.settled_token, job.worker_id, job.lease_expires_at),
            *(job.started_at, job.finished_at, flags_of(job.update), job.last_error, job.failed_at),
            *(job.failure_kind, job.result, progress_text(job.progress), history_text(job.history)),
        )


def _body(job: JobRecord) -> Sequence[object]:
    return (
        *(job.id, job.type, job.payload, headers_text(job.headers), span_us(job.timeout)),
        *(job.max_attempts, job.max_stalls, span_us(job.min_backoff), span_us(job.max_backoff)),
    )


def _is_other_work(job: JobRecord, before: JobRecord) -> bool:
    """Whether what the job does has changed, not only where it stands."""
    return any(getattr(job, name) != getattr(before, name) for name in _BODY)
