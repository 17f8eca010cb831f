"""How jobs with bonds enter a store: checked as a whole, then written as a whole.

Everything that can refuse a call is looked at before the first write: which jobs are known already, the lease
that vouches for the call, parents, siblings, depth. Then jobs are stored in list order, and parents are
counted and judged at the end, once per call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.drivers import lifecycle
from taskharbor.drivers.families import FamiliesInStep, carry_out, judge, release
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.errors import BrokenBond, InvalidArgument
from taskharbor.model.bonds import MAX_DEPTH, Bonds, Family
from taskharbor.model.family_steps import (
    family_of,
    never_runs,
    over_among,
    parent_of,
    stored_bonds,
    with_child,
    with_followers,
)
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import lease_error, new_record


class Arrival:
    """One call of enqueue with bonds or a lease, within one step."""

    def __init__(self, jobs: FamiliesInStep, new: Sequence[NewJob], by: Lease | None = None) -> None:
        self._jobs = jobs
        self._new = new
        self._by = by
        self._known: dict[int, tuple[str, int]] = {}  # place in the call: id and version of what it repeats
        self._first: dict[str, NewJob] = {}  # those that will be stored
        self._repeated: set[str] = set()  # ids of the call that repeat another job
        self._depths: dict[str, int] = {}
        self._children: Counter[str] = Counter()
        self._followers: Counter[str] = Counter()

    # ------------------------------------------------------------------ checks

    def check(self) -> list[NewJob]:
        """Raise what refuses the call. Returns the new jobs that spend an enqueue rate."""
        vouching = self._check_lease()
        keys: set[tuple[str, bytes]] = set()
        for place, job in enumerate(self._new):
            key = None if job.idempotency_key is None else (job.queue, job.idempotency_key)
            repeats = self._repeats(job, key in keys)
            if repeats is not None:
                self._known[place] = repeats
                self._repeated.add(job.id)
                continue
            if job.bonds is not None:
                self._check_bonds(job, job.bonds, vouching)
            elif vouching is not None:
                raise BrokenBond(job.id, f"is no child of job {vouching.id}, whose lease it names")
            self._first[job.id] = job
            if key is not None:
                keys.add(key)
        return [job for job in self._first.values() if job.bonds is None or job.bonds.done_by == "worker"]

    @property
    def repeats_some(self) -> bool:
        """Whether a job of the call is known; after `check`."""
        return bool(self._known)

    def _check_lease(self) -> JobRecord | None:
        if self._by is None:
            return None
        job = self._jobs.get(self._by.job_id)
        if (error := lease_error(job, self._by, self._jobs.now)) is not None:
            raise error
        return job

    def _repeats(self, job: NewJob, is_known_key: bool) -> tuple[str, int] | None:
        """A job that is stored, in the call already, or of a parent or after a job that is a repeat here."""
        there = lifecycle.repeated(self._jobs, job)
        if there is not None:
            return there
        bonds = job.bonds
        of_repeat = bonds is not None and (
            bonds.parent in self._repeated or any(self._is_gone(name) for name in bonds.after)
        )
        return (job.id, 0) if of_repeat or is_known_key or job.id in self._first else None

    def _is_gone(self, job_id: str) -> bool:
        return job_id in self._repeated and self._jobs.get(job_id) is None

    def _check_bonds(self, job: NewJob, bonds: Bonds, vouching: JobRecord | None) -> None:
        if bonds.parent is not None:
            self._check_parent(job, bonds.parent, vouching)
        elif vouching is not None:
            raise BrokenBond(job.id, f"is no child of job {vouching.id}, whose lease it names")
        for name in bonds.after:
            self._check_after(job, name, bonds.parent)

    def _check_parent(self, job: NewJob, parent_id: str, vouching: JobRecord | None) -> None:
        depth = self._depth(parent_id) + 1
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"job {job.id} would be {depth} levels deep; {MAX_DEPTH} are allowed")
        self._depths[job.id] = depth
        if parent_id in self._first:
            if self._first[parent_id].key is not None:
                raise BrokenBond(parent_id, "has a key: it takes no children")
            return
        parent = self._jobs.get(parent_id)
        if parent is None:
            raise BrokenBond(parent_id, "is unknown: it takes no children")
        if parent.key is not None or parent.speculates_on is not None:
            raise BrokenBond(parent_id, "has a key or is a copy: it takes no children")
        if parent.state in TERMINAL:
            raise BrokenBond(parent_id, f"is over ({parent.state}): it takes no more children")
        if family_of(parent).stopping is not None or parent.cancel_requested:
            raise BrokenBond(parent_id, "is being stopped: it takes no more children")
        above = (parent_id, parent_of(parent))  # of a group that is a child of it, too
        if vouching is not None and vouching.id not in above and parent_id != parent_of(vouching):
            raise BrokenBond(job.id, f"is no child or sibling of job {vouching.id}, whose lease it names")

    def _depth(self, job_id: str) -> int:
        if job_id not in self._depths and job_id not in self._first:
            job = self._jobs.get(job_id)
            parent_id = None if job is None else parent_of(job)
            self._depths[job_id] = 0 if parent_id is None else self._depth(parent_id) + 1
        return self._depths.get(job_id, 0)

    def _check_after(self, job: NewJob, name: str, parent_id: str | None) -> None:
        if name in self._first:
            other = self._first[name]
            has_key, of = other.key is not None, other.bonds and other.bonds.parent
        else:
            there = self._jobs.get(name)
            if there is None:
                raise BrokenBond(name, "is unknown: nothing can come after it")
            has_key, of = there.key is not None or there.speculates_on is not None, parent_of(there)
        if has_key:
            raise BrokenBond(name, "has a key or is a copy: nothing can come after it")
        if of != parent_id:
            raise BrokenBond(name, f"is no sibling of job {job.id}, which would come after it")

    # ------------------------------------------------------------------ writes

    def store(self) -> list[Enqueued]:
        """Store the new jobs, count them at their parents, and judge what may be over already."""
        jobs = self._jobs
        waiting: list[JobRecord] = []
        for place, job in enumerate(self._new):
            if place not in self._known:
                self._store(job, waiting)
        for parent_id, count in self._children.items():
            if (parent := jobs.get(parent_id)) is not None:
                jobs.amend(with_child(parent, count))
        for name, count in self._followers.items():
            if (other := jobs.get(name)) is not None:
                jobs.amend(with_followers(other, count))
        for record in waiting:
            self._judge(record)
        carry_out(jobs)
        return [self._answer(place, job) for place, job in enumerate(self._new)]

    def _store(self, job: NewJob, waiting: list[JobRecord]) -> None:
        if job.bonds is None:
            lifecycle.enqueue_one(self._jobs, job)
            return
        jobs, now = self._jobs, self._jobs.now
        bonds = stored_bonds(job.bonds, now)
        record = replace(new_record(job, jobs.next_seq(), now), bonds=bonds, root=self._root(bonds.parent))
        if bonds.after or bonds.done_by != "worker":
            record = self._blocked(record, bonds)
        jobs.put(record)
        if job.idempotency_key is not None:
            jobs.remember(job, record)
        if bonds.after:
            jobs.add_edges(record, bonds.after)
            self._followers.update(bonds.after)
        if bonds.parent is not None:
            self._children[bonds.parent] += 1
        if record.state is JobState.BLOCKED:
            waiting.append(record)

    def _blocked(self, record: JobRecord, bonds: Bonds) -> JobRecord:
        """A job that others do, or that comes after others: ready if those have ended as it needs."""
        others = [one for name in bonds.after if (one := self._jobs.get(name)) is not None]
        missing = sum(one.state not in TERMINAL for one in others)
        is_skipped = never_runs(bonds.when, over_among(others), is_last=not missing) is not None
        is_done = bonds.done_by == "children"
        family = Family(
            waits_for=max(missing, int(bool(is_skipped and bonds.after))),
            is_done=is_done,
            own="completed" if is_done else "",
        )
        is_held = family.waits_for or bonds.done_by != "worker"
        return replace(record, state=JobState.BLOCKED if is_held else record.state, family=family)

    def _root(self, parent_id: str | None) -> str | None:
        parent = None if parent_id is None else self._jobs.get(parent_id)
        return parent_id if parent is None else parent.root or parent.id

    def _judge(self, job: JobRecord) -> None:
        """A new job that waits: what it comes after may be over, and a group without children is over."""
        fresh = self._jobs.get(job.id)
        if fresh is None or fresh.state is not JobState.BLOCKED:
            return
        if family_of(fresh).waits_for:
            release(self._jobs, fresh, is_parked=False)
        else:
            judge(self._jobs, fresh)

    def _answer(self, place: int, job: NewJob) -> Enqueued:
        now = self._jobs.now
        if place in self._known:
            job_id, version = self._known[place]
            return Enqueued(job_id, EnqueueResult.DUPLICATE, now, version)
        record = self._jobs.get(job.id)
        if record is None:  # over, and its queue keeps nothing
            return Enqueued(job.id, EnqueueResult.CREATED, now, 1)
        is_blocked = record.state is JobState.BLOCKED
        return Enqueued(
            job.id, EnqueueResult.BLOCKED if is_blocked else EnqueueResult.CREATED, now, record.version
        )
