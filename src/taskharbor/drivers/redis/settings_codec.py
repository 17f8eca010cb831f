"""Queue settings as bytes that Lua reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from taskharbor.model.clock import span_micros
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules, Retention
from taskharbor.model.state import JobState


def rules_bytes(rules: QueueRules) -> bytes:
    """Encode settings for Lua, where a retention of None (for ever) is −1."""
    kept = rules.retention
    return msgspec.msgpack.encode(
        (
            rules.paused,
            rules.max_running,
            None if rules.enqueue_rate is None else (rules.enqueue_rate.count, rules.enqueue_rate.per_us),
            None if rules.execute_rate is None else (rules.execute_rate.count, rules.execute_rate.per_us),
            rules.fail_queue,
            None if kept is None else [_kept_us(kept, state) for state in _ENDS],
        )
    )


_ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


def _kept_us(kept: Retention, state: JobState) -> int:
    keep = kept.of(state)
    return -1 if keep is None else span_micros(keep)


def rules_in(packed: bytes | None) -> QueueRules:
    if packed is None:
        return QueueRules()
    paused, max_running, enqueue, execute, fail_queue, kept = msgspec.msgpack.decode(packed)

    def rate(parts: Sequence[int] | None) -> RateLimit | None:
        return None if parts is None else RateLimit(parts[0], timedelta(microseconds=parts[1]))

    def keep(us: int) -> timedelta | None:
        return None if us < 0 else timedelta(microseconds=us)

    return QueueRules(
        paused=paused,
        max_running=max_running,
        enqueue_rate=rate(enqueue),
        execute_rate=rate(execute),
        fail_queue=fail_queue,
        retention=None
        if kept is None
        else Retention(completed=keep(kept[0]), failed=keep(kept[1]), cancelled=keep(kept[2])),
    )
