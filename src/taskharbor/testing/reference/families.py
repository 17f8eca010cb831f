"""The reference model of families: what bonds, stops, parks, notes and events must do to jobs.

Plain records in a dict. After each verb `_come_to_rest` looks at every job again and again until nothing
changes: no counter, no list of what is owed, no step shared with a driver. Counts are taken from the children
themselves. Written from docs/decisions/0028 and the driver contract; `statemachine/families.py` compares a
driver with it. It says nothing about versions, leases of plain jobs and queues with rules: the model of
`reference/model.py` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from taskharbor.drivers.messages import Resolution
from taskharbor.errors import (
    BrokenBond,
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
    NotAllowedInState,
    ParkRefused,
    TaskHarborError,
)
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import Lease, NewJob, Note
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Settlement, Stalled
from taskharbor.model.state import TERMINAL, JobState

READY, SCHEDULED, BLOCKED, RUNNING = JobState.READY, JobState.SCHEDULED, JobState.BLOCKED, JobState.RUNNING
COMPLETED, FAILED, CANCELLED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED
MAX_DEPTH = 16

Refusal = type[TaskHarborError]


@dataclass
class Kin:
    """One job of the model."""

    id: str
    queue: str
    seq: int
    created_at: datetime
    bonds: Bonds
    state: JobState = READY
    run_at: datetime | None = None
    deadline: datetime | None = None
    max_stalls: int = 0
    waits: tuple[str, ...] | None = None
    """What it waits for: the jobs it comes after, or the children it is parked for."""
    is_parked: bool = False
    is_done: bool = False
    own: str = ""
    """How its own work ended: completed, failed, cancelled."""
    stopping: str | None = None
    spares: bool = True
    cancel_requested: bool = False
    token: str | None = None
    worker_id: str | None = None
    expires_at: datetime | None = None
    starts: int = 0
    attempts: int = 0
    stalls: int = 0
    kind: str | None = None
    error: str | None = None
    result: bytes | None = None
    notes: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    has_new_failure: bool = False
    """A child has failed since `fail_fast` was looked at."""
    is_gone: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_success(self) -> bool:
        return self.state is COMPLETED or (self.state is FAILED and self.bonds.optional)


class FamilyModel:
    """Families of jobs, with every consequence at once."""

    def __init__(self) -> None:
        self.jobs: dict[str, Kin] = {}
        self.met: Counter[str] = Counter()
        """Which rules have decided something, for the coverage of a run."""
        self._seq = 0

    # ------------------------------------------------------------------ looking

    def there(self, job_id: str) -> Kin | None:
        job = self.jobs.get(job_id)
        return None if job is None or job.is_gone else job

    def children(self, job_id: str) -> list[Kin]:
        return [job for job in self.jobs.values() if job.bonds.parent == job_id]

    def counts(self, job_id: str) -> tuple[int, int, int, int, int]:
        """total, open, failed, excused, cancelled"""
        kids = self.children(job_id)
        failed = [kid for kid in kids if kid.state is FAILED]
        return (
            len(kids),
            sum(not kid.is_over for kid in kids),
            sum(not kid.bonds.optional for kid in failed),
            sum(kid.bonds.optional for kid in failed),
            sum(kid.state is CANCELLED for kid in kids),
        )

    def is_open(self, job_id: str) -> bool:
        return any(not kid.is_over for kid in self.children(job_id))

    def state_of(self, job: Kin, now: datetime) -> JobState:
        if job.state in (READY, SCHEDULED):
            return READY if job.run_at is None or job.run_at <= now else SCHEDULED
        return job.state

    def ready(self, queues: Sequence[str], now: datetime) -> list[Kin]:
        """What a claim of these queues may hand out, in its order."""
        jobs = [
            job
            for job in self.jobs.values()
            if not job.is_gone and self.state_of(job, now) is READY and self._may_run(job, now)
        ]
        jobs.sort(key=lambda job: (job.run_at or job.created_at, job.seq))
        return [job for queue in queues for job in jobs if job.queue == queue]

    def _may_run(self, job: Kin, now: datetime) -> bool:
        above = self._parent(job)
        is_late = job.deadline is not None and job.deadline <= now
        return not is_late and (above is None or not self._is_stopped_by(above, job))

    def _parent(self, job: Kin) -> Kin | None:
        return None if job.bonds.parent is None else self.jobs.get(job.bonds.parent)

    # ------------------------------------------------------------------ in

    def enqueue(self, jobs: Sequence[NewJob], by: Lease | None, now: datetime) -> list[str] | Refusal:
        """The results, or the error that refuses all of it."""
        if by is not None and (error := self._lease_error(by, now)) is not None:
            return error
        repeated: set[str] = set()
        new: dict[str, NewJob] = {}
        for job in jobs:
            bonds = job.bonds or Bonds()
            if self.there(job.id) is not None or job.id in new or bonds.parent in repeated:
                repeated.add(job.id)
            elif (error := self._broken(job, bonds, new, by)) is not None:
                return error
            else:
                new[job.id] = job
        for job in new.values():
            self._store(job, now)
        self._come_to_rest(now)
        blocked = {job_id for job_id in new if self.jobs[job_id].state is BLOCKED}
        return [
            "duplicate" if job.id not in new else "blocked" if job.id in blocked else "created"
            for job in jobs
        ]

    def _broken(
        self, job: NewJob, bonds: Bonds, new: dict[str, NewJob], by: Lease | None
    ) -> type[BrokenBond] | None:
        if by is not None:
            vouching = self.jobs[by.job_id]
            if bonds.parent is None or bonds.parent not in (vouching.id, vouching.bonds.parent, *new):
                return BrokenBond
        if bonds.parent is not None and bonds.parent not in new:
            parent = self.there(bonds.parent)
            if parent is None or parent.is_over or parent.stopping or parent.cancel_requested:
                return BrokenBond
        for name in bonds.after:
            other = (new[name].bonds or Bonds()) if name in new else None
            known = self.there(name)
            if other is None and known is None:
                return BrokenBond
            of = other.parent if other is not None else known.bonds.parent if known is not None else None
            if of != bonds.parent:
                return BrokenBond
        return None

    def _store(self, new: NewJob, now: datetime) -> None:
        bonds = new.bonds or Bonds()
        self._seq += 1
        job = Kin(new.id, new.queue, self._seq, now, bonds, max_stalls=new.max_stalls)
        job.run_at = now + new.delay if new.delay else new.run_at
        job.deadline = now + bonds.within if bonds.within is not None else bonds.deadline
        job.waits = bonds.after or None
        if bonds.after or bonds.done_by != "worker":
            job.state = BLOCKED
        if bonds.done_by == "children":
            job.is_done, job.own = True, "completed"
        self.jobs[new.id] = job

    # ------------------------------------------------------------------ attempts

    def claim(self, job_id: str, token: str, worker_id: str, expires_at: datetime) -> None:
        job = self.jobs[job_id]
        job.state, job.token, job.worker_id, job.expires_at = RUNNING, token, worker_id, expires_at
        job.starts += 1

    def settle(self, items: Sequence[Settlement], now: datetime) -> list[JobState | Refusal]:
        answers = [self._settle(item, now) for item in items]
        self._come_to_rest(now)
        return answers

    def _lease_error(self, lease: Lease, now: datetime) -> Refusal | None:
        job = self.there(lease.job_id)
        if job is None or job.state is not RUNNING:
            return JobNotInflight
        if job.token != lease.token or lease.worker_id not in (None, job.worker_id):
            return LeaseMismatch
        return LeaseExpired if job.expires_at is not None and job.expires_at <= now else None

    def _settle(self, item: Settlement, now: datetime) -> JobState | Refusal:
        if (error := self._lease_error(item.lease, now)) is not None:
            return error
        job = self.jobs[item.lease.job_id]
        if isinstance(item, Park) and not job.cancel_requested:
            if any(self._foreign(job, name) for name in item.after):
                return ParkRefused
            return self._park(job, item, now)
        job.token = job.worker_id = job.expires_at = None
        if job.cancel_requested:
            return self._own_over(job, "cancelled", now)
        match item:
            case Ack(result=result):
                job.result = result
                return self._own_over(job, "completed", now)
            case Fail(reason=reason, failure_kind=kind):
                job.attempts += 1
                job.error, job.kind = reason, kind
                return self._own_over(job, "failed", now)
            case Cancelled():
                return self._own_over(job, "cancelled", now)
            case Stalled():
                return self._stall(job, now)
            case Retry(delay=delay):
                job.attempts += 1
                job.run_at = now + delay if delay else None
            case Release(delay=delay) if delay:
                job.run_at = now + delay
            case _:
                pass
        job.state = READY
        return self.state_of(job, now)

    def _foreign(self, job: Kin, name: str) -> bool:
        other = self.there(name)
        return other is None or other.bonds.parent != job.id

    def _park(self, job: Kin, park: Park, now: datetime) -> JobState:
        self.met["park"] += 1
        job.token = job.worker_id = job.expires_at = None
        job.attempts = job.stalls = 0
        self._keep(job, park.notes, now)
        open_ = tuple(name for name in dict.fromkeys(park.after) if not self.jobs[name].is_over)
        if park.delay is not None:
            job.run_at = now + park.delay if park.delay else job.run_at
        job.state = BLOCKED if open_ else READY
        job.waits, job.is_parked = (open_ or None), bool(open_)
        return self.state_of(job, now)

    def note(self, note: Note, now: datetime) -> bytes | Refusal:
        """What is kept under this name."""
        assert note.lease is not None
        if (error := self._lease_error(note.lease, now)) is not None:
            return error
        job = self.jobs[note.lease.job_id]
        self._keep(job, [note], now)
        return job.notes[note.name][0]

    def _keep(self, job: Kin, notes: Iterable[Note], now: datetime) -> None:
        for note in notes:
            if note.name not in job.notes:
                job.notes[note.name] = (note.data, now)
                job.attempts = job.stalls = 0

    def reclaim(self, queues: Sequence[str] | None, now: datetime) -> None:
        for job in list(self.jobs.values()):
            is_expired = job.state is RUNNING and job.expires_at is not None and job.expires_at <= now
            if is_expired and (queues is None or job.queue in queues):
                job.token = job.worker_id = job.expires_at = None
                self._stall(job, now)
        self._come_to_rest(now)

    def _stall(self, job: Kin, now: datetime) -> JobState:
        if job.cancel_requested:
            return self._own_over(job, "cancelled", now)
        job.stalls += 1
        if 0 < job.max_stalls <= job.stalls:
            job.kind = "stalled"
            return self._own_over(job, "failed", now)
        job.state, job.run_at = READY, None
        return READY

    # ------------------------------------------------------------------ calls and control

    def resolve(self, item: Resolution, now: datetime) -> JobState | Refusal:
        if item.new is not None and self.there(item.id) is None:
            stored = self.enqueue([item.new], None, now)
            if isinstance(stored, type):
                return stored
        job = self.there(item.id)
        if job is None:
            return JobNotFound
        if job.bonds.done_by != "call":
            return NotAllowedInState
        if item.error is None:
            is_repeat = job.own == "completed" and job.result == item.result
        else:
            is_repeat = job.own == "failed" and job.error == item.error
        if is_repeat:
            return job.state
        is_late = job.deadline is not None and job.deadline <= now
        if job.state is not BLOCKED or job.is_done or is_late:
            return NotAllowedInState
        if item.error is None:
            job.result = item.result
        else:
            job.error, job.kind = item.error, "error"
        self.met["event"] += 1
        answer = self._own_over(job, "completed" if item.error is None else "failed", now)
        self._come_to_rest(now)
        return answer

    def cancel(self, job_id: str, now: datetime) -> str:
        job = self.there(job_id)
        if job is None:
            return "not_found"
        if job.is_over:
            return "already_over"
        if self.is_open(job.id):
            if job.stopping == "cancel" and job.spares:
                self.met["second cancel"] += 1
            spares = job.spares if job.stopping != "cancel" else False
            self._stop(job, "cancel", now, spares=spares)
        elif job.state is RUNNING:
            job.cancel_requested = True
        else:
            job.state, job.waits = CANCELLED, None
        self._come_to_rest(now)
        return "cancelled" if job.is_over else "requested"

    def requeue(self, job_id: str, now: datetime) -> JobState | Refusal:
        job = self.there(job_id)
        if job is None:
            return JobNotFound
        if not job.is_over or job.bonds.done_by == "children":
            return NotAllowedInState
        above = self._parent(job)
        while above is not None and above.is_over:
            above = self._parent(above)
        if above is not None and above.stopping is not None:
            return BrokenBond
        job.own, job.is_done, job.stopping, job.spares = "", False, None, True
        job.cancel_requested, job.is_parked, job.deadline = False, False, None
        job.attempts = job.stalls = 0
        job.kind = job.error = job.result = None
        job.run_at = now
        job.waits = job.bonds.after or None
        job.state = BLOCKED if job.waits or job.bonds.done_by == "call" else READY
        self._open_again(self._parent(job))
        self._come_to_rest(now)
        return self.state_of(job, now)

    def _open_again(self, parent: Kin | None) -> None:
        """Parents that were over wait for the child again; what their own work came to stays."""
        while parent is not None and parent.is_over:
            self.met["reopened"] += 1
            parent.own = parent.own or parent.state.value
            parent.is_done, parent.state, parent.waits = True, BLOCKED, None
            parent.stopping, parent.spares, parent.cancel_requested = None, True, False
            parent.has_new_failure = False
            parent.deadline = None
            if parent.own != "failed":
                parent.kind = parent.error = None
            parent = self._parent(parent)

    def delete(self, job_id: str) -> Refusal | None:
        job = self.there(job_id)
        if job is None:
            return JobNotFound
        if not job.is_over:
            return NotAllowedInState
        parent = self._parent(job)
        is_needed = (parent is not None and not parent.is_over) or any(
            (job_id == other.bonds.parent and not other.is_gone)
            or (job_id in other.bonds.after and not other.is_over)
            for other in self.jobs.values()
        )
        if is_needed:
            return BrokenBond
        job.is_gone = True
        return None

    def due(self) -> set[str]:
        """The jobs of families whose root is over: with it they go once its retention is over."""
        return {job.id for job in self.jobs.values() if not job.is_gone and self._root(job).is_over}

    def prune(self, gone: set[str], due: set[str], *, is_all: bool) -> None:
        """These went. Only what is due may, children first; with `is_all` all of it must."""
        assert gone <= due, f"pruned before their root was due: {gone - due}"
        self.met["pruned"] += len(gone)
        for job_id in gone:
            self.jobs[job_id].is_gone = True
        for job in self.jobs.values():
            above = self._parent(job)
            is_orphan = not job.is_gone and above is not None and above.is_gone
            assert not is_orphan, f"{job.id} is there, and its parent is pruned"
        named = {name for job in self.jobs.values() if not job.is_over for name in job.bonds.after}
        left = {job_id for job_id in due - gone if self._root(self.jobs[job_id]).id not in named}
        assert not (is_all and left), f"due and not pruned: {left}"

    def _root(self, job: Kin) -> Kin:
        above = self._parent(job)
        return job if above is None else self._root(above)

    def sweep(self, now: datetime) -> None:
        """End what missed its deadline."""
        late = [
            job
            for job in self.jobs.values()
            if not job.is_over and job.stopping is None and job.deadline is not None and job.deadline <= now
        ]
        for job in late:
            self.met["deadline"] += 1
            self._stop(job, "deadline", now)
        self._come_to_rest(now)

    # ------------------------------------------------------------------ consequences

    def _own_over(self, job: Kin, own: str, now: datetime) -> JobState:
        """Its own work has ended; it is over when its children are. Its failure stops them."""
        job.is_done, job.own, job.state = True, own, BLOCKED
        if job.bonds.done_by == "worker":
            job.waits, job.is_parked = None, False
        why = {"failed": "failed", "cancelled": "cancel"}.get(own)
        job.stopping = job.stopping or why
        if job.stopping is None:
            for kid in self.children(job.id):
                if kid.bonds.optional and kid.bonds.done_by == "call" and not kid.is_over:
                    self.met["event dropped"] += 1
                    self._stop(kid, "stopped", now)
        if not self.is_open(job.id) and (job.waits is None or job.stopping is not None):
            self._finish(job)
        return job.state

    def _stop(self, job: Kin, why: str, now: datetime, *, spares: bool = True) -> None:
        """No new work of it begins, nor of its children unless they are spared."""
        self.met[f"stop {why}"] += 1
        job.stopping, job.spares = why, spares
        if job.state is RUNNING:
            job.cancel_requested = True
            return
        job.state, job.is_done, job.own = BLOCKED, True, job.own or "cancelled"
        job.waits, job.is_parked = None, False

    def _is_stopped_by(self, parent: Kin, child: Kin) -> bool:
        is_spared = parent.spares and child.bonds.when != "success"
        return parent.stopping is not None and not is_spared

    def _come_to_rest(self, now: datetime) -> None:
        while any(self._change(job, now) for job in self.jobs.values() if not job.is_over):
            pass

    def _change(self, job: Kin, now: datetime) -> bool:
        """One consequence for a job that is not over; False when there is none."""
        above = self._parent(job)
        if above is not None and not above.is_over and self._is_stopped_by(above, job):
            if job.stopping is None:
                self._stop(job, "stopped", now, spares=above.spares)
                return True
            if job.spares and not above.spares:
                job.spares = False
                return True
        if job.has_new_failure:
            job.has_new_failure = False
            if job.bonds.fail_fast and job.stopping is None and self._is_too_much(job):
                self._stop(job, "fail_fast", now)
            return True
        if job.state is BLOCKED and job.waits is not None and job.stopping is None and self._let_go(job, now):
            return True
        is_waiting = job.waits is not None and job.stopping is None
        if job.state is BLOCKED and job.is_done and not is_waiting and not self.is_open(job.id):
            self._finish(job)
            return True
        return False

    def _let_go(self, job: Kin, now: datetime) -> bool:
        """Release or skip a job by what it waits for; False when it waits on."""
        others = [self.jobs[name] for name in job.waits or () if not self.jobs[name].is_gone]
        over = [other for other in others if other.is_over]
        is_all = len(over) == len(others)
        when = "over" if job.is_parked else job.bonds.when
        is_bad = any(not other.is_success for other in over)
        if (when == "success" and is_bad) or (when == "failure" and is_all and not is_bad):
            self._stop(job, "skipped", now)
            return True
        if not is_all:
            return False
        self.met["resumed" if job.is_parked else f"released {when}"] += 1
        job.waits, job.is_parked = None, False
        if job.bonds.done_by == "worker" and not job.is_done:
            job.state = READY
        return True

    def _is_too_much(self, job: Kin) -> bool:
        return job.bonds.tolerate is not None and self.counts(job.id)[2] > job.bonds.tolerate

    def _finish(self, job: Kin) -> None:
        """The verdict."""
        total, _, failed, _, _ = self.counts(job.id)
        kinds = {"stopped": "stopped", "skipped": "skipped"}
        if job.stopping == "cancel" or job.stopping in kinds:
            job.state, job.kind = CANCELLED, kinds.get(job.stopping, job.kind)
        elif job.stopping == "deadline":
            job.state, job.kind = FAILED, "timeout"
        elif job.own == "failed":
            job.state = FAILED
        elif self._is_too_much(job):
            job.state, job.kind = FAILED, "child_failed"
            job.error = f"{failed} of {total} children failed: "
        else:
            job.state = CANCELLED if job.own == "cancelled" else COMPLETED
        parent = self._parent(job)
        if parent is not None and job.state is FAILED and not job.bonds.optional:
            parent.has_new_failure = True
        self.met[f"verdict {job.stopping or job.own} {job.state}{' parent' if total else ''}"] += 1
