"""Jobs that belong together, inside one step (`drivers/families.py` FamiliesInStep).

The tables are drawn in sql/migrations/0003_families.sql. A plain job has no row there and costs one look at
its flags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.families import Owed, OwedKind, judge
from taskharbor.drivers.messages import FamilyEnd
from taskharbor.drivers.sqlite.records import WAITING_STATES, Records
from taskharbor.drivers.sqlite.rows import (
    CODES,
    Flags,
    Row,
    json_array,
    json_text,
    micros_or_none,
    ties_of,
)
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.bonds import NO_BONDS, Bonds, Family, is_spared
from taskharbor.model.clock import instant, micros
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord, Note
from taskharbor.model.state import TERMINAL, JobState

TIES = Flags.BOUND | Flags.CHILD
_UNWRITTEN = 0  # the number of what this step owes and has not written
_FAMILY_TABLES = ("family_drop_notes", "family_drop_bonds", "family_drop")
_COUNTS = (
    "waits_for", "total", "open", "failed", "excused", "cancelled", "is_done", "own", "stopping", "spares",
    "followers", "failures",
)  # fmt: skip
_WIDTH, _FLAGS = len(Row._fields), Row._fields.index("flags")
_counts_of = attrgetter(*_COUNTS[:-1])
_bonds_decoder = msgspec.json.Decoder(Bonds)
_failures_decoder = msgspec.json.Decoder(tuple[str, ...])


class Ties(NamedTuple):
    """What the statement `family_get` says of a job."""

    parent: str | None
    root: str | None
    bonds: str | None
    has_notes: int
    family: tuple[Any, ...]


def _ties(columns: tuple[Any, ...]) -> Ties:
    return Ties._make((*columns[:4], columns[4:]))


class FamilyRecords(Records):
    """The stored jobs with their bonds, families and notes, within one step."""

    __slots__ = ("_ended", "_is_tied", "_missing", "_owes_more", "_shows_notes", "has_families", "to_report")

    def __init__(self, step: Step, *, shows_notes: bool = True, is_tied: bool = False) -> None:
        super().__init__(step)
        self.has_families = False  # whether a job that belongs to others was read or stored
        self._shows_notes = shows_notes
        self.to_report: list[FamilyEnd] = []
        self._ended: list[str] = []
        self._is_tied = is_tied  # whether the jobs to be read are likely to belong to others
        self._missing: set[str] = set()
        self._owes_more = True  # whether there may be consequences that are stored

    # ------------------------------------------------------------------ reading

    def expect(self, ids: Sequence[str]) -> None:
        """Read the jobs of these ids at once; those without a record or an alias are known to be missing."""
        found = {job.id for job in self.by_ids(ids)}
        missing = [job_id for job_id in ids if job_id not in found]
        aliases = self._step.fetch_all("get_aliases", ids=json_array(missing)) if missing else ()
        self._missing.update(missing)
        self._missing.difference_update(job_id for job_id, _ in aliases)

    def read_again(self) -> None:
        """Forget what was read: a statement for many jobs has changed some of it."""
        self._known.clear()
        self._claims.clear()
        self._step.made_ready.clear()

    def get(self, job_id: str) -> JobRecord | None:
        return None if job_id in self._missing else super().get(job_id)

    def find(self, job_id: str) -> JobRecord | None:
        return None if job_id in self._missing else super().find(job_id)

    def _read(self, statement: str, values: Sequence[Any]) -> list[JobRecord]:
        """Ties are read with the jobs where families are likely, else only for those that have some."""
        if self._is_tied and f"{statement}_tied" in self._step.sql:
            rows = self._step.fetch_all(f"{statement}_tied", values=json_array(values))
            jobs = [self._record(Row._make(row[:_WIDTH])) for row in rows]
            ties = {row[0]: _ties(row[_WIDTH:]) for row in rows if (row[_FLAGS] or 0) & TIES}
        else:
            rows = [Row._make(row) for row in self._step.execute(statement, values=json_array(values))]
            jobs = [self._record(row) for row in rows]
            tied = [row.seq for row in rows if (row.flags or 0) & TIES]
            found = self._step.fetch_all("family_get", seqs=json_array(tied)) if tied else ()
            ties = {row[0]: _ties(row[1:]) for row in found}
        if not ties:
            return jobs
        self.has_families = self._is_tied = True
        whole = self.with_ties([job for job in jobs if job.seq in ties], ties)
        self._known.update(whole)
        return [whole.get(job.id, job) for job in jobs]

    def with_ties(self, jobs: list[JobRecord], ties: dict[int, Ties]) -> dict[str, JobRecord]:
        noted = [seq for seq, tie in ties.items() if tie.has_notes] if self._shows_notes else []
        notes = self._notes(noted) if noted else {}
        return {
            job.id: replace(
                job,
                bonds=_bonds(tie.parent, tie.bonds),
                root=tie.root,
                family=_family(tie.family),
                notes=notes.get(job.seq, ()),
            )
            for job in jobs
            for tie in (ties[job.seq],)
        }

    def _notes(self, seqs: list[int]) -> dict[int, tuple[Note, ...]]:
        notes: dict[int, list[Note]] = {}
        for seq, name, data, at in self._step.execute("note_get", seqs=json_array(seqs)):
            notes.setdefault(seq, []).append(Note(name, data, instant(at)))
        return {seq: tuple(mine) for seq, mine in notes.items()}

    def _in_order(self, statement: str, /, **values: Any) -> list[JobRecord]:
        seqs = [seq for (seq,) in self._step.fetch_all(statement, **values)]
        return self.by_seqs(seqs) if seqs else []

    # ------------------------------------------------------------------ writing

    def put(self, job: JobRecord) -> None:
        before = self._known.get(job.id)
        if before is not None and before.state in TERMINAL and ties_of(before):
            self._leave_kept(before)
        super().put(job)
        self._missing.discard(job.id)
        if job.state is JobState.READY:
            self._step.made_ready[job.seq] = job
        if ties_of(job):
            self.has_families = True
            self._put_ties(before, job)

    def _put_ties(self, before: JobRecord | None, job: JobRecord) -> None:
        if job.bonds is not None and (before is None or _bond_of(before) != _bond_of(job)):
            self._put_bonds(job, job.bonds)
        if job.family is not None and (before is None or before.family != job.family):
            self._put_family(job, job.family)
        known = 0 if before is None else len(before.notes)
        for no, note in enumerate(job.notes[known:], known):
            at = micros(note.at or self.now)
            self._step.add_row("note_add", job.seq, no, note.name, at, note.data)

    def _put_bonds(self, job: JobRecord, bonds: Bonds) -> None:
        self._step.add_row(
            "family_put_bond",
            job.seq,
            self._seq_of(bonds.parent),
            self._seq_of(job.root),
            json_text(replace(bonds, parent=None)),
            is_spared(bonds),
            bonds.optional and bonds.done_by == "call",
            _live_deadline(job),
        )

    def _put_family(self, job: JobRecord, family: Family) -> None:
        failures = json_array(family.failures) if family.failures else None
        self._step.add_row("family_put", job.seq, *_counts_of(family), failures)

    def _seq_of(self, job_id: str | None) -> int | None:
        job = None if job_id is None else self.get(job_id)
        return None if job is None else job.seq

    def amend(self, job: JobRecord) -> None:
        if ties_of(self._known[job.id]) != Flags.BOUND:
            self._bind(job)
        self._put_family(job, family_of(job))
        self._known[job.id] = job
        self._step.made_ready.pop(job.seq, None)

    def _bind(self, job: JobRecord) -> None:
        """Mark a job that was plain, or only a child: its ack by sets would end no more than itself."""
        step = self._step
        self.has_families = True
        if not step.execute("family_bind", seq=job.seq).rowcount:
            self.put_state(job, has_past=False)
        if job.state in WAITING_STATES:
            place = {"queue": job.queue, "at": micros(job.eligible_at), "seq": job.seq}
            lane = {"lane": job.requires, "type": job.type, "rank": -job.priority}
            if not step.execute("family_bind_waiting", **lane, **place).rowcount:
                step.execute("family_bind_waiting", lane="", type="", rank=0, **place)
        if job.id in self._claims:
            no, extensions, flags = self._claims[job.id]
            self._claims[job.id] = no, extensions, flags & ~Flags.CHILD | Flags.BOUND

    def drop(self, job: JobRecord) -> None:
        stored = self._known.get(job.id, job)
        super().drop(job)
        if ties_of(stored):
            self._forget_ties(stored)

    def _forget_ties(self, job: JobRecord) -> None:
        step = self._step
        self._leave_kept(job)
        step.execute("edge_drop_dependents", seq=job.seq)
        step.execute("edge_drop_park", dependent=job.seq)
        if after := bonds_of(job).after:
            step.execute("edge_drop", dependent=job.seq, after=json_array(after))
        for name in _FAMILY_TABLES:
            step.execute(name, seqs=json_array([job.seq]))

    def _leave_kept(self, job: JobRecord) -> None:
        place = {"queue": job.queue, "state": CODES[job.state], "at": micros(job.updated_at)}
        self._step.execute("kept_leave", seq=job.seq, **place)

    # ------------------------------------------------------------------ the rest of FamiliesInStep

    def follow(self, job: JobRecord) -> None:
        self._ended.append(job.id)

    def take_ended(self) -> list[str]:
        ended, self._ended = self._ended, []
        return ended

    def add_edges(self, job: JobRecord, after: Sequence[str], *, is_park: bool = False) -> None:
        for dep in after:
            if (seq := self._seq_of(dep)) is not None:
                self._step.add_row("edge_add", seq, job.seq, is_park)

    def drop_park(self, job: JobRecord) -> None:
        self._step.execute("edge_drop_park", dependent=job.seq)

    def parked_for(self, job: JobRecord) -> Sequence[str]:
        return [job_id for (job_id,) in self._step.fetch_all("edge_parked_for", dependent=job.seq)]

    def dependents(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        return self._in_order("edge_dependents", id=job_id, cursor=cursor, limit=limit)

    def open_children(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        return self._in_order("family_open_children", id=job_id, cursor=cursor, limit=limit)

    def open_events(self, job_id: str, limit: int) -> list[JobRecord]:
        return self._in_order("family_open_events", id=job_id, limit=limit)

    def has_children(self, job_id: str) -> bool:
        return bool(self._step.fetch_one("family_has_children", id=job_id)[0])

    def past_deadline(self, limit: int) -> list[JobRecord]:
        return self._in_order("family_late", now=self._step.us, limit=limit)

    def owe(self, kind: OwedKind, job_id: str) -> None:
        self.has_families = True
        self._step.add_row("owed_add", kind, job_id, 0)

    def next_owed(self) -> Owed | None:
        """What earlier steps owe comes first. What is owed and done in one step is never written."""
        if self._owes_more:
            row = self._step.fetch_stored("owed_next")
            if row is not None:
                return Owed._make(row)
            self._owes_more = False
        mine = self._step.waiting_rows("owed_add")
        return Owed(_UNWRITTEN, *mine[0]) if mine else None

    def owe_rest(self, owed: Owed, cursor: int | None) -> None:
        if owed.no == _UNWRITTEN:
            mine = self._step.waiting_rows("owed_add")
            if mine[:1] == [owed[1:]]:  # else it was written meanwhile, and to do it twice does no harm
                mine[:1] = [] if cursor is None else [(owed.kind, owed.job_id, cursor)]
        elif cursor is None:
            self._step.execute("owed_done", no=owed.no)
        else:
            self._step.execute("owed_rest", no=owed.no, cursor=cursor)

    # ------------------------------------------------------------------ many at once

    def count_completed(self, children: dict[int, bool], parents: Iterable[int | None]) -> None:
        """Count children that were completed by sets at their parents, and judge these.

        By seq, with whether a record of the child stays; of others the parents are known.
        """
        step = self._step
        counts = Counter(parent for parent in parents if parent is not None)
        if children:
            counts.update(dict(step.fetch_all("family_parents", seqs=json_array(children))))
        over = [
            parent
            for parent, count in counts.items()
            for (is_over,) in step.fetch_all("family_completed", seq=parent, count=count)
            if is_over
        ]
        if gone := [seq for seq, is_kept in children.items() if not is_kept]:
            step.execute("family_drop_bonds", seqs=json_array(gone))
        self.read_again()
        for job in self.by_seqs(over) if over else ():
            judge(self, job)


def bound(step: Step, jobs: list[JobRecord]) -> dict[int, JobRecord]:
    """Jobs on their first run with what ties them to others, by seq; what else they are is known."""
    rows = {
        row[0]: row for row in step.fetch_all("reserve_bound", seqs=json_array([job.seq for job in jobs]))
    }
    records = FamilyRecords(step)
    alone = [replace(job, version=rows[job.seq][1], fence=rows[job.seq][2]) for job in jobs]
    tied = records.with_ties(alone, {seq: _ties(row[3:]) for seq, row in rows.items()})
    return {job.seq: job for job in tied.values()}


def bonds_of_children(step: Step, seqs: list[int]) -> dict[int, tuple[Bonds | None, str | None]]:
    """Bonds and root of jobs that have no family and no notes, by seq. Neighbours mostly share theirs."""
    known: dict[tuple[str | None, str | None], Bonds | None] = {}
    found = {}
    for seq, parent, root, text in step.execute("family_get_bonds", seqs=json_array(seqs)):
        if (parent, text) not in known:
            known[parent, text] = _bonds(parent, text)
        found[seq] = known[parent, text], root
    return found


def _bonds(parent: str | None, text: str | None) -> Bonds | None:
    if text is None:
        return None
    bonds = NO_BONDS if text == "{}" else _bonds_decoder.decode(text)
    return bonds if parent is None else replace(bonds, parent=parent)


def _family(values: tuple[Any, ...]) -> Family | None:
    if values[0] is None:
        return None
    fields = dict(zip(_COUNTS, values, strict=True))
    fields["is_done"] = bool(fields["is_done"])
    fields["spares"] = bool(fields["spares"])
    failures = fields.pop("failures")
    return Family(**fields, failures=() if failures is None else _failures_decoder.decode(failures))


def _bond_of(job: JobRecord) -> tuple[Bonds | None, int | None]:
    """What the table of bonds has of a job."""
    return job.bonds, _live_deadline(job)


def _live_deadline(job: JobRecord) -> int | None:
    """When a job that is not over, and not stopped already, must be over."""
    is_live = job.state not in TERMINAL and family_of(job).stopping is None
    return micros_or_none(bonds_of(job).deadline) if is_live else None
