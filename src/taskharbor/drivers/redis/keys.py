"""Every key, and every member of the sorted sets, named once; docs/reference/redis-keys.md describes them.

The part in braces is the hash tag: keys with the same tag share a cluster slot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import datetime
from functools import cache, lru_cache
from typing import NamedTuple

from taskharbor.model.clock import micros
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_ORDER = struct.Struct(">BQQ")
_SEQ = struct.Struct(">Q")


class QueueKeys(NamedTuple):
    """The keys of one queue."""

    list: str
    ready: str
    later: str
    leases: str
    done: str
    wake: str
    enqueue_rate: str
    execute_rate: str
    copies: str


class Keys:
    """The keys of one harbor."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        prefix = f"{{{namespace}}}"
        self.data = f"{prefix}:data"
        self.queues = f"{prefix}:queues"
        self.configured = f"{prefix}:configured"
        self.enqueue_rate = f"{prefix}:rate:enqueue"
        self.execute_rate = f"{prefix}:rate:execute"
        self.idempotency_ends = f"{prefix}:idempotency"
        self.workers = f"{prefix}:workers"
        self.types = f"{prefix}:types"
        self.roles = f"{prefix}:roles"
        self.schedules = f"{prefix}:schedules"
        self.outbox = f"{prefix}:outbox"
        self.lock = f"{prefix}:lock"
        self.parts = f"{prefix}:parts"
        self.log_ends = f"{prefix}:log"
        self.relatives = f"{prefix}:relatives"
        self.deadlines = f"{prefix}:deadlines"
        self.owed = f"{prefix}:owed"
        self.look_from = f"{prefix}:look-from"
        self._prefix = prefix
        self.queue = cache(self._queue)
        """The keys of one queue, by its name."""

    def for_promote(self, queues: Iterable[str]) -> list[str]:
        """The keys of promote.lua."""
        keys = [self.data]
        for queue in queues:
            own = self.queue(queue)
            keys += (own.later, own.ready, own.wake)
        return keys

    def log_instants(self, book: str) -> str:
        """The instants of a book with a cell."""
        return f"{self.log_ends}:{book}"

    def log_cells(self, book: str, at: int) -> str:
        """The cells of one instant of a book."""
        return f"{self.log_ends}:{book}:{at}"

    def worker_rate(self, worker_id: str) -> str:
        return f"{self._prefix}:rate:worker:{worker_id}"

    def inbox(self, name: str) -> str:
        """The list that one worker or listening handle reads."""
        return f"{self._prefix}:inbox:{name}"

    def _queue(self, name: str) -> QueueKeys:
        return QueueKeys(*(f"{self._tag(name)}:{part}" for part in _PARTS))

    def _tag(self, queue: str) -> str:
        return f"{{{self.namespace}}}:q:{queue}"


_PARTS = (
    "list",
    "ready",
    "later",
    "leases",
    "done",
    "wake",
    "rate:enqueue",
    "rate:execute",
    "copies",
)

# ------------------------------------------------------------------ members


def ids_in(packed: bytes) -> list[str]:
    return [id_text(packed[at : at + 16]) for at in range(0, len(packed), 16)]


SECTIONS = {
    JobState.READY: 0,
    JobState.SCHEDULED: 0,
    JobState.RUNNING: 0,
    JobState.BLOCKED: 1,
    JobState.COMPLETED: 2,
    JobState.FAILED: 3,
    JobState.CANCELLED: 4,
}
"""The section of `list` that holds a job: waiting and running jobs share one."""
_SECTION = 2**50
_END_SIGNS = {JobState.COMPLETED: b"c", JobState.FAILED: b"f", JobState.CANCELLED: b"x"}


@lru_cache(maxsize=1024)
def line_of(requires: str, type_: str) -> bytes:
    """The line of a ready job: its lane and its type."""
    return f"{requires}\0{type_}\0".encode()


def rank_of(priority: int) -> int:
    return 100 - priority


def entry_of(job: JobRecord) -> bytes:
    """A waiting job's member in `ready` and `later`: line, claim order, id."""
    order = _ORDER.pack(rank_of(job.priority), micros(job.eligible_at), job.seq)
    return line_of(job.requires, job.type) + order + id_bytes(job.id)


def place_of(job: JobRecord) -> bytes:
    """A job's member in `list`, `leases` and `done`: the name of its head."""
    return b"h" + id_bytes(job.id)


def list_score(job: JobRecord) -> int:
    """Section and seq in one number that a double holds exactly."""
    return SECTIONS[job.state] * _SECTION + job.seq


def done_as(job: JobRecord) -> bytes:
    """A finished job's member in `done`, ordered by when it finished.

    The sign of a child is a capital: prune does not look at it, for it goes with its root.
    """
    sign = _END_SIGNS[job.state]
    if job.bonds is not None and job.bonds.parent is not None:
        sign = sign.upper()
    return sign + packed_us(job.finished_at) + place_of(job)


def is_of_child(member: bytes) -> bool:
    """Whether a member of `done` is of a child, which prune never drops."""
    return member[:1].isupper()


def packed_us(at: datetime | None) -> bytes:
    return _SEQ.pack(0 if at is None else micros(at))
