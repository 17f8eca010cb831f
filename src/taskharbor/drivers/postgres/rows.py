"""Row ↔ JobRecord."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.model.clock import instant, micros, span_micros
from taskharbor.model.job import NO_TIME, AttemptRecord, Avoid, JobRecord, Progress, RunAtRule, Update
from taskharbor.model.state import JobState
from taskharbor.model.transitions import waiting_state

STATES = (
    JobState.SCHEDULED,
    JobState.READY,
    JobState.BLOCKED,
    JobState.RUNNING,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
)
CODES = {state: code for code, state in enumerate(STATES)}
IS_KEYED, IS_REMEMBERED, IS_COPY, HAD_COPY, RUN_HAD_COPY = 1, 2, 4, 8, 16

COLUMNS = """
    p.id::text, p.seq, j.type, p.queue, p.state, j.payload, j.created_at, p.updated_at, p.version, j.key,
    j.idempotency_key, j.headers::text, p.rank, p.lane, p.run_at, j.timeout_us, p.attempts, j.max_attempts,
    p.stalls, j.max_stalls, p.starts, j.min_backoff_us, j.max_backoff_us, p.token, p.fence,
    p.lease_expires_at, p.claimed_by, p.cancel_requested, p.last_error, p.failed_at, p.failure_kind,
    p.started_at, p.finished_at, p.result, p.progress::text, p.history::text, p.flags,
    j.speculates_on::text, j.avoid_worker, p.ties
"""
"""A whole record, from `place p` and `job j`; the order of `record_of`."""

COLUMNS_WITHOUT_PAYLOAD = COLUMNS.replace("j.payload", "''::bytea").replace("p.result", "null::bytea")
"""The same for listings that show neither payload nor result: what is not asked for is not read."""

_strings = msgspec.json.Decoder(dict[str, str])
_story = msgspec.json.Decoder()


def record_of(row: Sequence[Any]) -> JobRecord:
    """A stored record, with its token: nobody outside the driver may see it like that."""
    state = STATES[row[4]]
    is_running = state is JobState.RUNNING
    return JobRecord(
        id=row[0],
        seq=row[1],
        type=row[2],
        queue=row[3],
        state=state,
        payload=row[5],
        created_at=row[6],
        updated_at=row[7],
        version=row[8],
        key=row[9],
        idempotency_key=row[10],
        headers=_strings.decode(row[11]) if row[11] else {},
        priority=-row[12],
        requires=row[13],
        run_at=row[14],
        timeout=span(row[15]) or NO_TIME,
        attempts=row[16],
        max_attempts=row[17],
        stalls=row[18],
        max_stalls=row[19],
        starts=row[20],
        min_backoff=span(row[21]),
        max_backoff=span(row[22]),
        token=row[23] if is_running else None,
        settled_token=None if is_running else row[23],
        fence=row[24],
        lease_expires_at=row[25],
        worker_id=row[26],
        cancel_requested=row[27],
        last_error=row[28],
        failed_at=row[29],
        failure_kind=row[30],
        started_at=row[31],
        finished_at=row[32],
        result=row[33],
        progress=progress_of(row[34]),
        history=history_of(_story.decode(row[35])) if row[35] else (),
        update=update_of(row[36]),
        speculates_on=row[37],
        avoid=_avoid_of(row[38]),
    )


def ties_of(row: Sequence[Any]) -> int:
    return int(row[39])


def shown(job: JobRecord, now: datetime) -> JobRecord:
    """The record as it reads: due means ready, and the token is nobody's business."""
    state = job.state
    if state is JobState.SCHEDULED or state is JobState.READY:
        state = waiting_state(job.run_at, now)
    return job if state is job.state and job.token is None else replace(job, state=state, token=None)


def claimed_of(row: Sequence[Any], lease: Granted) -> JobRecord:
    """A record that `exchange` handed out. Hot: what is rarely set is only looked at when it is."""
    more = row[11]
    if more is not None:
        return _with_more(row, lease, _story.decode(more))
    return JobRecord(
        id=row[0],
        seq=row[1],
        type=row[2],
        queue=row[3],
        state=_RUNNING,
        payload=row[4],
        created_at=row[5],
        updated_at=lease.at,
        version=2,
        priority=-row[6],
        requires=row[7],
        run_at=row[8],
        max_attempts=row[9],
        max_stalls=row[10],
        starts=1,
        token=lease.token,
        fence=lease.fence,
        lease_expires_at=lease.expires_at,
        worker_id=lease.worker,
        started_at=lease.at,
    )


def _with_more(row: Sequence[Any], lease: Granted, more: list[Any]) -> JobRecord:
    """The same with what `o_more` tells: the rarer options, and the past of a job that is not plain."""
    headers, timeout, min_backoff, max_backoff, *past = more
    options = {
        "headers": headers or {},
        "timeout": span(timeout) or NO_TIME,
        "min_backoff": span(min_backoff),
        "max_backoff": span(max_backoff),
    }
    if past:
        options |= _past(past)
    return replace(claimed_of((*row[:11], None), lease), **options)


def _past(past: list[Any]) -> dict[str, Any]:
    version, key, idempotency_key, attempts, stalls, starts, fence, is_cancelled = past[:8]
    last_error, failed_at, kind, history, speculates_on, avoid_worker = past[8:]
    return {
        "version": version,
        "key": None if key is None else bytes.fromhex(key),
        "idempotency_key": None if idempotency_key is None else bytes.fromhex(idempotency_key),
        "attempts": attempts,
        "stalls": stalls,
        "starts": starts,
        "fence": fence,
        "cancel_requested": is_cancelled,
        "last_error": last_error,
        "failed_at": None if failed_at is None else instant(failed_at),
        "failure_kind": kind,
        "history": history_of(history) if history else (),
        "speculates_on": speculates_on,
        "avoid": _avoid_of(avoid_worker),
    }


class Granted(msgspec.Struct, frozen=True):
    """What the jobs of one claim have in common."""

    token: str
    worker: str
    at: datetime
    expires_at: datetime
    fence: int


def granted(token: str, worker: str, at: datetime, lease_for: timedelta) -> Granted:
    return Granted(token, worker, at, at + lease_for, max(1, micros(at)))


_RUNNING = JobState.RUNNING

# ------------------------------------------------------------------ values


def span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)


def span_us(value: timedelta | None) -> int | None:
    return None if value is None else span_micros(value)


def headers_text(headers: dict[str, str]) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def progress_of(text: str | None) -> Progress | None:
    return None if text is None else Progress(*msgspec.json.decode(text))


def avoid_text(avoid: Avoid | None) -> str | None:
    """Which workers may not run a copy, as `exchange` reads it."""
    if avoid is None or avoid.until is None:
        return None if avoid is None else avoid.worker
    return "\n".join((avoid.worker, str(micros(avoid.until)), *avoid.others, ""))


def _avoid_of(text: str | None) -> Avoid | None:
    if text is None:
        return None
    worker, *rest = text.split("\n")
    return Avoid(worker, instant(int(rest[0])), tuple(rest[1:-1])) if rest else Avoid(worker)


def progress_text(progress: Progress | None) -> str | None:
    return None if progress is None else msgspec.json.encode((progress.fraction, progress.text)).decode()


def history_of(entries: Sequence[Any]) -> tuple[AttemptRecord, ...]:
    return tuple(
        AttemptRecord(fence, worker, instant(started), instant(ended), outcome, error)
        for fence, worker, started, ended, outcome, error in entries
    )


def history_text(history: tuple[AttemptRecord, ...]) -> str | None:
    if not history:
        return None
    entries = [
        (a.fence, a.worker_id, micros(a.started_at), micros(a.ended_at), a.outcome, a.error) for a in history
    ]
    return msgspec.json.encode(entries).decode()


_SIGNS = {True: "1", False: "0", None: "-"}
_RUN_AT_SIGNS = {True: "1", False: "0", "if_later": "L", "if_earlier": "E"}
_RUN_AT_RULES: dict[str, RunAtRule] = {"1": True, "0": False, "L": "if_later", "E": "if_earlier"}


def flags_of(update: Update | None) -> str | None:
    """The flags of an update as four signs; see enqueue in the migrations."""
    if update is None:
        return None
    return (
        _SIGNS[update.data]
        + _RUN_AT_SIGNS[update.run_at]
        + _SIGNS[update.retry]
        + _SIGNS[update.reset_counts]
    )


def update_of(flags: str | None) -> Update | None:
    if flags is None:
        return None
    data, run_at, retry, reset = tuple(flags)
    return Update(
        data=data == "1",
        run_at=_RUN_AT_RULES[run_at],
        retry=retry == "1",
        reset_counts=None if reset == "-" else reset == "1",
    )
