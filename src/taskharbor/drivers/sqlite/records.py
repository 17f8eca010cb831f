"""Jobs one at a time, inside one step: read whole, stored whole (`drivers/lifecycle.py` JobsInStep).

What is rarer than enqueue, claim and success comes here. The sets of enqueue.py, claim.py, settle.py and
upkeep.py write the same tables and keep to the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.lifecycle import NO_JOBS, JobsOfKey
from taskharbor.drivers.sqlite.rows import (
    CODES,
    RUNNING,
    Flags,
    Row,
    flags_of,
    history_of,
    json_array,
    micros_or_none,
    options_of,
    progress_text,
    record_of,
    ties_of,
)
from taskharbor.drivers.sqlite.step import ALIASES, COPIES, IDEMPOTENCY, Step
from taskharbor.model.clock import micros
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import IDEMPOTENCY_WINDOW, QueueRules
from taskharbor.model.state import JobState
from taskharbor.model.transitions import new_record, unblocked, waiting_state

_data_of = attrgetter(
    "type", "requires", "priority", "payload", "headers", "timeout",
    "max_attempts", "max_stalls", "min_backoff", "max_backoff",
)  # fmt: skip
_past_of = attrgetter("attempts", "stalls", "last_error")
WAITING_STATES = (JobState.READY, JobState.SCHEDULED)


class Records:
    """The stored jobs, within one step."""

    __slots__ = ("_claims", "_known", "_step")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._known: dict[str, JobRecord] = {}  # as they are stored now
        self._claims: dict[str, tuple[int, int, int]] = {}  # of those that run: number, extensions, flags

    @property
    def now(self) -> datetime:
        return self._step.now

    # ------------------------------------------------------------------ reading

    def get(self, job_id: str) -> JobRecord | None:
        return self._known.get(job_id) or next(iter(self._read("get", [job_id])), None)

    def find(self, job_id: str) -> JobRecord | None:
        job = self.get(job_id)
        if job is None:
            row = self._step.fetch_one("get_aliases", ids=json_array([job_id]))
            job = None if row is None else self.at(row[1])
        return job

    def at(self, seq: int) -> JobRecord | None:
        return next(iter(self.by_seqs([seq])), None)

    def by_seqs(self, seqs: Sequence[int], *, payloads: bool = True) -> list[JobRecord]:
        return self._read("get_by_seq" if payloads else "look_by_seq", seqs)

    def by_ids(self, ids: Sequence[str], *, payloads: bool = True) -> list[JobRecord]:
        return self._read("get" if payloads else "look", ids)

    def _read(self, statement: str, values: Sequence[Any]) -> list[JobRecord]:
        rows = map(Row._make, self._step.execute(statement, values=json_array(values)))
        return [self._record(row) for row in rows]

    def _record(self, row: Row) -> JobRecord:
        job = record_of(row)
        if job.state is JobState.READY:
            job = replace(job, state=waiting_state(job.run_at, self._step.now))
        if row.claim is not None:
            self._claims[job.id] = row.claim, row.extensions, row.flags
        self._known[job.id] = job
        return job

    def jobs_of_key(self, queue: str, key: bytes) -> JobsOfKey:
        row = self._step.fetch_one("key_find", queue=queue, key=key)
        if row is None:
            return NO_JOBS
        _, holder, state, _, blocked = row
        return JobsOfKey(None, holder, blocked) if state == RUNNING else JobsOfKey(holder, None, blocked)

    def copy_of(self, job: JobRecord) -> JobRecord | None:
        if job.speculates_on is not None or job.key is not None or not self._step.has(COPIES):
            return None
        row = self._step.fetch_one("copy_find", id=job.id)
        return None if row is None else self.at(row[0])

    def run_had_copy(self, job: JobRecord) -> bool:
        *_, flags = self._claims[job.id]
        return bool(flags & Flags.COPIED)

    def rules(self, queue: str) -> QueueRules:
        return self._step.rules_of(queue)

    def next_seq(self) -> int:
        return self._step.take_seqs(1)

    # ------------------------------------------------------------------ writing

    def put(self, job: JobRecord) -> None:
        before = self._known.get(job.id)
        if before is None:
            self._add(job)
        elif job.state is JobState.RUNNING:
            self._put_running(before, job)
        else:
            self._put_again(before, job)
        self._known[job.id] = job
        self._step.made_ready.pop(job.seq, None)

    def _add(self, job: JobRecord) -> None:
        self._step.add_row(
            "put_job",
            job.seq,
            job.id,
            job.queue,
            job.type,
            job.requires,
            job.priority,
            micros(job.created_at),
            micros_or_none(job.run_at),
            job.key,
            job.idempotency_key,
            options_of(job),
            job.speculates_on,
            job.payload,
        )
        has_past = job.update is not None or job.fence != 0
        if has_past or ties_of(job):
            self.put_state(job, has_past=has_past)
        self._enter(job, has_past=has_past)
        self._take_key(job)

    def _put_again(self, before: JobRecord, after: JobRecord) -> None:
        """A job that does not run, in place of what it was."""
        self._leave(before)
        if _data_of(before) != _data_of(after):
            self._step.execute(
                "put_job_again",
                seq=after.seq,
                type=after.type,
                lane=after.requires,
                priority=after.priority,
                options=options_of(after),
                payload=after.payload,
            )
        if before.result is not None and before.result != after.result:
            self._step.execute("drop_results", seqs=json_array([after.seq]))
        if after.result is not None:
            self._step.add_row("settle_results", after.seq, after.result)
        self.put_state(after)
        self._enter(after, has_past=True)
        if before.state.is_terminal and not after.state.is_terminal:
            self._take_key(after)
        elif after.state.is_terminal and not before.state.is_terminal:
            self._leave_key(after)

    def put_state(self, job: JobRecord, *, has_past: bool = True) -> None:
        """What is stored of a job that does not run, beside its body and its place."""
        self._step.add_row(
            "put_state",
            job.seq,
            CODES[job.state],
            flags_of(job, has_past=has_past),
            job.version,
            job.fence,
            micros(job.updated_at),
            progress_text(job.progress),
        )
        if has_past:
            self._step.add_row("put_history", *history_of(job))

    def _put_running(self, before: JobRecord, job: JobRecord) -> None:
        """The job runs on. It gets a claim of its own if it shares one: updated_at is its own, too."""
        step = self._step
        no, extensions, flags = self._claims[job.id]
        flags = (flags & (Flags.PAST | Flags.COPIED)) | flags_of(job, has_past=False)
        if _past_of(before) != _past_of(job):
            step.add_row("put_history", *history_of(replace(job, starts=job.starts - 1)))
            flags |= Flags.PAST
        own = no
        ends = {"expires_at": micros_or_none(job.lease_expires_at), "now": micros(job.updated_at)}
        if not step.execute("extend_alone", no=no, **ends).rowcount:
            part = {"extensions": 0, "held": 1, "seqs": json_array([job.seq])}
            own = step.execute("extend_part", no=no, **ends, **part).lastrowid or 0
            step.add_row("claim_leave", no, 1)
        step.execute(
            "put_running",
            seq=job.seq,
            no=own,
            flags=flags,
            version=job.version - extensions,
            progress=progress_text(job.progress),
        )
        self._claims[job.id] = own, extensions, flags

    def drop(self, job: JobRecord) -> None:
        self._step.count_record(job, job.state, -1)
        self._forget(job, "drop_aliases")

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        step = self._step
        self._leave(job)
        self._leave_key(job)
        step.execute("alias_move", before=job.seq, after=target.seq)
        step.execute("idempotency_move", before=job.id, after=target.id)
        self._forget(job)
        self.alias(job.id, target)

    def _forget(self, job: JobRecord, *statements: str) -> None:
        seqs = json_array([job.seq])
        for name in (*statements, "drop_results", "drop_history", "drop_state", "drop_job"):
            self._step.execute(name, seqs=seqs)
        self._known.pop(job.id, None)

    def alias(self, job_id: str, target: JobRecord) -> None:
        self._step.execute("alias_add", id=job_id, seq=target.seq)
        self._step.add_sign(ALIASES)

    def add_copy(self, copy: JobRecord, original: JobRecord) -> None:
        self.put(copy)
        self._step.add_sign(COPIES)
        self._step.execute("copy_mark", seq=original.seq)
        no, extensions, flags = self._claims[original.id]
        self._claims[original.id] = no, extensions, flags | Flags.COPIED

    def add_failure_job(self, job: NewJob) -> None:
        self.put(new_record(job, self.next_seq(), self.now))

    def notify_cancel(self, job: JobRecord) -> None:
        if job.worker_id is not None:
            self._step.notices.cancels.append((job.worker_id, job.id))

    # ------------------------------------------------------------------ places

    def _enter(self, job: JobRecord, *, has_past: bool) -> None:
        step = self._step
        if job.state in WAITING_STATES:
            is_ready = job.state is JobState.READY
            is_timed = job.run_at is not None
            step.add_row(
                "put_waiting",
                job.queue,
                job.requires if is_ready else "",
                job.type if is_ready else "",
                -job.priority if is_ready else 0,
                micros(job.eligible_at),
                job.seq,
                flags_of(job, has_past=has_past) | (Flags.TIMED if is_timed else 0),
            )
            if is_ready:
                step.notices.queues.add(job.queue)
                step.has_timed |= is_timed
        elif job.state.is_terminal:
            step.add_row("settle_finished", job.queue, CODES[job.state], micros(job.updated_at), job.seq)
        step.count_record(job, job.state, +1)

    def _leave(self, job: JobRecord) -> None:
        step, state = self._step, job.state
        if state is JobState.RUNNING:
            step.add_row("claim_leave", self._claims.pop(job.id)[0], 1)
        elif state in WAITING_STATES:
            state = self._leave_line(job)
        step.count_record(job, state, -1)

    def _leave_line(self, job: JobRecord) -> JobState:
        """Out of the line it is in, whatever it reads: a due job may not have been promoted yet."""
        step = self._step
        place = {"queue": job.queue, "at": micros(job.eligible_at), "seq": job.seq}
        lane = {"lane": job.requires, "type": job.type, "rank": -job.priority}
        if step.execute("put_leave", **lane, **place).rowcount:
            return JobState.READY
        step.execute("put_leave", lane="", type="", rank=0, **place)
        return JobState.SCHEDULED

    def _take_key(self, job: JobRecord) -> None:
        if job.key is None:
            return
        if job.state is JobState.BLOCKED:
            self._step.execute("key_block", queue=job.queue, key=job.key, next=job.seq)
        else:
            self._step.execute("key_hold", queue=job.queue, key=job.key, seq=job.seq)

    def _leave_key(self, job: JobRecord) -> None:
        """The key of a job that has ended passes to the one that was blocked behind it."""
        if job.key is None:
            return
        step = self._step
        row = step.fetch_one("key_find", queue=job.queue, key=job.key)
        if row is None:
            return
        holder, _, _, blocked, _ = row
        if blocked == job.seq:
            step.execute("key_block", queue=job.queue, key=job.key, next=None)
        elif holder == job.seq and blocked is not None:
            step.execute("settle_pass_on", seqs=json_array([job.seq]))
        elif holder == job.seq:
            step.execute("key_free", seq=job.seq)

    # ------------------------------------------------------------------ idempotency keys

    def remembered(self, queue: str, key: bytes) -> str | None:
        row = self._step.fetch_one("idempotency_find", queue=queue, key=key, now=self._step.us)
        return None if row is None else str(row[0])

    def remember(self, job: NewJob, record: JobRecord) -> None:
        if job.idempotency_key is not None:
            self._step.execute("idempotency_remember", queue=job.queue, key=job.idempotency_key, id=record.id)
            self._step.add_sign(IDEMPOTENCY)

    def end_keys(self, job: JobRecord) -> None:
        if self._step.has(IDEMPOTENCY):
            self._step.add_row("idempotency_end", micros(self.now + IDEMPOTENCY_WINDOW), job.id)

    def revive_keys(self, job: JobRecord) -> None:
        self._step.execute("idempotency_expired", id=job.id, now=self._step.us)
        self._step.execute("idempotency_revive", id=job.id)


def drop_orphan(step: Step, queue: str, seq: int, state: JobState, flags: int) -> None:
    """Forget a job whose body is gone; the job blocked behind it, if any, goes on."""
    if not flags & Flags.COPY:  # copies are not counted
        step.count(queue, seq, state, -1)
    seqs = json_array([seq])
    for name in ("drop_results", "drop_history", "drop_state"):
        step.execute(name, seqs=seqs)
    free_keys(step, Records(step), [seq])
    step.notices.orphans.append(f"seq {seq} of queue {queue}")


def free_keys(step: Step, records: Records, seqs: Sequence[int]) -> None:
    """The holders of these keys have ended: what is blocked behind them is released (lifecycle.leave)."""
    text = json_array(seqs)
    if step.execute("settle_keys", seqs=text).rowcount == len(seqs):
        return
    blocked = [seq for (seq,) in step.fetch_all("settle_next", seqs=text)]
    step.execute("settle_pass_on", seqs=text)
    for job in records.by_seqs(blocked):
        records.put(unblocked(job, step.now))
