"""Queue settings as bytes that Lua reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from taskharbor.model.clock import span_micros
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules, Retention
from taskharbor.model.state import JobState

IS_PART = -1
"""In place of a number of parts: settings of a queue of another slot (cluster/queue_store.py)."""


def rules_bytes(rules: QueueRules, parts: int = 0) -> bytes:
    """Encode settings for Lua, where a retention of None (for ever) is −1.

    `parts`: on a cluster, in how many other slots this queue has jobs.
    """
    kept = rules.retention
    more = (parts,) if parts else ()
    return msgspec.msgpack.encode(
        (
            rules.paused,
            rules.max_running,
            None if rules.enqueue_rate is None else (rules.enqueue_rate.count, rules.enqueue_rate.per_us),
            None if rules.execute_rate is None else (rules.execute_rate.count, rules.execute_rate.per_us),
            rules.fail_queue,
            None if kept is None else [_kept_us(kept, state) for state in _ENDS],
            *more,
        )
    )


_ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


def _kept_us(kept: Retention, state: JobState) -> int:
    keep = kept.of(state)
    return -1 if keep is None else span_micros(keep)


def rules_in(packed: bytes | None) -> QueueRules:
    if packed is None:
        return QueueRules()
    paused, max_running, enqueue, execute, fail_queue, kept, *_ = msgspec.msgpack.decode(packed)

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


def parts_in(packed: bytes | None) -> int:
    """The number of parts that `rules_bytes` was given."""
    more = () if packed is None else msgspec.msgpack.decode(packed)[6:]
    return int(more[0]) if more else 0
