"""The stored jobs and everything that finds them: by id, by state, by key, by time, by idempotency key.

`put` is the only way in and `drop` the only way out, so no index can disagree with a record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from taskharbor.drivers.lifecycle import NO_JOBS, JobsOfKey
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import IDEMPOTENCY_WINDOW
from taskharbor.model.state import TERMINAL, JobState

if TYPE_CHECKING:
    from taskharbor.drivers.memory.families import FamilyIndex

Ready = tuple[int, datetime, int, str]  # (−priority, eligible_at, seq, id): the order of claims
Timed = tuple[datetime, int, str]  # (instant, seq, id)
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
Key = tuple[str, bytes]  # (queue, idempotency key)
AFTER_ALL = 1 << 62  # above every seq: (t, AFTER_ALL) bounds all entries of instant t

_Item = TypeVar("_Item", bound=Any)
_CHUNK = 512


class Records:
    """Every job of one store."""

    families: FamilyIndex

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.aliases: dict[str, str] = {}
        self.copies: dict[str, tuple[str, int]] = {}  # original → its last copy, and the fence that got it
        self.ready: dict[tuple[str, str], dict[str, Ordered[Ready]]] = defaultdict(
            dict
        )  # (queue, lane) → type
        self.later: dict[str, Ordered[Timed]] = defaultdict(Ordered)  # queue → by run_at
        self.leases: dict[str, Ordered[Timed]] = defaultdict(Ordered)  # queue → by expiry
        self.finished: dict[tuple[str, JobState], Ordered[Timed]] = defaultdict(Ordered)
        self.listed: dict[tuple[str, JobState], Ordered[tuple[int, str]]] = defaultdict(Ordered)
        self.ended_children: dict[tuple[str, JobState], Ordered[Timed]] = defaultdict(Ordered)
        self._keys: dict[tuple[str, bytes], list[str | None]] = {}  # the ids of a JobsOfKey
        self._aliases_of: dict[str, list[str]] = {}
        self._seq = 0
        self._woken: set[str] = set()

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    # ------------------------------------------------------------------ looking

    def get(self, job_id: str) -> JobRecord | None:
        return self.jobs.get(job_id)

    def find(self, job_id: str) -> JobRecord | None:
        return self.jobs.get(self.aliases.get(job_id, job_id))

    def jobs_of_key(self, queue: str, key: bytes) -> JobsOfKey:
        of_key = self._keys.get((queue, key))
        return NO_JOBS if of_key is None else JobsOfKey(*of_key)

    def copy_of(self, job: JobRecord) -> JobRecord | None:
        copy_id, _ = self.copies.get(job.id, ("", 0))
        copy = self.jobs.get(copy_id)
        return None if copy is None or copy.state in TERMINAL else copy

    def run_had_copy(self, job: JobRecord) -> bool:
        return job.id in self.copies and self.copies[job.id][1] == job.fence

    def queues(self) -> set[str]:
        return {queue for (queue, _), listed in self.listed.items() if listed}

    def counts(self, queue: str) -> Counter[JobState]:
        return Counter(
            {state: len(self.listed[queue, state]) for state in JobState if (queue, state) in self.listed}
        )

    def oldest_ready_at(self, queue: str) -> datetime | None:
        """Since when the longest waiting ready job could run; a look at the head of each priority."""
        heads: list[datetime] = []
        for (name, _), by_type in self.ready.items():
            for entries in by_type.values() if name == queue else ():
                entry = entries.first()
                while entry is not None:
                    heads.append(entry[1])
                    entry = next(entries.above((entry[0], _END_OF_TIME)), None)
        return min(heads, default=None)

    # ------------------------------------------------------------------ writing

    def add_copy(self, copy: JobRecord, original: JobRecord) -> None:
        self.copies[original.id] = copy.id, original.fence
        self.put(copy)

    def put(self, job: JobRecord) -> None:
        """Store a record in place of what was there under its id."""
        before = self.jobs.get(job.id)
        if before is not None:
            self._unindex(before)
        self.jobs[job.id] = job
        self._index(job)
        if job.state is JobState.READY:
            self._woken.add(job.queue)

    def take_woken(self) -> set[str]:
        """The queues where a job became ready since the last time this was asked."""
        woken, self._woken = self._woken, set()
        return woken

    def drop(self, job: JobRecord) -> None:
        """Forget a job and the aliases that led to it."""
        stored = self.jobs.pop(job.id)
        self._unindex(stored)
        if stored.bonds is not None or stored.family is not None:
            self.families.forget(stored)
        for alias in self._aliases_of.pop(job.id, ()):
            self.aliases.pop(alias, None)
        self.copies.pop(job.id, None)

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        """Forget a record and let its id lead to another job."""
        self._unindex(self.jobs.pop(job.id))
        self.alias(job.id, target)

    def alias(self, job_id: str, target: JobRecord) -> None:
        """Let an id and its own aliases lead to another job."""
        followers = self._aliases_of.setdefault(target.id, [])
        followers += [job_id, *self._aliases_of.pop(job_id, ())]
        for follower in followers:
            self.aliases[follower] = target.id

    # ------------------------------------------------------------------ indexes

    def _index(self, job: JobRecord) -> None:
        state = job.state
        if state is JobState.READY:
            types = self.ready[job.queue, job.requires]
            heap = types.get(job.type)
            if heap is None:
                heap = types[job.type] = Ordered()
            heap.add((-job.priority, job.eligible_at, job.seq, job.id))
        elif timed := self._timed(job):
            timed[0].add(timed[1])
        if job.key is not None:
            self._enter_key(job)
        elif job.bonds is not None:
            self.families.enter(job)
        if job.speculates_on is None:
            self.listed[job.queue, state].add((job.seq, job.id))

    def _unindex(self, job: JobRecord) -> None:
        state = job.state
        if state is JobState.READY:
            types = self.ready[job.queue, job.requires]
            heap = types[job.type]
            heap.remove((-job.priority, job.eligible_at, job.seq, job.id))
            if not heap:
                del types[job.type]
        elif timed := self._timed(job):
            timed[0].remove(timed[1])
        if job.key is not None:
            self._leave_key(job)
        elif job.bonds is not None:
            self.families.leave(job)
        if job.speculates_on is None:
            self.listed[job.queue, state].remove((job.seq, job.id))

    def _timed(self, job: JobRecord) -> tuple[Ordered[Timed], Timed] | None:
        """The index that holds the job by an instant, and its entry there."""
        if job.state is JobState.RUNNING and job.lease_expires_at is not None:
            return self.leases[job.queue], (job.lease_expires_at, job.seq, job.id)
        if job.state is JobState.SCHEDULED and job.run_at is not None:
            return self.later[job.queue], (job.run_at, job.seq, job.id)
        if job.finished_at is not None:
            is_child = job.bonds is not None and job.bonds.parent is not None
            over = self.ended_children if is_child else self.finished
            return over[job.queue, job.state], (job.finished_at, job.seq, job.id)
        return None

    def _enter_key(self, job: JobRecord) -> None:
        if job.key is not None and (place := _PLACE_IN_KEY.get(job.state)) is not None:
            self._keys.setdefault((job.queue, job.key), [None, None, None])[place] = job.id

    def _leave_key(self, job: JobRecord) -> None:
        if job.key is None or (place := _PLACE_IN_KEY.get(job.state)) is None:
            return
        of_key = self._keys[job.queue, job.key]
        of_key[place] = None
        if not any(of_key):
            del self._keys[job.queue, job.key]


_PLACE_IN_KEY = {
    JobState.READY: 0,
    JobState.SCHEDULED: 0,
    JobState.RUNNING: 1,
    JobState.BLOCKED: 2,
}  # as in JobsOfKey


class Idempotency:
    """Which job a (queue, idempotency key) leads to, until 24 hours after that job's end.

    The mapping outlives the job it points to.
    """

    def __init__(self) -> None:
        self._job_of: dict[Key, str] = {}
        self._keys_of: dict[str, list[Key]] = {}
        self._ends: dict[Key, datetime] = {}
        self._by_end: Ordered[tuple[datetime, Key]] = Ordered()

    def job_of(self, queue: str, key: bytes, now: datetime) -> str | None:
        """The first job of this key, while the key is remembered."""
        ends_at = self._ends.get((queue, key))
        if ends_at is not None and ends_at <= now:
            return None
        return self._job_of.get((queue, key))

    def remember(self, job: NewJob, job_id: str) -> None:
        if job.idempotency_key is not None:
            key = (job.queue, job.idempotency_key)
            self._forget(key)
            self._job_of[key] = job_id
            self._keys_of.setdefault(job_id, []).append(key)

    def move(self, job_id: str, target: str) -> None:
        """The keys of a job that was merged into another one live as long as that one."""
        for key in self._keys_of.pop(job_id, ()):
            self._job_of[key] = target
            self._keys_of.setdefault(target, []).append(key)

    def end(self, job_id: str, now: datetime) -> None:
        """The job is over: its keys are remembered for a while."""
        for key in self._keys_of.get(job_id, ()):
            self._stop(key)
            self._ends[key] = now + IDEMPOTENCY_WINDOW
            self._by_end.add((self._ends[key], key))

    def revive(self, job_id: str, now: datetime) -> None:
        """The job was requeued: keys still remembered hold until its next end; the others stay forgotten."""
        for key in list(self._keys_of.get(job_id, ())):
            if self._ends.get(key, now) > now:
                self._stop(key)
            else:
                self._forget(key)

    def prune(self, limit: int, now: datetime) -> int:
        pruned = 0
        while pruned < limit and (first := self._by_end.first()) is not None and first[0] <= now:
            self._forget(first[1])
            pruned += 1
        return pruned

    def _forget(self, key: Key) -> None:
        self._stop(key)
        job_id = self._job_of.pop(key, None)
        if job_id is not None:
            keys = self._keys_of.get(job_id, [])
            if key in keys:
                keys.remove(key)
            if not keys:
                self._keys_of.pop(job_id, None)

    def _stop(self, key: Key) -> None:
        if (ends_at := self._ends.pop(key, None)) is not None:
            self._by_end.remove((ends_at, key))


class Ordered(Generic[_Item]):
    """A sorted collection: items in order, each at most once.

    It is kept in chunks, so every operation is close to O(log n): a binary search over the chunks, one
    inside a chunk, and a short move of memory.
    """

    __slots__ = ("_chunks", "_lasts", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[_Item]] = []
        self._lasts: list[_Item] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, item: _Item) -> None:
        self._size += 1
        lasts = self._lasts
        if not lasts:
            self._chunks.append([item])
            lasts.append(item)
            return
        if item > lasts[-1]:  # nearly always: time and numbers grow
            at = -1
            self._chunks[-1].append(item)
            lasts[-1] = item
        else:
            at = bisect_left(lasts, item)
            insort(self._chunks[at], item)
        if len(self._chunks[at]) > 2 * _CHUNK:
            self._split(at % len(self._chunks))

    def remove(self, item: _Item) -> None:
        """Take out an item that is there."""
        at = bisect_left(self._lasts, item)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, item)]
        self._size -= 1
        if not chunk:
            del self._chunks[at], self._lasts[at]
        elif self._lasts[at] == item:
            self._lasts[at] = chunk[-1]

    def discard(self, item: _Item) -> None:
        """Take out an item if it is there."""
        at = bisect_left(self._lasts, item)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            place = bisect_left(chunk, item)
            if place < len(chunk) and chunk[place] == item:
                self.remove(item)

    def first(self) -> _Item | None:
        return self._chunks[0][0] if self._chunks else None

    def count_to(self, bound: Any) -> int:
        """How many items are not above `bound`."""
        at = bisect_right(self._lasts, bound)
        whole = sum(map(len, self._chunks[:at]))
        return whole + (bisect_right(self._chunks[at], bound) if at < len(self._chunks) else 0)

    def __iter__(self) -> Iterator[_Item]:
        for chunk in self._chunks:
            yield from chunk

    def above(self, bound: Any) -> Iterator[_Item]:
        """The items above `bound`, in order."""
        at = bisect_right(self._lasts, bound)
        if at < len(self._chunks):
            yield from self._chunks[at][bisect_right(self._chunks[at], bound) :]
            for chunk in self._chunks[at + 1 :]:
                yield from chunk

    def below(self, bound: Any) -> Iterator[_Item]:
        """The items below `bound`, from the highest down."""
        at = bisect_left(self._lasts, bound)
        if at < len(self._chunks):
            yield from reversed(self._chunks[at][: bisect_left(self._chunks[at], bound)])
        for chunk in reversed(self._chunks[:at]):
            yield from reversed(chunk)

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        self._chunks[at : at + 1] = [chunk[:_CHUNK], chunk[_CHUNK:]]
        self._lasts[at : at + 1] = [chunk[_CHUNK - 1], chunk[-1]]
