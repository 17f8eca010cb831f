"""Settlements other than acks, as exchange_settle.lua takes them: what `settled` decides, made ready."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.redis.encoding import head_fields, token_bytes
from taskharbor.model.clock import instant, micros, span_micros
from taskharbor.model.job import JobRecord, Lease
from taskharbor.model.settlement import Fail, Release, Retry
from taskharbor.model.state import JobState
from taskharbor.model.transitions import settled, starting_at

Other = Retry | Fail | Release
_encode = msgspec.msgpack.Encoder().encode


_START = instant(0)
_RUNNING = JobRecord(
    id="",
    seq=0,
    type="",
    queue="",
    state=JobState.RUNNING,
    payload=b"",
    created_at=_START,
    updated_at=_START,
    token="",
    starts=1,
    started_at=_START,
)
"""A job of which the script reads the rest."""
_NO_LEASE = Lease("", "")


def other_arguments(item: Other, queue: int) -> tuple[Any, ...]:
    """One settlement as exchange_settle.lua takes it."""
    lease = item.lease
    state, attempts, tail, error, behind = _decided(_without_own(item))
    return (
        queue,
        token_bytes(lease.token),
        lease.worker_id or "",
        head_fields((lease.job_id,)),
        state,
        attempts,
        _when(item),
        tail,
        error,
        behind,
    )


def _without_own(item: Other) -> Other:
    """What it has in common with those of other jobs: jobs that fail mostly fail as others did."""
    if isinstance(item, Fail):
        return replace(item, lease=_NO_LEASE)
    if isinstance(item, Release):
        return Release(_NO_LEASE)
    return replace(item, lease=_NO_LEASE, delay=None, run_at=None)


@lru_cache(128)
def _decided(item: Other) -> tuple[int, int | str, bytes, bytes, bytes]:
    """What `settled` makes of any job: state, attempts, the end of its entry in the history, the rest of its
    story (story.py) up to the instant of the failure, and behind that.
    """
    after = settled(_RUNNING, item, _START)
    [attempt] = after.history
    tail = _encode(attempt.outcome) + _encode(attempt.error) + _encode(attempt.error_class)
    given = item if isinstance(item, Retry) else None
    attempts = f"+{after.attempts}" if given is None or given.attempts is None else given.attempts
    state = 4 if after.state is JobState.FAILED else 0
    if after.failed_at is None:
        return state, attempts, tail, b"", b""
    error, behind = b"\x94" + _encode(after.last_error), _encode(after.failure_kind) + b"\xc0"
    if given is None or given.failed_at is None:
        return state, attempts, tail, error, behind
    return state, attempts, tail, error + _encode(micros(after.failed_at)) + behind, b""


def _when(item: Other) -> str:
    """When the job may run again."""
    if isinstance(item, Fail):
        return ""
    if isinstance(item, Release) and item.delay is None:
        return "k"
    run_at = starting_at(item.run_at if isinstance(item, Retry) else None, item.delay, _START)
    if run_at is None:
        return ""
    is_given = isinstance(item, Retry) and item.run_at is not None
    return f"a{micros(run_at)}" if is_given else f"d{span_micros(run_at - _START)}"
