"""Row ↔ JobRecord, and lease tokens.

The token of a job with a key ends with a mark, so that a settlement shows without a look-up whether a key
must be locked. The store keeps the bare 128 bits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.model.bonds import Bonds, Family
from taskharbor.model.clock import instant, micros, span_micros
from taskharbor.model.job import NO_TIME, AttemptRecord, Avoid, JobRecord, Note, Progress, RunAtRule, Update
from taskharbor.model.state import JobState

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
"""In answers and questions. The store keeps 0 for both kinds of waiting: `eligible_at` decides."""
IS_KEYED, IS_REMEMBERED, IS_COPY, HAD_COPY, RUN_HAD_COPY = 1, 2, 4, 8, 16  # link_flags
IS_RELATED, IS_CHILD = 32, 64  # it has a row in `family`; it has a parent and needs none

COLUMNS = """
    s.id::text, s.seq, j.type, s.queue, s.state, j.payload, j.created_at, s.updated_at, s.version, s.key,
    j.idempotency_key, j.headers::text, s.rank, s.lane, case when s.is_timed then s.eligible_at end,
    j.timeout_us, s.attempts, j.max_attempts, s.stalls, j.max_stalls, s.starts, j.min_backoff_us,
    j.max_backoff_us, {token},
    s.fence, s.ends_at, s.worker, s.cancel_requested, h.last_error, h.failed_at, h.failure_kind,
    s.started_at, s.result, s.progress::text, h.history::text, s.update_flags, j.speculates_on::text,
    j.avoid_worker, j.avoid_until, j.avoid_others, s.link_flags,
    coalesce(f.bonds::text, '{"parent":"' || j.parent || '"}'),
    case when f.is_open and f.family is not null then {schema}.family_now(f.id, f.family)
         else f.family::text end,
    coalesce(f.root, j.root, j.parent)::text
"""
"""A whole record, from `job_state s`, `job j`, `job_history h` and `family f`; the order of `record_of`."""

TOKEN = "encode(uuid_send(s.token), 'hex') || case when s.key is null then '' else 'k' end"
"""The token as callers have it. Listings never show it, so they leave it unread."""

COLUMNS_WITHOUT_PAYLOAD = COLUMNS.replace("j.payload", "''::bytea").replace("s.result", "null::bytea")
"""The same for listings that show neither payload nor result: what is not asked for is not read."""

_strings = msgspec.json.Decoder(dict[str, str])
_json = msgspec.json.Decoder()
_bonds = msgspec.json.Decoder(Bonds)
_family = msgspec.json.Decoder(Family)


def record_of(row: Sequence[Any]) -> JobRecord:
    """A stored record, with its token, which must not leave the driver."""
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
        lease_expires_at=row[25] if is_running else None,
        worker_id=row[26] if is_running else None,
        cancel_requested=row[27],
        last_error=row[28],
        failed_at=row[29],
        failure_kind=row[30],
        started_at=row[31],
        finished_at=row[25] if state.is_terminal else None,
        result=row[32],
        progress=progress_of(row[33]),
        history=history_of(_json.decode(row[34])) if row[34] else (),
        update=update_of(row[35]),
        speculates_on=row[36],
        avoid=_avoid_of(*row[37:40]),
        **_relations(row[0], row[43], row[41], row[42]),
    )


def _relations(job_id: str, root: str | None, bonds: str | None, family: str | None) -> dict[str, Any]:
    """What ties a job to others, from its row in `family`."""
    if root is None:
        return {}
    return {
        "bonds": None if bonds is None else _bonds.decode(bonds),
        "family": None if family is None else _family.decode(family),
        "root": None if root == job_id else root,
    }


def notes_of(entries: Sequence[Sequence[Any]] | None) -> tuple[Note, ...]:
    return tuple(Note(name, bytes.fromhex(data), instant(at)) for name, data, at in entries or ())


def link_flags_of(row: Sequence[Any]) -> int:
    return int(row[40])


def claimed_of(row: Sequence[Any], lease: Granted) -> JobRecord:
    """A record that `exchange` handed out. Hot: what is rarely set is only looked at when it is."""
    model = lease.model
    if row[11] is not None:
        known = lease.like(row[11])
        if known is None:
            return _with_more(row, lease, _json.decode(row[11]))
        model = known
    key = row[12]
    return replace(
        model,
        id=row[0],
        seq=row[1],
        type=row[2],
        queue=row[3],
        payload=row[4],
        created_at=row[5],
        key=key,
        headers=model.headers.copy(),
        priority=-row[6],
        requires=row[7],
        run_at=row[8],
        max_attempts=row[9],
        max_stalls=row[10],
        token=lease.token if key is None else lease.marked,
    )


def _with_more(row: Sequence[Any], lease: Granted, more: list[Any]) -> JobRecord:
    """The same with what only some jobs have: rarer options, a past, an original."""
    headers, timeout, min_backoff, max_backoff, version, once, attempts, stalls, starts, fence = more[:10]
    is_cancelled, speculates_on, never, until, others, past, relations = more[10:]
    last_error, failed_at, failure_kind, history = past or (None, None, None, None)
    return replace(
        claimed_of((*row[:11], None, row[12]), lease),
        headers=headers or {},
        timeout=span(timeout) or NO_TIME,
        min_backoff=span(min_backoff),
        max_backoff=span(max_backoff),
        version=version,
        idempotency_key=None if once is None else bytes.fromhex(once),
        attempts=attempts,
        stalls=stalls,
        starts=starts,
        fence=fence,
        cancel_requested=is_cancelled,
        last_error=last_error,
        failed_at=None if failed_at is None else instant(failed_at),
        failure_kind=failure_kind,
        history=history_of(history) if history else (),
        speculates_on=speculates_on,
        avoid=_avoid_of(never, None if until is None else instant(until), others),
        **({} if relations is None else _claimed_relations(row[0], *relations)),
    )


def _claimed_relations(
    job_id: str,
    root: str,
    bonds: str | None,
    family: str | None = None,
    notes: Sequence[Any] | None = None,
) -> dict[str, Any]:
    if bonds is not None and bonds[0] != "{":  # a child and nothing else: its parent
        return {"bonds": Bonds(parent=bonds), "root": root}
    return {**_relations(job_id, root, bonds, family), "notes": notes_of(notes)}


def _avoid_of(worker: str | None, until: datetime | None, others: Sequence[str] | None) -> Avoid | None:
    return None if worker is None else Avoid(worker, until, tuple(others or ()))


class Granted(msgspec.Struct, frozen=True):
    """What the jobs of one claim have in common."""

    token: str
    marked: str  # the token of a job with a key
    model: JobRecord
    """A job on its first claim, but for what is its own. Python passes more than 15 keywords as a dict, which
    makes a whole record three times as slow as a changed copy of this one.
    """
    others: dict[str, JobRecord] = {}
    """The same for jobs with other options, and for children, by what the claim says of them."""

    def like(self, text: str) -> JobRecord | None:
        """The model of jobs of which the claim says this. None: it says more than a first claim has to."""
        model = self.others.get(text)
        if model is None and (model := _like(self.model, text)) is not None:
            self.others[text] = model
        return model


def _like(model: JobRecord, text: str) -> JobRecord | None:
    """`text`: in quotes the parent of a child that is nothing but that, and its root where that is another
    job; or a list of timeout, backoffs, headers and, of such a child, parent and root.
    """
    if text[0] == '"':
        parent, root = text[1:37], text[37:73]
        return replace(model, bonds=Bonds(parent=parent), root=root if len(text) > 38 else parent)
    if not text[1].isdigit():  # what begins with headers is a longer list
        return None
    timeout, min_backoff, max_backoff, headers, *relations = _json.decode(text)
    return replace(
        model,
        timeout=span(timeout) or NO_TIME,
        min_backoff=span(min_backoff),
        max_backoff=span(max_backoff),
        headers=headers or {},
        **({"bonds": Bonds(parent=relations[0]), "root": relations[1]} if relations else {}),
    )


def granted(token: str, worker: str, at: datetime, lease_for: timedelta) -> Granted:
    model = JobRecord(
        id="",
        seq=0,
        type="",
        queue="",
        state=JobState.RUNNING,
        payload=b"",
        created_at=at,
        updated_at=at,
        version=2,
        starts=1,
        fence=max(1, micros(at)),
        lease_expires_at=at + lease_for,
        worker_id=worker,
        started_at=at,
    )
    return Granted(token, token + MARK, model)


# ------------------------------------------------------------------ tokens

MARK = "k"
_TOKEN = re.compile(f"[0-9a-f]{{32}}{MARK}?")


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


# ------------------------------------------------------------------ values


def span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)


def span_us(value: timedelta | None) -> int | None:
    return None if value is None else span_micros(value)


def headers_text(headers: dict[str, str]) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def progress_of(text: str | None) -> Progress | None:
    return None if text is None else Progress(*msgspec.json.decode(text))


def progress_text(progress: Progress | None) -> str | None:
    return None if progress is None else msgspec.json.encode((progress.fraction, progress.text)).decode()


def history_of(entries: Sequence[Any]) -> tuple[AttemptRecord, ...]:
    return tuple(
        AttemptRecord(fence, worker, instant(started), instant(ended), *rest)
        for fence, worker, started, ended, *rest in entries  # an older entry names no class
    )


def history_text(history: tuple[AttemptRecord, ...]) -> str | None:
    if not history:
        return None
    entries = [
        (a.fence, a.worker_id, micros(a.started_at), micros(a.ended_at), a.outcome, a.error, a.error_class)
        for a in history
    ]
    return msgspec.json.encode(entries).decode()


_SIGNS = {True: "1", False: "0", None: "-"}
_RUN_AT_SIGNS = {True: "1", False: "0", "if_later": "L", "if_earlier": "E"}
_RUN_AT_RULES: dict[str, RunAtRule] = {"1": True, "0": False, "L": "if_later", "E": "if_earlier"}


def flags_of(update: Update | None) -> str | None:
    """The flags of an update as four signs; see the function enqueue."""
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
