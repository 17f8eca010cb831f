"""FamilyUnit: a unit of work that also knows the relatives of a job: the `FamiliesInStep` of this driver.

What a step needs is known only while it is decided: the children of a job that is stopped, the jobs that come
after one that has ended. A job or a page that was not read is treated as absent and noted in `missing`. The
step is then decided again with all of that read, until nothing is missing. Nothing is written before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.families import STEP_LIMIT, Owed, OwedKind
from taskharbor.drivers.messages import FamilyEnd
from taskharbor.drivers.redis.encoding import CHILD as CHILD_BIT
from taskharbor.drivers.redis.encoding import FAMILY
from taskharbor.drivers.redis.family_fields import (
    CHILD,
    DEPENDENT,
    EVENT,
    family_parts,
    note_fields,
    open_of,
    owed_bytes,
    owed_in,
    place_bytes,
    places_in,
)
from taskharbor.drivers.redis.keys import ids_in
from taskharbor.drivers.redis.snapshot import ask_for_job, packed_ids
from taskharbor.drivers.redis.unit_of_work import UnitOfWork, Writing
from taskharbor.model.clock import micros
from taskharbor.model.entropy import id_bytes
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import TERMINAL

ASK_OWED, ASK_LATE = b">w", b">t"
"""What read.lua also reads: the oldest consequences that are owed, and jobs that missed their deadline."""
PAGE = 100
"""How many relatives read.lua returns at a time."""
_OPEN = b"o"  # children that are not over: a page, without a set of its own
_SEQ = struct.Struct(">Q")


class FamilyUnit(UnitOfWork):
    """Records at one `now`, with their families."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.missing: dict[bytes, None] = {}
        """What read.lua must be asked for before this step can be decided."""
        self.to_report: list[FamilyEnd] = []
        self._ended: list[str] = []
        self._relatives: dict[bytes, dict[bytes, bool]] = {}  # by sign and id: places, and if they are there
        self._forgotten: list[bytes] = []  # jobs whose dependents need not be known any more
        self._deadlines: dict[bytes, int | None] = {}
        self._lowest_open: dict[str, int] = {}
        self._stored_owed = self._owed_in_store()
        self._own_owed: dict[int, Owed] = {}
        self._left_to_sweeps: set[int] = set()
        self._paid: list[int] = []

    # ------------------------------------------------------------------ jobs

    def get(self, job_id: str) -> JobRecord | None:
        job = super().get(job_id)
        if job is None and job_id not in self._touched and not self._snapshot.has_read(job_id):
            self.missing[ask_for_job(job_id)] = None
        return job

    def put(self, job: JobRecord) -> None:
        before = self.jobs.get(job.id)
        super().put(job)
        self._relate(before, job)

    def drop(self, job: JobRecord) -> None:
        super().drop(job)
        self._relate(job, None)
        for name in bonds_of(job).after:
            self._set_relative(DEPENDENT, name, job, is_there=False)
        self.drop_park(job)
        if family_of(job).followers:
            self._forgotten.append(DEPENDENT + id_bytes(job.id))

    def amend(self, job: JobRecord) -> None:
        self.jobs[job.id] = job
        self._touched[job.id] = None
        self._keep_lowest(job)

    def _relate(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Keep the sets of relatives and deadlines up with a record."""
        old, new = _signs(before), _signs(after)
        for job, signs, is_there in ((before, old - new, False), (after, new - old, True)):
            if job is not None and (parent := bonds_of(job).parent) is not None:
                for sign in signs:
                    self._set_relative(sign, parent, job, is_there=is_there)
        was, is_ = _live_deadline(before), _live_deadline(after)
        if was != is_ and (job := after or before) is not None:
            self._deadlines[place_bytes(job)] = None if is_ is None else micros(is_)
        if after is not None:
            self._keep_lowest(after)

    def _keep_lowest(self, job: JobRecord) -> None:
        if job.family is not None:
            self._lowest_open[job.id] = min(job.family.open, self._lowest_open.get(job.id, job.family.open))

    def _set_relative(self, sign: bytes, of: str, job: JobRecord, *, is_there: bool) -> None:
        self._relatives.setdefault(sign + id_bytes(of), {})[place_bytes(job)] = is_there

    # ------------------------------------------------------------------ ends

    def follow(self, job: JobRecord) -> None:
        self._ended.append(job.id)

    def take_ended(self) -> list[str]:
        ended, self._ended = self._ended, []
        return ended

    # ------------------------------------------------------------------ relatives

    def add_edges(self, job: JobRecord, after: Sequence[str], *, is_park: bool = False) -> None:
        for name in after:
            self._set_relative(DEPENDENT, name, job, is_there=True)
        if is_park:
            self._fields[b"P" + id_bytes(job.id)] = packed_ids(after)

    def drop_park(self, job: JobRecord) -> None:
        names = self.parked_for(job)
        for name in names:
            self._set_relative(DEPENDENT, name, job, is_there=False)
        if names:
            self._fields[b"P" + id_bytes(job.id)] = None

    def parked_for(self, job: JobRecord) -> Sequence[str]:
        return ids_in(self.field(b"P" + id_bytes(job.id)) or b"")

    def dependents(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        return self._records(self._places(DEPENDENT, DEPENDENT, job_id, cursor), limit)

    def open_children(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        """Some may be over: a page without open children ends with the last one that was looked at."""
        return self._records(self._places(_OPEN, CHILD, job_id, cursor), limit)

    def open_events(self, job_id: str, limit: int) -> list[JobRecord]:
        return self._records(self._places(EVENT, EVENT, job_id, 0), limit)

    def children(self, job_id: str, limit: int) -> list[JobRecord]:
        """The first children of a job, over or not."""
        return self._records(self._places(CHILD, CHILD, job_id, 0), limit)

    def has_children(self, job_id: str) -> bool:
        job = self.jobs.get(job_id) or self._before.get(job_id)
        if job is not None and not family_of(job).total:
            return False
        packed = id_bytes(job_id)
        if self._relatives.get(CHILD + packed):  # children came or went in this step
            return next(self._places(CHILD, CHILD, job_id, 0), None) is not None
        stored = self._snapshot.fields.get(b">e" + packed)
        if stored is None:
            self.missing[b">e" + packed] = None
        return bool(stored)

    def _records(self, places: Iterator[tuple[int, str]], limit: int) -> list[JobRecord]:
        found: list[JobRecord] = []
        for _, job_id in places:
            if (job := self.get(job_id)) is not None:
                found.append(job)
                if len(found) == limit:
                    break
        return found

    def _places(self, page: bytes, sign: bytes, of: str, cursor: int) -> Iterator[tuple[int, str]]:
        """Seq and id of relatives behind a seq, in that order, with the changes of this step."""
        changes = self._relatives.get(sign + id_bytes(of), {})
        while True:
            stored = self._stored_page(page, of, cursor)
            places = [stored[at : at + 24] for at in range(0, len(stored), 24)]
            is_last = len(places) < PAGE
            start, end = _SEQ.pack(cursor + 1), None if is_last else places[-1]
            there = {place for place in places if changes.get(place, True)}
            there |= {
                place
                for place, is_there in changes.items()
                if is_there and place >= start and (end is None or place <= end)
            }
            yield from places_in(b"".join(sorted(there)))
            if end is None:
                return
            cursor = places_in(end)[0][0]

    def _stored_page(self, page: bytes, of: str, cursor: int) -> bytes:
        packed = id_bytes(of)
        if self._snapshot.has_read(of) and b"h" + packed not in self._snapshot.fields:
            return b""  # a job of this step
        ask = b">" + page + packed + _SEQ.pack(cursor)
        stored = self._snapshot.fields.get(ask)
        if stored is None:
            self.missing[ask] = None
        return stored or b""

    # ------------------------------------------------------------------ deadlines and what is owed

    def past_deadline(self, limit: int) -> list[JobRecord]:
        late = self._snapshot.fields.get(ASK_LATE)
        if late is None:
            self.missing[ASK_LATE] = None
        jobs: list[JobRecord] = []
        for seq, job_id in places_in(late or b""):
            job = self.get(job_id)
            if job is not None and _live_deadline(job) is not None:
                jobs.append(job)
            else:  # its record is lost: the entry must not hold up every claim from now on
                self._deadlines[_SEQ.pack(seq) + id_bytes(job_id)] = None
        return jobs[:limit]

    def owe(self, kind: OwedKind, job_id: str) -> None:
        """A large stop is not begun in this step: stop.lua is faster at it."""
        no = -1 - len(self._own_owed)
        self._own_owed[no] = Owed(no, kind, job_id)
        if kind == "stop" and open_of(self.jobs.get(job_id)) > STEP_LIMIT:
            self._left_to_sweeps.add(no)

    def next_owed(self) -> Owed | None:
        """Of what was stored before, only a sweep knows: other steps carry out what they owe themselves."""
        for no, owed in self._stored_owed.items():
            self.field(b"w" + _SEQ.pack(no))
            return owed
        mine = (owed for no, owed in self._own_owed.items() if no not in self._left_to_sweeps)
        return next((owed for owed in mine if owed.cursor >= 0), None)

    def owe_rest(self, owed: Owed, cursor: int | None) -> None:
        if owed.no in self._own_owed:
            # A number is not used again in this step, so what is done stays, marked by its cursor.
            self._own_owed[owed.no] = owed._replace(cursor=-1 if cursor is None else cursor)
        elif cursor is None:
            del self._stored_owed[owed.no]
            self._paid.append(owed.no)
        else:
            self._stored_owed[owed.no] = owed._replace(cursor=cursor)
            self._fields[b"w" + _SEQ.pack(owed.no)] = owed_bytes(self._stored_owed[owed.no])

    def _owed_in_store(self) -> dict[int, Owed]:
        fields = self._snapshot.fields
        numbers = _SEQ.iter_unpack(fields.get(ASK_OWED, b""))
        return {
            no: owed_in(no, packed)
            for (no,) in numbers
            if (packed := fields.get(b"w" + _SEQ.pack(no))) is not None
        }

    # ------------------------------------------------------------------ the call of commit.lua

    @property
    def is_unchanged(self) -> bool:
        return super().is_unchanged and not (self._paid or self._relatives or self._deadlines)

    def write_more(self, writing: Writing) -> None:
        for job_id in self._touched:
            self._write_family(writing, job_id)
        for prefix, places in self._relatives.items():
            for place, is_there in places.items():
                if is_there:
                    writing.add("ZADD", self._keys.relatives, 0, prefix + place)
                else:
                    writing.add("ZREM", self._keys.relatives, prefix + place)
        for prefix in self._forgotten:
            writing.add("ZREMRANGEBYLEX", self._keys.relatives, b"[" + prefix, b"(" + prefix + b"\xff" * 24)
        for place, at in self._deadlines.items():
            if at is None:
                writing.add("ZREM", self._keys.deadlines, place)
            else:
                writing.add("ZADD", self._keys.deadlines, at, place)
        left = [owed for owed in self._own_owed.values() if owed.cursor >= 0]
        for owed in left:
            writing.add("OWE", self._keys.owed, owed_bytes(owed))
        for no in self._paid:
            writing.add("PAID", self._keys.owed, _SEQ.pack(no))
        if left or self._paid or self._deadlines:
            writing.add("DUE", self._keys.owed, writing.number(self._keys.deadlines))

    def _write_family(self, writing: Writing, job_id: str) -> None:
        before, after = self._before.get(job_id), self.jobs.get(job_id)
        packed = id_bytes(job_id)
        if after is not None:
            if change := open_of(after) - open_of(before):
                writing.add("HINCRBY", self._keys.data, b"O" + packed, change)
            known = 0 if before is None else len(before.notes)
            for name, value in note_fields(packed, after.notes, known).items():
                writing.set_field(name, value)
        elif before is not None and self._has_fields(packed):
            for prefix in (b"B", b"f", b"O", b"P"):
                writing.set_field(prefix + packed, None)
            writing.add("UNNOTE", self._keys.data, packed)

    def _is_of_family(self, packed: bytes) -> bool:
        head = self._snapshot.fields.get(b"h" + packed)
        return head is not None and bool(head[0] & (CHILD_BIT | FAMILY))

    def _has_fields(self, packed: bytes) -> bool:
        head = self._snapshot.fields.get(b"h" + packed)
        return head is not None and bool(head[0] & FAMILY)

    def guarded_names(self) -> set[bytes]:
        """Relatives that were read and not looked at may change meanwhile."""
        names = super().guarded_names()
        unused = {
            name for name in names - self._looked_at if name[:1] == b"h" and self._is_of_family(name[1:])
        }
        looked_at = {name for name in self._looked_at if name[:1] == b"h" and self._is_of_family(name[1:])}
        return (names - unused) | {b"f" + name[1:] for name in looked_at}

    def more_guards(self, number: Callable[[str], int]) -> list[Any]:
        """Counts of open children may change, as long as none that was decided upon becomes zero."""
        guards: list[Any] = []
        data = number(self._keys.data)
        for job_id, job in self._before.items():
            packed = id_bytes(job_id)
            if job is None or job.family is None or b"h" + packed not in self._looked_at:
                continue
            seen = open_of(job)
            lowest = min(seen, self._lowest_open.get(job_id, seen))
            if lowest > 0:
                guards += [data, b"O" + packed, b"m%d" % (lowest - seen)]
            else:
                stored = self._snapshot.fields.get(b"O" + packed)
                guards += [data, b"O" + packed, b"" if stored is None else b"v" + stored]
        return guards

    def parts_of(self, job: JobRecord | None) -> dict[bytes, bytes | None]:
        parts = super().parts_of(job)
        return parts if job is None else parts | family_parts(job)


def _signs(job: JobRecord | None) -> set[bytes]:
    """What a job is to its parent."""
    bonds = None if job is None else job.bonds
    if job is None or bonds is None or bonds.parent is None:
        return set()
    is_event = bonds.optional and bonds.done_by == "call" and job.state not in TERMINAL
    return {CHILD, EVENT} if is_event else {CHILD}


def _live_deadline(job: JobRecord | None) -> datetime | None:
    """When a job that is not over, and not stopped already, must be over."""
    if job is None or job.bonds is None or job.state in TERMINAL or family_of(job).stopping is not None:
        return None
    return job.bonds.deadline
