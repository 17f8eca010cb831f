"""Jobs one at a time: read whole, stored whole. What is rarer than enqueue, claim and success comes here.

`put` is the only way in and `drop` the only way out, so no table can disagree with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from taskharbor.drivers.sqlite.rows import (
    Flags,
    grant_of,
    micros_or_none,
    past_of,
    record_of,
    traits_of,
)
from taskharbor.drivers.sqlite.runs import lease_alone, outcome_alone
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import DriverMisbehaved
from taskharbor.model.clock import micros
from taskharbor.model.job import Avoid, JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.transitions import waiting_state

_WAITS, _RUNS, _BLOCKED = 0, 1, 2
_PLACE = {
    JobState.READY: _WAITS,
    JobState.SCHEDULED: _WAITS,
    JobState.RUNNING: _RUNS,
    JobState.BLOCKED: _BLOCKED,
}
_DATA = (
    "type", "requires", "priority", "payload", "headers", "timeout",
    "max_attempts", "max_stalls", "min_backoff", "max_backoff",
)  # fmt: skip
_json = msgspec.json.Encoder()


class KeySlot(NamedTuple):
    """The live jobs of one (queue, key), by seq: one that waits or is blocked, and one that runs."""

    waiting: int | None
    running: int | None
    blocked: int | None


class Records:
    """The stored jobs, within one step."""

    __slots__ = ("_grants", "_step")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._grants: dict[int, int] = {}  # seq → grant, of running jobs that were read here

    # ------------------------------------------------------------------ reading

    def by_id(self, job_id: str) -> JobRecord | None:
        """The job with this id; an alias is not followed."""
        return self._read(self._step.one("get", ids=json_text([job_id])))

    def find(self, job_id: str) -> JobRecord | None:
        """The job with this id, or the one it stands for."""
        return self.by_id(job_id) or self._aliased(job_id)

    def by_seq(self, seq: int) -> JobRecord:
        """A job that must be there."""
        record = self.at(seq)
        if record is None:
            raise DriverMisbehaved(f"the job with seq {seq} has been lost; nothing was written")
        return record

    def at(self, seq: int) -> JobRecord | None:
        return self._read(self._step.one("get_seqs", seqs=json_text([seq])))

    def by_seqs(self, seqs: Sequence[int], *, payloads: bool = True) -> dict[int, JobRecord]:
        rows = self._step.all("get_seqs" if payloads else "look_seqs", seqs=json_text(seqs))
        return {row[0]: self.record(row) for row in rows}

    def slot(self, queue: str, key: bytes) -> KeySlot:
        places: dict[int, int] = dict(self._step.all("key_places", queue=queue, key=key))
        return KeySlot(places.get(_WAITS), places.get(_RUNS), places.get(_BLOCKED))

    def blocked_behind(self, job: JobRecord) -> JobRecord | None:
        if job.key is None:
            return None
        seq = self.slot(job.queue, job.key).blocked
        return None if seq is None else self.by_seq(seq)

    def live_copy_of(self, job: JobRecord) -> JobRecord | None:
        if job.speculates_on is not None or job.key is not None:
            return None
        row = self._step.one("copy_of", id=job.id)
        return None if row is None else self.by_seq(row[0])

    def _aliased(self, job_id: str) -> JobRecord | None:
        row = self._step.one("get_alias", ids=json_text([job_id]))
        return None if row is None else self.at(row[1])

    def _read(self, row: tuple[Any, ...] | None) -> JobRecord | None:
        return None if row is None else self.record(row)

    def record(self, row: tuple[Any, ...]) -> JobRecord:
        record = record_of(row)
        grant_no = grant_of(row)
        if grant_no is not None:
            self._grants[record.seq] = grant_no
        elif record.state is JobState.READY and record.run_at is not None:
            return msgspec.structs.replace(record, state=waiting_state(record.run_at, self._step.now))
        return record

    # ------------------------------------------------------------------ writing

    def add(self, job: JobRecord) -> None:
        """Store a job that was not there before."""
        self._step.run(
            "put_body",
            seq=job.seq,
            id=job.id,
            queue=job.queue,
            type=job.type,
            requires=job.requires,
            priority=job.priority,
            created_at=micros(job.created_at),
            run_at=micros_or_none(job.run_at),
            traits=traits_of(job),
            copy_of=job.speculates_on,
            payload=job.payload,
        )
        has_past = job.state is JobState.BLOCKED or job.fence != 0
        if has_past:
            self._put_past(job)
        self._enter(job, has_past)

    def put(self, before: JobRecord, after: JobRecord) -> None:
        """Store a job in place of what it was. It does not run afterwards: only a claim makes a lease."""
        self._leave(before)
        if any(getattr(before, name) != getattr(after, name) for name in _DATA):
            self._step.run(
                "put_body_again",
                seq=after.seq,
                type=after.type,
                requires=after.requires,
                priority=after.priority,
                traits=traits_of(after),
                payload=after.payload,
            )
        self._put_past(after)
        self._enter(after, has_past=True)

    def drop(self, job: JobRecord) -> None:
        """Forget a job and the aliases that led to it."""
        self._leave(job)
        self._drop(job.seq, "drop_past", "drop_aliases", "drop_body")

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        """Forget a record whose id stands for another job from now on, with whatever stood for it."""
        self._leave(job)
        self._step.run("alias_move", before=job.seq, after=target.seq)
        self._drop(job.seq, "drop_past", "drop_body")
        self.alias(job.id, target)

    def alias(self, job_id: str, target: JobRecord) -> None:
        self._step.run("alias_add", id=job_id, seq=target.seq)

    def _drop(self, seq: int, *statements: str) -> None:
        for name in statements:
            self._step.run(name, seqs=json_text([seq]))

    def _put_past(self, job: JobRecord) -> None:
        self._step.run(
            "put_past",
            seq=job.seq,
            version=job.version,
            blocked=job.state is JobState.BLOCKED,
            run_at=micros_or_none(job.run_at),
            failure_kind=job.failure_kind,
            data=past_of(job),
        )

    # ------------------------------------------------------------------ places

    def _enter(self, job: JobRecord, has_past: bool) -> None:
        step, state = self._step, job.state
        if state is JobState.READY:
            self._enter_line(
                "put_ready",
                job,
                has_past,
                last=job.seq,
                eligible_at=micros(job.eligible_at),
                timed=job.run_at is not None,
            )
            step.hints.queues.add(job.queue)
            step.has_timed |= job.run_at is not None
        elif state is JobState.SCHEDULED and job.run_at is not None:
            self._enter_line("put_later", job, has_past, run_at=micros(job.run_at))
        elif job.finished_at is not None:
            ended_at = micros(job.finished_at)
            step.run("put_outcome", seq=job.seq, queue=job.queue, state=state, finished_at=ended_at)
        step.count_record(job, state, +1)
        if job.key is not None and state in _PLACE:
            step.run("put_key", queue=job.queue, key=job.key, place=_PLACE[state], seq=job.seq)

    def _enter_line(self, statement: str, job: JobRecord, has_past: bool, **when: Any) -> None:
        flags = (
            (Flags.PAST if has_past else 0)
            | (Flags.KEYED if job.key is not None else 0)
            | (Flags.IDEMPOTENT if job.idempotency_key is not None else 0)
            | (Flags.COPY if job.speculates_on is not None else 0)
        )
        self._step.run(
            statement,
            queue=job.queue,
            seq=job.seq,
            lane=job.requires,
            rank=-job.priority,
            flags=flags,
            type=job.type,
            avoid=_avoid_text(job.avoid),
            **when,
        )

    def _leave(self, job: JobRecord) -> None:
        step, state = self._step, job.state
        if state is JobState.RUNNING:
            lease_alone(step, job.seq)
            step.run("leave_lease", seq=job.seq)
            leave_grant(step, self._grants.pop(job.seq), 1)
        elif state is JobState.READY or state is JobState.SCHEDULED:
            state = self._leave_line(job)
        elif state.is_terminal:
            outcome_alone(step, job.seq)
            step.run("leave_outcome", seq=job.seq)
            self._drop(job.seq, "drop_results")
        step.count_record(job, state, -1)
        if job.key is not None and state in _PLACE:
            step.run("leave_key", queue=job.queue, key=job.key, place=_PLACE[state], seq=job.seq)

    def _leave_line(self, job: JobRecord) -> JobState:
        """Out of the line it stands in, whatever it reads: a due job may not have been promoted yet."""
        step, eligible_at = self._step, micros(job.eligible_at)
        where = {
            "queue": job.queue,
            "lane": job.requires,
            "rank": -job.priority,
            "eligible_at": eligible_at,
            "seq": job.seq,
        }
        if step.run("leave_ready", **where).rowcount or self._leave_run(where):
            return JobState.READY
        step.run("leave_later", queue=job.queue, run_at=eligible_at, seq=job.seq)
        return JobState.SCHEDULED

    def _leave_run(self, where: dict[str, Any]) -> bool:
        """Out of the run that it was enqueued with, if it still stands in one."""
        step = self._step
        run = step.one("leave_run", **where)
        if run is None:
            return False
        step.run("leave_run_behind", run=run[0], **where)
        step.run("leave_run_before", run=run[0], **where)
        del where["seq"]
        step.run("leave_run_empty", run=run[0], **where)
        return True


def leave_grant(step: Step, no: int, count: int, held: int | None = None) -> None:
    """So many leases of a grant are gone, of as many as it held if that is known."""
    if held is None or count < held:
        step.run("leave_grant", no=no, count=count)
    if held is None or count >= held:
        step.run("leave_grant_empty", no=no, most=0 if held is None else count)


def json_text(values: Iterable[Any]) -> str:
    """An array for json_each."""
    return _json.encode(values if isinstance(values, list | tuple) else list(values)).decode()


def _avoid_text(avoid: Avoid | None) -> str | None:
    """Which workers may not run a copy, as reserve_pick.sql reads it."""
    if avoid is None or avoid.until is None:
        return None if avoid is None else avoid.worker
    return "\n".join((avoid.worker, str(micros(avoid.until)), *avoid.others, ""))
