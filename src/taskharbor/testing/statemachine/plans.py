"""What the state machine may ask for: small tables, the plainest entry first.

Hypothesis draws an index into each, which is cheap and shrinks towards the plain end.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import product
from typing import Any

from hypothesis import strategies as st

from taskharbor.drivers.messages import Claim, Query
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import Lease, NewJob, Progress, RunAtRule, Update
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
QUEUES = ("left", "right")
FAIL_QUEUE = "dead"
KEYS = (b"key", b"\x00 other")
LANES = ("any", "cpu", "gpu")
TYPES = ("mail", "report")
WORKERS = ("w1", "w2", "w3")

# ------------------------------------------------------------------ jobs

_PLACES = [
    {"queue": queue, "requires": lane, "type": kind} for kind, lane, queue in product(TYPES, LANES, QUEUES)
]
_WHENS: list[tuple[timedelta | None, timedelta | None]] = [  # run_at from now, delay
    (None, None),
    (None, None),
    (None, None),
    (None, timedelta(0)),
    (None, SECOND),
    (None, 7 * SECOND),
    (timedelta(0), None),
    (-5 * SECOND, None),
    (3 * SECOND, None),
    (30 * SECOND, None),
]
_RESTS: list[dict[str, Any]] = [
    {},
    {"priority": 5},
    {"priority": -100, "payload": b"low"},
    {"max_stalls": 1},
    {"max_stalls": 2, "max_attempts": 3, "payload": b"\x00\xff"},
    {"max_stalls": 3, "headers": {"trace": "1"}, "priority": 5},
    {"max_attempts": 1, "min_backoff": SECOND, "max_backoff": 9 * SECOND},
    {"timeout": 4 * SECOND, "headers": {"a": "ä", "b": ""}, "payload": b"{}"},
]
_RUN_AT_RULES: tuple[RunAtRule, ...] = (True, False, "if_later", "if_earlier")
_UPDATES = [
    None,
    *(
        Update(data, run_at, retry, reset)
        for reset, retry, run_at, data in product(
            (None, True, False), (True, False), _RUN_AT_RULES, (True, False)
        )
    ),
]
JobFields = dict[str, Any]


def _job_fields(
    place: JobFields, when: tuple[timedelta | None, timedelta | None], rest: JobFields
) -> JobFields:
    return place | rest | {"run_at": when[0], "delay": when[1]}


JOBS = st.builds(_job_fields, st.sampled_from(_PLACES), st.sampled_from(_WHENS), st.sampled_from(_RESTS))
KEY = st.sampled_from(KEYS)
KEYED = st.sampled_from([{"key": key, "update": update} for update, key in product(_UPDATES, KEYS)])
IDEMPOTENCY_KEYS = st.sampled_from([b"once", b"twice"])


def new_job(job_id: str, fields: JobFields, now: datetime) -> NewJob:
    """The job of a plan: its run_at counts from `now`."""
    offset = fields.get("run_at")
    run_at = None if offset is None else now + offset
    return NewJob(**fields | {"id": fields.get("id", job_id), "run_at": run_at})


# ------------------------------------------------------------------ attempts

LEASES = (5 * SECOND, SECOND, 20 * SECOND)
RATE = RateLimit(2, 4 * SECOND)
_QUEUE_LISTS = [("left",), ("left", "right"), ("right", "left"), ("left", FAIL_QUEUE, "right")]
_LANE_LISTS = [("cpu", "any", "gpu"), ("any",), ("any", "gpu"), ("gpu", "cpu", "any")]
_TYPE_LISTS = [None, None, ("mail", "taskharbor.failed"), ("report",)]


def _claim(queues: tuple[str, ...], lanes: tuple[str, ...], worker: str, rest: tuple[Any, ...]) -> Claim:
    types, lease_for, rate = rest
    return Claim(queues=queues, lanes=lanes, worker_id=worker, types=types, lease_for=lease_for, rate=rate)


CLAIMS = st.builds(
    _claim,
    st.sampled_from(_QUEUE_LISTS),
    st.sampled_from(_LANE_LISTS),
    st.sampled_from(WORKERS),
    st.sampled_from(list(product(_TYPE_LISTS, LEASES, (None, None, None, RATE)))),
)
LIMITS = st.integers(1, 4)
HEAD_STARTS = st.sampled_from(
    [None, *(HeadStart(slower=names, span=SECOND) for names in (("w1",), ("w2", "w3"), WORKERS))]
)
WHICH = st.integers(0, 7)


DEEDS = st.sampled_from(["find", "reserve", "reserve one queue", "extend", "enqueue", "hold a role"])


def wide_claim(worker: str, lease_for: timedelta, *, rate: RateLimit | None = None) -> Claim:
    """Whatever there is."""
    return Claim(
        queues=(*QUEUES, FAIL_QUEUE), lanes=LANES, worker_id=worker, limit=4, lease_for=lease_for, rate=rate
    )


PROGRESS = st.sampled_from([None, Progress(0.5, "half"), Progress(1.0)])
ENDS: dict[str, Callable[[Lease, datetime], Settlement]] = {
    "ack": lambda lease, now: Ack(lease),
    "ack with a result": lambda lease, now: Ack(lease, b"\x00done"),
    "retry": lambda lease, now: Retry(lease, None, "broke"),
    "retry later": lambda lease, now: Retry(
        lease, 2 * SECOND, "broke", "timeout", "Trace: broke", error_class="app.Broken"
    ),
    "retry at": lambda lease, now: Retry(lease, None, "", run_at=now + 3 * SECOND),
    "fail": lambda lease, now: Fail(lease, "gone"),
    "fail for good": lambda lease, now: Fail(lease, "gone", "unrecoverable", "Trace: gone", "app.Gone"),
    "stalled": lambda lease, now: Stalled(lease),
    "stalled, killed": lambda lease, now: Stalled(lease, "signal 9"),
    "cancelled": lambda lease, now: Cancelled(lease),
    "cancelled with a reason": lambda lease, now: Cancelled(lease, "not needed"),
    "release": lambda lease, now: Release(lease),
    "release later": lambda lease, now: Release(lease, 4 * SECOND),
}
END_NAMES = st.sampled_from(list(ENDS))
FINAL_END_NAMES = st.sampled_from(["ack", "fail", "cancelled"])
FORGERIES = st.sampled_from(["none"] * 8 + ["stale", "stale", "token", "worker", "unknown"])

# ------------------------------------------------------------------ control and time

_SPANS: list[dict[str, timedelta | None]] = [
    {},
    {"completed": timedelta(0)},
    {"failed": timedelta(0), "cancelled": SECOND},
    {"cancelled": timedelta(0)},
    {"completed": 2 * SECOND, "failed": 6 * SECOND, "cancelled": None},
]
_RATES = [("enqueue_rate", RateLimit(count, 10 * SECOND)) for count in (1, 2, 4)] + [
    ("execute_rate", RateLimit(count, 6 * SECOND)) for count in (1, 2, 3)
]
_RULES: list[dict[str, Any]] = [
    {"paused": False},
    {"paused": True},
    *({"max_running": most} for most in (0, 1, 2, 3)),
    *({name: rate} for name, rate in _RATES),
    {"fail_queue": FAIL_QUEUE},
    {"fail_queue": "left"},
    *({"retention": Retention(**spans)} for spans in _SPANS),
]
OPEN = {"paused": False, "max_running": None, "enqueue_rate": None, "execute_rate": None}
LEVELS = st.sampled_from(["left", "left", "right", "*"])
RATES = st.sampled_from(_RATES)
QUEUE_RULES = st.sampled_from(_RULES)
OPENINGS = st.sampled_from([OPEN, OPEN, OPEN | {"fail_queue": None, "retention": None}])
EDITS = st.sampled_from(
    [
        NO_EDIT,
        NO_EDIT,
        Edit(payload=b"edited", priority=7),
        Edit(type="report", requires="gpu", headers={}, timeout=SECOND),
        Edit(max_attempts=2, max_stalls=1, min_backoff=None, max_backoff=SECOND),
    ]
)
REQUEUE_WHENS = st.sampled_from(
    [(None, None), (None, None), (None, 5 * SECOND), (-SECOND, None), (2 * SECOND, None)]
)
SPANS = st.sampled_from(
    [MICROSECOND, SECOND / 2, SECOND, SECOND, 3 * SECOND, 6 * SECOND, 31 * SECOND, HOUR, 25 * HOUR]
)
EDGES = st.sampled_from([timedelta(0), -MICROSECOND, MICROSECOND])
QUERIES = st.sampled_from(
    [
        Query(limit=5),
        Query(limit=3, newest_first=True),
        Query(queue="left", limit=4),
        Query(queue="right", states=(JobState.READY,), limit=2),
        Query(states=(JobState.SCHEDULED, JobState.BLOCKED), limit=10),
        Query(states=(JobState.RUNNING, JobState.COMPLETED), limit=3, newest_first=True),
        Query(states=(JobState.FAILED, JobState.CANCELLED), type="mail"),
        Query(order_by="ended", limit=3),
        Query(order_by="ended", queue="left", limit=2, newest_first=True, examine=3),
        Query(key=KEYS[0], limit=2),
        Query(worker_id="w1"),
        Query(failure_kind="stalled"),
    ]
)


def settings_of(queue: str, rules: dict[str, Any]) -> QueueSettings:
    return QueueSettings(queue=queue, **rules)
