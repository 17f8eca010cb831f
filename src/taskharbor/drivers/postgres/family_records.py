"""The jobs of a step of families in memory: read, changed, not written yet. See family_step.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from taskharbor.drivers.families import Owed, OwedKind
from taskharbor.drivers.lifecycle import JobsOfKey
from taskharbor.drivers.messages import FamilyEnd
from taskharbor.drivers.postgres.rows import IS_REMEMBERED
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.drivers.postgres.unit_of_work import Key, UnitOfWork
from taskharbor.model.family_steps import bonds_of, family_of, parent_of
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.state import TERMINAL
from taskharbor.model.transitions import new_record

PageOf = tuple[str, str, int, int]  # kind, job, behind this seq, at most so many


class Missing(Exception):
    """The rules need something that was not read yet."""

    def __init__(
        self, *, ids: Iterable[str] = (), page: PageOf | None = None, key: Key | None = None
    ) -> None:
        self.ids = list(ids)
        self.page = page
        self.key = key


class FamilyRecords(UnitOfWork):
    """A `FamiliesInStep`: what it has not read yet, it asks for by raising `Missing`."""

    def __init__(self, statements: Statements, *, carries: bool = True) -> None:
        """`carries`: consequences within these trees are part of the step; else all of them are owed."""
        self._carries = carries
        self._forget(statements)

    def _forget(self, statements: Statements) -> None:
        """Begin a transaction: forget what one before it has read."""
        super().__init__(None, statements)
        self._roots: list[str] = []
        self._locked: set[str] = set()
        self._absent: set[str] = set()
        self._pages: dict[tuple[str, str, int], tuple[int, list[tuple[str, int]]]] = {}
        self._once: dict[Key, str | None] = {}
        self._drawn: list[int] = []
        self._known_keys: set[Key] = set()
        self._links_read: dict[str, int] = {}
        self._parked_read: dict[str, tuple[str, ...]] = {}
        self._counted: dict[str, int] = {}  # children of a job that stripes have counted
        self._given: dict[int, Owed] = {}
        self.refusal: Any = None
        """Why the enqueue rates refuse the new jobs: queue, result, detail."""
        self._begin()

    def _begin(self) -> None:
        """Forget what a run before this one has changed."""
        self._records = dict(self._stored)
        self._links = dict(self._links_read)
        self._parked = dict(self._parked_read)
        self._seqs = list(self._drawn)
        self._written: dict[str, JobRecord] = {}
        self._amended: dict[str, JobRecord] = {}
        self._gone: set[str] = set()
        self._dropped, self._ended, self._revived = [], [], []
        self._merged, self._cancels = [], []
        self._made: set[str] = set()
        self._over: list[str] = []
        self.to_report: list[FamilyEnd] = []
        self._edges: dict[str, list[tuple[int, str, bool]]] = defaultdict(list)
        self._unparked: set[str] = set()
        self._owed = dict(self._given)
        self._settled_owed: list[int] = []
        self._new_aliases: dict[str, str] = {}
        self._remembered: dict[Key, str] = {}

    # ------------------------------------------------------------------ reading

    def get(self, job_id: str) -> JobRecord | None:
        job = self._records.get(job_id)
        if job is None and job_id not in self._gone and job_id not in self._absent:
            raise Missing(ids=self._wanted_with(job_id))
        return job

    def find(self, job_id: str) -> JobRecord | None:
        return self.get(self._new_aliases.get(job_id) or self._aliases.get(job_id, job_id))

    def _wanted_with(self, job_id: str) -> list[str]:
        """What is asked for next, most likely: the other jobs that one which comes after it names."""
        wanted = {job_id: None}
        for job in self._records.values():
            names = (*bonds_of(job).after, *self._parked.get(job.id, ()))
            if job_id in names:
                wanted |= dict.fromkeys(names)
        return [one for one in wanted if one not in self._stored and one not in self._absent]

    def jobs_of_key(self, queue: str, key: bytes) -> JobsOfKey:
        if (queue, key) not in self._known_keys:
            raise Missing(key=(queue, key))
        return super().jobs_of_key(queue, key)

    # ------------------------------------------------------------------ changing

    def put(self, job: JobRecord) -> None:
        if job.id in self._stored and job.id not in self._locked:
            raise AssertionError(f"job {job.id} is of a tree that this step has not locked")
        super().put(job)

    def drop(self, job: JobRecord) -> None:
        super().drop(job)
        self._amended.pop(job.id, None)
        self._gone.add(job.id)

    def alias(self, job_id: str, target: JobRecord) -> None:
        self._new_aliases[job_id] = target.id

    def add_copy(self, copy: JobRecord, original: JobRecord) -> None:
        super().add_copy(copy, original)
        self._made.add(copy.id)

    def add_failure_job(self, job: NewJob) -> None:
        if job.id not in self._stored:
            self.put(new_record(job, 0, self.now))
            self._made.add(job.id)

    def remembered(self, queue: str, key: bytes) -> str | None:
        return self._remembered.get((queue, key)) or self._once.get((queue, key))

    def remember(self, job: NewJob, record: JobRecord) -> None:
        if job.idempotency_key is not None:
            self._remembered[job.queue, job.idempotency_key] = record.id
            self._links[record.id] = self._links.get(record.id, 0) | IS_REMEMBERED

    # ------------------------------------------------------------------ families

    def follow(self, job: JobRecord) -> None:
        self._over.append(job.id)

    def take_ended(self) -> list[str]:
        ended, self._over = self._over, []
        return ended

    def amend(self, job: JobRecord) -> None:
        if job.id in self._stored and job.id not in self._locked:
            raise AssertionError(f"job {job.id} is of a tree that this step has not locked")
        self._records[job.id] = job
        if job.id in self._written:
            self._written[job.id] = job
        else:
            self._amended[job.id] = job

    def add_edges(self, job: JobRecord, after: Sequence[str], *, is_park: bool = False) -> None:
        for name in after:
            self._edges[name].append((job.seq, job.id, is_park))
        if is_park:
            self._parked[job.id] = tuple(after)

    def drop_park(self, job: JobRecord) -> None:
        if self._parked.get(job.id):
            self._parked[job.id] = ()
            self._unparked.add(job.id)

    def parked_for(self, job: JobRecord) -> Sequence[str]:
        return self._parked.get(job.id, ())

    def dependents(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        new = [name for _, name, _ in self._edges.get(job_id, ())]
        return self._page(("release", job_id, cursor, limit), new, lambda _: True)

    def open_children(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        return self._page(("stop", job_id, cursor, limit), self._new_children(job_id), _is_open)

    def open_events(self, job_id: str, limit: int) -> list[JobRecord]:
        return self._page(("events", job_id, 0, limit), self._new_children(job_id), _is_open_event)

    def children(self, job_id: str, limit: int) -> list[JobRecord]:
        """The children of a job, over or not."""
        return self._page(("children", job_id, 0, limit), self._new_children(job_id), lambda _: True)

    def has_children(self, job_id: str) -> bool:
        job = self.get(job_id)
        if job is None or not family_of(job).total:
            return job is None
        return bool(self._new_children(job_id)) or self._has_stored_children(job_id)

    def _has_stored_children(self, job_id: str) -> bool:
        """Their ids are enough: whole records would be locked."""
        cursor = 0
        while True:
            limit, rows = self._pages.get(("children", job_id, cursor), (0, []))
            if not limit:
                raise Missing(page=("children", job_id, cursor, 1))
            if any(name not in self._gone for name, _ in rows):
                return True
            if len(rows) < limit:
                return False
            cursor = rows[-1][1]

    def past_deadline(self, limit: int) -> list[JobRecord]:
        raise NotImplementedError("the caller locks those first")

    def _new_children(self, job_id: str) -> list[str]:
        return [
            job.id
            for job in self._written.values()
            if parent_of(job) == job_id and job.id not in self._stored
        ]

    def _page(self, page: PageOf, new: Sequence[str], fits: Callable[[JobRecord], bool]) -> list[JobRecord]:
        """The jobs of a page as they are now: what is stored, what this step has added, what fits."""
        kind, job_id, cursor, limit = page
        found: list[JobRecord] = []
        while True:
            rows = self._stored_page((kind, job_id, cursor, limit))
            last = rows[-1][1] if len(rows) == limit else None
            here = {name: self._records[name] for name, _ in rows if name in self._records}
            for name in new:
                job = self._records.get(name)
                if job is not None and job.seq > cursor and (last is None or job.seq <= last):
                    here[name] = job
            found += sorted((job for job in here.values() if fits(job)), key=lambda job: job.seq)
            if len(found) >= limit or last is None:
                return found[:limit]
            cursor = last

    def _stored_page(self, page: PageOf) -> list[tuple[str, int]]:
        if page[1] not in self._stored:  # it is new: nothing that is stored belongs to it
            return []
        limit, rows = self._pages.get(page[:3], (0, []))
        if limit < page[3]:
            raise Missing(page=page)
        rows = rows[: page[3]]
        unread = [name for name, _ in rows if name not in self._stored and name not in self._absent]
        if unread:
            raise Missing(ids=unread)
        return rows

    # ------------------------------------------------------------------ what is owed

    def take_owed(self, rows: Sequence[Any], limit: int) -> list[str]:
        """Carry out what was owed before, as much as concerns so many jobs: the ids that it needs."""
        ids: list[str] = []
        count = 0
        for no, kind, job_id, place, page, seqs in rows:
            size = len(page or ())
            if count and count + max(size, 1) > limit:
                break
            count += max(size, 1)
            ids += [job_id, *(page or ())]
            self._given[no] = Owed(no, kind, job_id, place)
            self._keep_page((kind, job_id, place, limit), list(zip(page or (), seqs or (), strict=True)))
        return ids

    def _keep_page(self, page: PageOf, rows: list[tuple[str, int]]) -> None:
        self._pages[page[:3]] = page[3], rows

    def owe(self, kind: OwedKind, job_id: str) -> None:
        no = -1 - len(self._owed) - len(self._settled_owed)
        self._owed[no] = Owed(no, kind, job_id)

    def next_owed(self) -> Owed | None:
        return next((owed for owed in self._owed.values() if self._is_here(owed)), None)

    def owe_rest(self, owed: Owed, cursor: int | None) -> None:
        if cursor is not None:
            self._owed[owed.no] = owed._replace(cursor=cursor)
        elif self._owed.pop(owed.no, None) is not None:
            self._settled_owed.append(owed.no)

    def _is_here(self, owed: Owed) -> bool:
        """Whether all that a consequence changes is of trees that this step has locked."""
        if owed.no > 0:
            return True
        cause = self.get(owed.job_id)
        is_of_roots = owed.kind == "release" and (cause is None or parent_of(cause) is None)
        return self._carries and not is_of_roots

    @property
    def owes(self) -> bool:
        """Whether something is left to do that this step has not done."""
        return bool(self._owed)


def _is_open(job: JobRecord) -> bool:
    return job.state not in TERMINAL


def _is_open_event(job: JobRecord) -> bool:
    bonds = bonds_of(job)
    return job.state not in TERMINAL and bonds.optional and bonds.done_by == "call"
