"""One step: what a verb needs while it runs inside a transaction, and the statements it executes."""

from __future__ import annotations

import re
import sqlite3
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.sqlfiles import SqlBlocks
from taskharbor.drivers.sqlite.faults import translation
from taskharbor.drivers.sqlite.row_buffer import SIZED, RowBuffer
from taskharbor.drivers.sqlite.wakeups import Notices
from taskharbor.errors import DriverMisbehaved, TaskHarborError
from taskharbor.model.clock import micros
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import (
    DEFAULT_RETENTION,
    EVERY_QUEUE,
    NO_RULES,
    QueueRules,
    QueueSettings,
    Retention,
    retention_of,
    rules_of,
)
from taskharbor.model.state import JobState

T = TypeVar("T")

settings_decoder = msgspec.json.Decoder(QueueSettings)

BLOCK_BITS = 10
"""Jobs are counted per 1024 seqs: few enough rows to sum, small enough blocks to search."""

PLACES = ("scheduled", "ready", "blocked", "running", "completed", "failed", "cancelled")
_INDEX = {JobState(name): index for index, name in enumerate(PLACES)}


_FILES = SqlBlocks("taskharbor.drivers.sqlite")
_TABLE = re.compile(r"\bth_")
_NAMED = re.compile(r"\bth_(\w+)")

# How many jobs go into one statement. Each statement is one hand-over of the interpreter, each size one
# statement to prepare; a batch is cut into the largest that fit.
SIZES = (500, 100, 10, 1)
_SIZED = ("enqueue_find_idempotency", *SIZED)
SHARED = ("queue", "type", "lane", "priority", "options", "run_at", "key", "idempotency_key")
"""The columns of a body that jobs of one call may share."""

_MOST_MERGED = 100  # parts of one compound select: SQLite allows 500

# Statements with a gap, by the name that fills it.
_PARTS = ("family_ties", "family_tables", "reserve_may_run")  # of statements
_WHOLE = {"payload": "j.payload", "result": "r.result", "ties": "", "tables": ""}
_BARE = _WHOLE | {"payload": "x''", "result": "null"}
_TIED = _WHOLE | {"ties": _FILES["family_ties"], "tables": "\n" + _FILES["family_tables"]}
_MAY_RUN = {"may_run": _FILES["reserve_may_run"]}
_VARIANTS = {
    "reserve_line": ("reserve_line", {"type": "{type}", **_MAY_RUN}),
    "reserve_leave": ("reserve_leave", _MAY_RUN),
    "get": ("get", {"match": "j.id", **_WHOLE}),
    "get_by_seq": ("get", {"match": "j.seq", **_WHOLE}),
    "get_tied": ("get", {"match": "j.id", **_TIED}),
    "get_by_seq_tied": ("get", {"match": "j.seq", **_TIED}),
    "look": ("get", {"match": "j.id", **_BARE}),
    "look_by_seq": ("get", {"match": "j.seq", **_BARE}),
    "family_get": ("family_get", _TIED),
    "reserve_bound": ("reserve_bound", _TIED),
    "find": ("find", {"order": "asc"}),
    "find_newest": ("find", {"order": "desc"}),
    "find_blocks": ("find_blocks", {"among": "queue = :queue and", "within": ">=", "order": "asc"}),
    "find_blocks_newest": ("find_blocks", {"among": "queue = :queue and", "within": "<=", "order": "desc"}),
    "find_blocks_anywhere": ("find_blocks", {"among": "", "within": ">=", "order": "asc"}),
    "find_ended": ("find_ended", {"upto": ">=", "beyond": ">", "order": "asc"}),
    "find_ended_newest": ("find_ended", {"upto": "<=", "beyond": "<", "order": "desc"}),
    "find_kept": ("find_kept", {"upto": ">=", "beyond": ">", "order": "asc"}),
    "find_kept_newest": ("find_kept", {"upto": "<=", "beyond": "<", "order": "desc"}),
    "find_children": ("find_children", {"order": "asc"}),
    "find_children_newest": ("find_children", {"order": "desc"}),
    "log_read": ("log_read", {"order": "asc"}),
    "log_read_newest": ("log_read", {"order": "desc"}),
    "find_blocks_newest_anywhere": ("find_blocks", {"among": "", "within": "<=", "order": "desc"}),
}


def blocks_of(seqs: Collection[int]) -> dict[int, int]:
    """How many of these lie in which block. Jobs that were enqueued together mostly share one."""
    low, high = min(seqs), max(seqs)
    if low >> BLOCK_BITS == high >> BLOCK_BITS:
        return {low >> BLOCK_BITS: len(seqs)}
    if isinstance(seqs, range):
        edges = [
            low,
            *(block << BLOCK_BITS for block in range((low >> BLOCK_BITS) + 1, (high >> BLOCK_BITS) + 1)),
            high + 1,
        ]
        return {start >> BLOCK_BITS: end - start for start, end in pairwise(edges)}
    return Counter(seq >> BLOCK_BITS for seq in seqs)


class HandleCache:
    """What a handle remembers between steps. A shortcut only: the store decides."""

    MOST_SEQS = 100_000

    def __init__(self) -> None:
        self.rules_version: int | None = None
        self.rules: dict[str, QueueRules] = {}
        self.limits_enqueues = False  # whether any of them has a rate for enqueues
        self.seq_of: dict[str, int] = {}  # jobs that were handed out here
        self.flags_of: dict[int, int] = {}  # those of them with a key or an idempotency key

    def forget(self) -> None:
        """After a step that did not happen, what was learned in it may be wrong."""
        self.rules_version = None
        self.forget_jobs()

    def forget_jobs(self) -> None:
        self.seq_of.clear()
        self.flags_of.clear()


ALIASES, IDEMPOTENCY, COPIES = range(3)
"""What few stores have, so that steps need not look for it."""


class QueueLook(NamedTuple):
    """What a claim must do first."""

    is_expired: bool  # a lease of the queue
    is_due: bool  # a job of the queue
    has_copies: bool  # that wait in the queue
    is_owed: bool  # a consequence in any queue; or a deadline has passed


class Step:
    """A verb at work: one transaction, one `now`."""

    __slots__ = (
        "_counts",
        "_execute",
        "_issued",
        "_next_seq",
        "_rows",
        "_rules_version",
        "_signs",
        "cache",
        "connection",
        "has_timed",
        "made_ready",
        "notices",
        "now",
        "sql",
        "us",
    )

    def __init__(
        self,
        connection: sqlite3.Connection,
        sql: Statements,
        cache: HandleCache,
        now: datetime,
        notices: Notices,
    ) -> None:
        self.connection = connection
        self.sql = sql
        self.cache = cache
        self.now = now
        self.us = micros(now)
        self.notices = notices
        self._execute = connection.execute
        self._rows: RowBuffer | None = None  # made with the first row: most steps have none
        self._counts: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0] * len(PLACES))
        self.has_timed = False  # whether a job with a run_at became ready
        self.made_ready: dict[int, JobRecord] = {}  # jobs as this step has stored them last, by seq
        self._next_seq = 0
        self._issued = 0  # as stored: seqs below it are issued
        self._rules_version: int | None = None
        self._signs = [True, True, True]  # of aliases, idempotency keys and copies: whether there may be any

    # ------------------------------------------------------------------ statements

    def execute(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        if self._rows:
            self._rows.write_for(name)
        return self._execute(self.sql[name], values)

    def fetch_one(self, name: str, /, **values: Any) -> Any:
        """The only row, or None."""
        return self.execute(name, **values).fetchone()

    def fetch_stored(self, name: str, /, **values: Any) -> Any:
        """The same, without the rows of this step that are not written yet."""
        return self._execute(self.sql[name], values).fetchone()

    def fetch_all(self, name: str, /, **values: Any) -> list[Any]:
        return self.execute(name, **values).fetchall()

    def fetch_pick(self, types: int, /, **values: Any) -> Any:
        """What `reserve_pick` finds for so many types."""
        self.write_rows()
        return self._execute(self.sql.pick(types), values).fetchone()

    def execute_rows(
        self, name: str, width: int, values: list[Any], shared: Sequence[Any] = ()
    ) -> list[sqlite3.Cursor]:
        """A statement with a row of `width` values per job, behind what they share; in a few calls."""
        if self._rows:
            self._rows.write_for(name)
        return self._in_parts(lambda size: self.sql.sized(name, size), width, values, shared)

    def execute_row(self, name: str, row: Sequence[Any]) -> None:
        """The same for one job."""
        self._execute(self.sql[name], row)

    def execute_bodies(self, own: int, values: list[Any], shared: Sequence[Any]) -> None:
        """`enqueue_bodies` for jobs that differ in the columns of these bits of SHARED."""
        self._in_parts(lambda size: self.sql.bodies(own, size), 3 + own.bit_count(), values, shared)

    def _in_parts(
        self, text: Callable[[int], str], width: int, values: list[Any], shared: Sequence[Any]
    ) -> list[sqlite3.Cursor]:
        cursors = []
        start, end = 0, len(values)
        for size in SIZES:
            part = width * size
            while end - start >= part:
                cursors.append(self._execute(text(size), [*shared, *values[start : start + part]]))
                start += part
        return cursors

    # ------------------------------------------------------------------ rows that wait

    def add_row(self, name: str, *row: Any) -> None:
        """Have one row written, at the latest when another statement needs its table (row_buffer.py)."""
        if self._rows is None:
            self._rows = RowBuffer(self)
        self._rows.add(name, row)

    def waiting_rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows that wait for one statement, to be changed in place."""
        return self._rows.of(name) if self._rows else []

    def write_rows(self) -> None:
        """Write all rows that wait: before a savepoint, and at the end."""
        if self._rows:
            self._rows.write()

    def attempt(self, part: Callable[[], T], path: str) -> tuple[T | None, TaskHarborError | None]:
        """A part of the step that may fail alone: what came before it stays, and it leaves nothing behind."""
        before = {place: counts.copy() for place, counts in self._counts.items()}, self.has_timed
        self.write_rows()
        next_seq = self._next_seq
        self._execute("savepoint part")
        try:
            answer = part()
            self.write_rows()
        except Exception as error:
            if not self.connection.in_transaction:
                raise
            if self._rows:
                self._rows.clear()
            self._counts.clear()
            self._counts.update(before[0])
            self.has_timed = before[1]
            self._next_seq = next_seq
            self._execute("rollback to part")
            self._execute("release part")
            return None, _ours(error, path)
        self._execute("release part")
        return answer, None

    def leave_claim(self, no: int, count: int) -> None:
        """So many jobs fewer run under a claim; one without jobs is dropped."""
        if not self.execute("claim_leave", no=no, count=count).rowcount:
            self.execute("claim_empty", no=no)

    # ------------------------------------------------------------------ order and rules

    def begin(self) -> None:
        """What every step that writes does first: look around, and line up jobs that came one by one."""
        self._look_around()
        first, last = self._issued, self._next_seq - 1
        if last >= first:
            bounds = {"first": first, "last": last}
            for queue, block, count in self.fetch_all("step_arrived", **bounds):
                self.count_block(queue, block, JobState.READY, +count)
            self.execute("enqueue_waiting", now=self.us, hidden=None, **bounds)

    def _look_around(self) -> None:
        self._issued, self._next_seq, self._rules_version, *self._signs = self.fetch_one("step_begin")

    @property
    def rules(self) -> dict[str, QueueRules]:
        """The rules of every queue that has some; read again only after a change."""
        if self._rules_version is None:
            self._look_around()
        cache, version = self.cache, self._rules_version
        if cache.rules_version != version:
            cache.rules = {
                name: rules_of(settings_decoder.decode(text)) for name, text in self.fetch_all("settings_all")
            }
            cache.limits_enqueues = any(known.enqueue_rate is not None for known in cache.rules.values())
            cache.rules_version = version
        return cache.rules

    def rules_of(self, queue: str) -> QueueRules:
        return self.rules.get(queue, NO_RULES)

    def retention_of(self, queue: str) -> Retention:
        if not self.rules:
            return DEFAULT_RETENTION
        return retention_of(self.rules_of(queue), self.rules_of(EVERY_QUEUE))

    def has(self, sign: int) -> bool:
        """Whether the store may have any ALIASES, IDEMPOTENCY keys or COPIES."""
        return bool(self._signs[sign])

    def add_sign(self, sign: int) -> None:
        """This step has stored one."""
        self._signs[sign] = True

    def look(self, queue: str) -> QueueLook:
        return QueueLook._make(self.fetch_one("reserve_look", queue=queue, now=self.us))

    def take_seqs(self, count: int) -> int:
        """The first of `count` seqs that were never issued before."""
        first = self._next_seq
        self._next_seq += count
        return first

    def return_seqs(self, first: int) -> None:
        """No job has taken the seqs from this one on."""
        self._next_seq = first

    # ------------------------------------------------------------------ counting

    def count(self, queue: str, seq: int, state: JobState, by: int) -> None:
        self._counts[queue, seq >> BLOCK_BITS][_INDEX[state]] += by

    def count_block(self, queue: str, block: int, state: JobState, by: int) -> None:
        self._counts[queue, block][_INDEX[state]] += by

    def count_seqs(self, queue: str, seqs: Collection[int], state: JobState, by: int = 1) -> None:
        for block, count in blocks_of(seqs).items() if seqs else ():
            self._counts[queue, block][_INDEX[state]] += by * count

    def count_record(self, job: JobRecord, state: JobState, by: int) -> None:
        """Copies are not listed and not counted."""
        if job.speculates_on is None:
            self.count(job.queue, job.seq, state, by)

    def finish(self) -> None:
        """Write what was collected. Part of the step: before its commit, or it did not happen."""
        self.write_rows()
        if self._next_seq > self._issued:
            self.execute("step_take_seqs", next=self._next_seq)
        if self.has_timed:
            self.execute("step_timed", now=self.us)
            self.has_timed = False
        for (queue, block), differences in self._counts.items():
            if any(differences):
                self.execute(
                    "step_count", queue=queue, block=block, **dict(zip(PLACES, differences, strict=True))
                )
                if sum(differences) < 0:
                    self.execute("step_count_clear", queue=queue, block=block)
        self._counts.clear()


def _ours(error: Exception, path: str) -> TaskHarborError:
    """Any failure, as an error that an answer can carry."""
    if isinstance(error, TaskHarborError):
        return error
    if isinstance(error, sqlite3.Error):
        return translation(error, path)
    misbehaved = DriverMisbehaved(f"the claim failed: {error!r}; the settlements before it are kept")
    misbehaved.__cause__ = error
    return misbehaved


class Handle(Driver):
    """Carries out steps: those that write in group commits, those that look beside them."""

    @abstractmethod
    async def _write(self, work: Callable[[Step], T], now: datetime | None) -> T: ...

    @abstractmethod
    async def _read(self, look: Callable[[Step], T], now: datetime | None) -> T: ...


# ------------------------------------------------------------------ statements


class Statements(dict[str, str]):
    """The statements by name, with the table names of one namespace; some also by the number of rows."""

    def __init__(self, prefix: str) -> None:
        texts = {name: _FILES[name] for name in _FILES.names() if name not in _PARTS}
        texts |= {name: texts[base].format(**gaps) for name, (base, gaps) in _VARIANTS.items()}
        super().__init__({name: in_namespace(text, prefix) for name, text in texts.items()})
        self.tables = {name: frozenset(_NAMED.findall(text)) for name, text in texts.items()}
        """The tables that each statement reads or writes, without their prefix."""
        self._sized = {name: {size: _repeated(self[name], size) for size in SIZES} for name in _SIZED}
        self._picks: dict[int, str] = {}
        self._bodies: dict[tuple[int, int], str] = {}

    def pick(self, types: int) -> str:
        """The statement `reserve_pick` for so many types. SQLite merges their lines as it reads them."""
        if types not in self._picks:
            lines = [self["reserve_line"].format(type=f":type_{number}") for number in range(types)]
            while len(lines) > _MOST_MERGED:
                starts = range(0, len(lines), _MOST_MERGED)
                parts = [_merged(lines[start : start + _MOST_MERGED]) for start in starts]
                lines = [f"select * from ({part})" for part in parts]  # noqa: S608 - our own text
            self._picks[types] = self["reserve_pick"].format(lines=_merged(lines))
        return self._picks[types]

    def bodies(self, own: int, size: int) -> str:
        """The statement `enqueue_bodies` for jobs that differ in the columns of these bits of SHARED."""
        if (own, size) not in self._bodies:
            differ = [name for place, name in enumerate(SHARED) if own >> place & 1]
            shared = [name for name in SHARED if name not in differ]
            row = _row(3 + len(differ))
            self._bodies[own, size] = self["enqueue_bodies"].format(
                shared="".join(f", {name}" for name in shared),
                own="".join(f", {name}" for name in differ),
                places="".join(f", column{place}" for place in range(4, 4 + len(differ))),
                bound=_row(2 + len(shared)),
                row=", ".join([row] * size),
            )
        return self._bodies[own, size]

    def sized(self, name: str, size: int) -> str:
        return self._sized[name][size]


def _row(width: int) -> str:
    return f"({', '.join(['?'] * width)})"


def _merged(lines: list[str]) -> str:
    return " union all ".join(lines) + " order by rank, at, seq limit :limit"


@cache
def statements_for(prefix: str) -> Statements:
    return Statements(prefix)


def in_namespace(text: str, prefix: str) -> str:
    return text if prefix == "th_" else _TABLE.sub(prefix, text)


def _repeated(text: str, size: int) -> str:
    """The statement with the last row of values written `size` times."""
    head, row, tail = re.fullmatch(r"(.*values )(\((?:\?, )*\?\))(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return head + ", ".join([row] * size) + tail
