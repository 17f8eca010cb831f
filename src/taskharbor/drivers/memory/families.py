"""What ties the stored jobs together: children, jobs that come after others, deadlines, what is owed.

Only jobs with bonds are in here; a plain job costs one test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

from taskharbor.drivers.families import Owed, OwedKind
from taskharbor.drivers.memory.records import Ordered
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import TERMINAL

Numbered = tuple[int, str]  # (seq, id)
_ABOVE_ALL_IDS = "\U0010ffff"


class FamilyIndex:
    """The jobs of families by parent, by what they come after, and by deadline."""

    def __init__(self) -> None:
        self.children: dict[str, Ordered[Numbered]] = {}
        self.ended: list[str] = []
        self._open: dict[str, Ordered[Numbered]] = {}
        self._events: dict[str, Ordered[Numbered]] = {}
        self._dependents: dict[str, Ordered[Numbered]] = {}
        self._parked: dict[str, tuple[str, ...]] = {}
        self._deadlines: Ordered[tuple[datetime, int, str]] = Ordered()
        self._owed: dict[int, Owed] = {}
        self._last_owed = 0

    # ------------------------------------------------------------------ writing

    def enter(self, job: JobRecord) -> None:
        """A job with bonds that is stored now."""
        for index, owner in self._places(job):
            index.setdefault(owner, Ordered()).add((job.seq, job.id))
        if (at := _live_deadline(job)) is not None:
            self._deadlines.add((at, job.seq, job.id))

    def leave(self, job: JobRecord) -> None:
        """The same job before it is replaced."""
        for index, owner in self._places(job):
            _take_out(index, owner, (job.seq, job.id))
        if (at := _live_deadline(job)) is not None:
            self._deadlines.remove((at, job.seq, job.id))

    def _places(self, job: JobRecord) -> Iterator[tuple[dict[str, Ordered[Numbered]], str]]:
        bonds = bonds_of(job)
        if bonds.parent is None:
            return
        yield self.children, bonds.parent
        if job.state not in TERMINAL:
            yield self._open, bonds.parent
            if bonds.optional and bonds.done_by == "call":
                yield self._events, bonds.parent

    def forget(self, job: JobRecord) -> None:
        """The job is gone for good, with the edges on both sides of it."""
        for name in bonds_of(job).after:
            _take_out(self._dependents, name, (job.seq, job.id))
        self._dependents.pop(job.id, None)
        self.drop_park(job)

    def add_edges(self, job: JobRecord, after: Sequence[str], *, is_park: bool) -> None:
        for name in after:
            self._dependents.setdefault(name, Ordered()).add((job.seq, job.id))
        if is_park:
            self._parked[job.id] = tuple(after)

    def drop_park(self, job: JobRecord) -> None:
        for name in self._parked.pop(job.id, ()):
            _take_out(self._dependents, name, (job.seq, job.id))

    def owe(self, kind: OwedKind, job_id: str) -> None:
        self._last_owed += 1
        self._owed[self._last_owed] = Owed(self._last_owed, kind, job_id)

    def owe_rest(self, owed: Owed, cursor: int | None) -> None:
        if cursor is None:
            self._owed.pop(owed.no, None)
        else:
            self._owed[owed.no] = owed._replace(cursor=cursor)

    # ------------------------------------------------------------------ looking

    def next_owed(self) -> Owed | None:
        return next(iter(self._owed.values()), None)

    def count_owed(self, limit: int) -> int:
        return min(len(self._owed), limit)

    def parked_for(self, job: JobRecord) -> Sequence[str]:
        return self._parked.get(job.id, ())

    def dependents(self, job_id: str, cursor: int, limit: int) -> list[str]:
        return _behind(self._dependents.get(job_id), cursor, limit)

    def open_children(self, job_id: str, cursor: int, limit: int) -> list[str]:
        return _behind(self._open.get(job_id), cursor, limit)

    def open_events(self, job_id: str, limit: int) -> list[str]:
        return _behind(self._events.get(job_id), 0, limit)

    def past_deadline(self, limit: int, now: datetime) -> list[str]:
        late = []
        for at, _, job_id in islice(self._deadlines, limit):
            if at > now:
                break
            late.append(job_id)
        return late


def _live_deadline(job: JobRecord) -> datetime | None:
    """When a job that is not over, and not stopped already, must be over."""
    at = bonds_of(job).deadline
    is_live = job.state not in TERMINAL and family_of(job).stopping is None
    return at if is_live else None


def _take_out(index: dict[str, Ordered[Numbered]], owner: str, entry: Numbered) -> None:
    entries = index.get(owner)
    if entries is None:
        return
    entries.discard(entry)
    if not entries:
        del index[owner]


def _behind(entries: Ordered[Numbered] | None, cursor: int, limit: int) -> list[str]:
    if entries is None:
        return []
    return [job_id for _, job_id in islice(entries.above((cursor, _ABOVE_ALL_IDS)), limit)]
