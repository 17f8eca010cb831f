"""UnitOfWork: one step over several jobs, decided in Python and written in one script call.

It starts from a snapshot of the jobs that the step could touch. The step changes records here, using
the functions of `taskharbor.model.transitions`. `commands` then lists what commit.lua must check (nothing
in the snapshot has changed) and what it must write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from taskharbor.drivers.lifecycle import JobsOfKey
from taskharbor.drivers.redis.encoding import (
    ALIASED,
    COPIED,
    FAMILY,
    KEPT_FLAGS,
    REMEMBERED,
    alias_head,
    alias_in,
    avoid_bytes,
    body_of,
    flags_in,
    head_of,
    progress_bytes,
)
from taskharbor.drivers.redis.keys import (
    Keys,
    QueueKeys,
    done_as,
    entry_of,
    ids_in,
    is_of_child,
    line_of,
    list_score,
    place_of,
)
from taskharbor.drivers.redis.snapshot import (
    Snapshot,
    copy_in,
    jobs_of_key_in,
    keys_in,
    memory_in,
    packed_copy,
    packed_ids,
    packed_jobs_of_key,
    packed_keys,
    packed_memory,
    scoped,
)
from taskharbor.drivers.redis.story import story_of
from taskharbor.model.clock import micros, span_micros
from taskharbor.model.entropy import id_bytes
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, IDEMPOTENCY_WINDOW, NO_RULES, QueueRules
from taskharbor.model.state import JobState
from taskharbor.model.transitions import new_record, waiting_state

_PLACE_IN_KEY = {
    JobState.READY: "waiting",
    JobState.SCHEDULED: "waiting",
    JobState.RUNNING: "running",
    JobState.BLOCKED: "blocked",
}
_GUARDED = (b"h", b"k", b"i", b"c", b"A", b"I")
_INBOX_SECONDS = 3600


class UnitOfWork:
    """Records at one `now`, and the changes to them: the `JobsInStep` of this driver."""

    def __init__(
        self,
        keys: Keys,
        snapshot: Snapshot,
        rules: dict[str, tuple[bytes | None, QueueRules]],
        *,
        only: str | None = None,
    ) -> None:
        """`only`: on a cluster, the queue whose slot this is; None: all queues are in reach."""
        self._only = only
        self._posts: list[NewJob] = []
        self.now: datetime = snapshot.now
        self._keys = keys
        self._snapshot = snapshot
        self._rules = rules
        self.seqs_taken = 0
        self._before = {job_id: snapshot.record(job_id) for job_id in snapshot.jobs()}
        self.jobs: dict[str, JobRecord] = {
            job_id: job for job_id, job in self._before.items() if job is not None
        }
        self._flags = {
            job_id: flags_in(snapshot.fields[b"h" + id_bytes(job_id)]) & KEPT_FLAGS for job_id in self.jobs
        }
        self._touched: dict[str, None] = {}
        self._fields: dict[bytes, bytes | None] = {}  # values that the data hash will have
        self._looked_at: set[bytes] = set()
        self._rules_looked_at: set[str] = set()
        self.cancel_wakeups: list[tuple[str, str]] = []
        self.woken_elsewhere: set[str] = set()
        """Queues of other slots that got a ready job here: their workers wait there."""
        self._ended_keys: dict[bytes, int | None] = {}
        self.rates: list[tuple[str, RateLimit, int]] = []  # enqueue budgets that commit.lua spends

    # ------------------------------------------------------------------ looking

    def field(self, name: bytes) -> bytes | None:
        """A field of the data hash, with the changes of this step. The step then depends on it."""
        self._looked_at.add(name)
        if name in self._fields:
            return self._fields[name]
        return self._snapshot.fields.get(name)

    def get(self, job_id: str) -> JobRecord | None:
        self._looked_at.add(b"h" + id_bytes(job_id))
        return self.jobs.get(job_id)

    def find(self, job_id: str) -> JobRecord | None:
        return self.get(alias_in(self.field(b"h" + id_bytes(job_id))) or job_id)

    def jobs_of_key(self, queue: str, key: bytes) -> JobsOfKey:
        of_key = jobs_of_key_in(self.field(b"k" + scoped(queue, key)) or b"")
        return JobsOfKey(*(job_id if job_id in self.jobs else None for job_id in of_key))

    def copy_of(self, job: JobRecord) -> JobRecord | None:
        """The live speculative copy of a job."""
        if not self._flags.get(job.id, 0) & COPIED:
            return None
        packed = self.field(b"c" + id_bytes(job.id))
        copy = None if packed is None else self.get(copy_in(packed)[0])
        return None if copy is None or copy.state.is_terminal else copy

    def run_had_copy(self, job: JobRecord) -> bool:
        """True if the current run of this job has or had a copy."""
        packed = self.field(b"c" + id_bytes(job.id))
        return packed is not None and copy_in(packed)[1] == job.fence

    def rules(self, queue: str) -> QueueRules:
        self._rules_looked_at.add(queue)
        return self._rules[queue][1] if queue in self._rules else NO_RULES

    def next_seq(self) -> int:
        self.seqs_taken += 1
        return self._snapshot.first_seq + self.seqs_taken - 1

    # ------------------------------------------------------------------ writing

    def put(self, job: JobRecord) -> None:
        """Store a record, replacing the one with the same id."""
        before = self.jobs.get(job.id)
        if before is not None:
            self._leave_key(before)
        self.jobs[job.id] = job
        self._touched[job.id] = None
        self._enter_key(job)

    def drop(self, job: JobRecord) -> None:
        """Delete a job and its aliases."""
        self._leave_key(self.jobs.pop(job.id))
        self._touched[job.id] = None
        packed = id_bytes(job.id)
        for alias in ids_in(self.field(b"A" + packed) or b""):
            self._fields[b"h" + id_bytes(alias)] = None
        for prefix in (b"A", b"I", b"c"):
            if self.field(prefix + packed) is not None:
                self._fields[prefix + packed] = None

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        followers = ids_in(self.field(b"A" + id_bytes(job.id)) or b"")
        keys = self._live_keys(job.id)
        self.drop(job)
        self._alias([job.id, *followers], target.id)
        for name in keys:
            self._fields[b"i" + name] = packed_memory(target.id, 0)
            self._keep_keys(target.id, [*self._keys_of(target.id), name])

    def alias(self, job_id: str, target: JobRecord) -> None:
        self._alias([job_id], target.id)

    def _alias(self, ids: Sequence[str], target: str) -> None:
        packed = id_bytes(target)
        self._fields[b"A" + packed] = (self.field(b"A" + packed) or b"") + packed_ids(ids)
        for alias in ids:
            self._fields[b"h" + id_bytes(alias)] = alias_head(target)
        self._add_flag(target, ALIASED)

    def add_copy(self, copy: JobRecord, original: JobRecord) -> None:
        """The note is kept as long as the original, so that no other leader copies the same run again."""
        self.put(copy)
        self._fields[b"c" + id_bytes(original.id)] = packed_copy(copy.id, original.fence)
        self._add_flag(original.id, COPIED)

    def add_failure_job(self, job: NewJob) -> None:
        """In this step if the queue is in reach, else through the outbox."""
        if self._only in (None, job.queue):
            self.put(new_record(job, self.next_seq(), self.now))
        else:
            self._posts.append(job)

    @property
    def posted(self) -> bool:
        return bool(self._posts)

    def notify_cancel(self, job: JobRecord) -> None:
        if job.worker_id is not None:
            self.cancel_wakeups.append((job.worker_id, job.id))

    def _add_flag(self, job_id: str, flag: int) -> None:
        self._flags[job_id] = self._flags.get(job_id, 0) | flag
        self._touched[job_id] = None

    def _enter_key(self, job: JobRecord) -> None:
        self._write_slot(job, job.id)

    def _leave_key(self, job: JobRecord) -> None:
        self._write_slot(job, None)

    def _write_slot(self, job: JobRecord, job_id: str | None) -> None:
        if job.key is not None and (name := _PLACE_IN_KEY.get(job.state)) is not None:
            of_key = self.jobs_of_key(job.queue, job.key)._replace(**{name: job_id})
            self._fields[b"k" + scoped(job.queue, job.key)] = packed_jobs_of_key(of_key) or None

    # ------------------------------------------------------------------ idempotency keys

    def remembered(self, queue: str, key: bytes) -> str | None:
        """The first job with this idempotency key, while the key is remembered."""
        entry = self.field(b"i" + scoped(queue, key))
        if entry is None:
            return None
        job_id, ends = memory_in(entry)
        is_over = ends <= micros(self.now) if ends else self.find(job_id) is None  # its record is lost
        return None if is_over else job_id

    def remember(self, job: NewJob, record: JobRecord) -> None:
        if job.idempotency_key is None:
            return
        name = scoped(job.queue, job.idempotency_key)
        self._ended_keys[name] = None
        self._fields[b"i" + name] = packed_memory(record.id, 0)
        self._keep_keys(record.id, [*self._keys_of(record.id), name])

    def end_keys(self, job: JobRecord) -> None:
        ends = micros(self.now) + span_micros(IDEMPOTENCY_WINDOW)
        for name in self._live_keys(job.id):
            self._fields[b"i" + name] = packed_memory(job.id, ends)
            self._ended_keys[name] = ends

    def revive_keys(self, job: JobRecord) -> None:
        for name in self._live_keys(job.id):
            is_remembered = self._entry(name)[1] > micros(self.now)
            self._fields[b"i" + name] = packed_memory(job.id, 0) if is_remembered else None
            self._ended_keys[name] = None

    def _live_keys(self, job_id: str) -> list[bytes]:
        """The idempotency keys that still lead to this job."""
        return [name for name in self._keys_of(job_id) if self._entry(name)[0] == job_id]

    def _keys_of(self, job_id: str) -> list[bytes]:
        return keys_in(self.field(b"I" + id_bytes(job_id)) or b"")

    def _keep_keys(self, job_id: str, names: list[bytes]) -> None:
        self._fields[b"I" + id_bytes(job_id)] = packed_keys(list(dict.fromkeys(names)))
        self._add_flag(job_id, REMEMBERED)

    def _entry(self, name: bytes) -> tuple[str, int]:
        entry = self.field(b"i" + name)
        return ("", 0) if entry is None else memory_in(entry)

    # ------------------------------------------------------------------ the call of commit.lua

    @property
    def is_unchanged(self) -> bool:
        return not (self._touched or self._fields or self.cancel_wakeups or self.rates)

    def commands(self) -> tuple[list[str], list[Any]]:
        """The keys and arguments of commit.lua, after the epoch and `now`."""
        writing = Writing(self._keys)
        for job_id in self._touched:
            self._write_job(writing, job_id)
        if self._only is not None:
            self.woken_elsewhere = writing.woken - {self._only}
        for name, value in self._fields.items():
            # The heads of aliases are not in the snapshot, and must be deleted with their job.
            if value is None or value != self._snapshot.fields.get(name):
                writing.set_field(name, value)
        for name, ends in self._ended_keys.items():
            if ends is None:
                writing.add("ZREM", self._keys.idempotency_ends, name)
            else:
                writing.add("ZADD", self._keys.idempotency_ends, ends, name)
        self.write_more(writing)
        for job in self._posts:
            writing.add("RPUSH", self._keys.outbox, msgspec.msgpack.encode(job))
        for worker, job_id in self.cancel_wakeups if self._only is None else ():
            writing.add("RPUSH", self._keys.inbox(worker), job_id)
            writing.add("EXPIRE", self._keys.inbox(worker), _INBOX_SECONDS)
        guards = self._guards(writing.number)
        rates: list[Any] = [len(self.rates)]
        for queue, rate, count in self.rates:
            key = self._keys.enqueue_rate if queue == EVERY_QUEUE else self._keys.queue(queue).enqueue_rate
            rates += [writing.number(key), rate.count, rate.per_us, count]
        return writing.keys, [*guards, *rates, *writing.arguments()]

    def write_more(self, writing: Writing) -> None:
        """What a unit with families writes besides."""

    def guarded_names(self) -> set[bytes]:
        """The fields that must not have changed."""
        return {name for name in self._snapshot.fields if name[:1] in _GUARDED} | self._looked_at

    def more_guards(self, number: Callable[[str], int]) -> list[Any]:
        """Further guards: key, field, what is expected."""
        return []

    def parts_of(self, job: JobRecord | None) -> dict[bytes, bytes | None]:
        """The hash fields of a job that follow from its record; the head is added in `_write_job`."""
        return _parts(job)

    def _guards(self, number: Callable[[str], int]) -> list[Any]:
        fields = self._snapshot.fields
        guards = self.more_guards(number)
        for name in self.guarded_names():
            value = fields.get(name)
            guards += [number(self._keys.data), name, b"" if value is None else b"v" + value]
        for queue in self._rules_looked_at:
            value = self._rules[queue][0] if queue in self._rules else None
            guards += [number(self._keys.data), f"R{queue}", b"" if value is None else b"v" + value]
        return [len(guards) // 3, *guards]

    def _write_job(self, writing: Writing, job_id: str) -> None:
        before, after = self._before.get(job_id), self.jobs.get(job_id)
        job = after or before
        if job is None:
            return  # created and deleted in the same step
        keys = self._keys.queue(job.queue)
        old = _places(before, self.now) if before is not None else {}
        new = _places(after, self.now) if after is not None else {}
        for place in old.keys() - new.keys():
            writing.leave(keys, place)
        for place in new.keys() - old.keys():
            writing.enter(job.queue, keys, place, new[place])
        if before is None:
            writing.list_queue(self._keys.queues, job.queue)
        packed = id_bytes(job_id)
        had, has = self.parts_of(before), self.parts_of(after)
        stored = b"" if before is None else self._snapshot.fields[b"h" + packed]
        if before is not None:
            had[b"h"] = stored
        if after is not None:
            had_fields = bool(stored and stored[0] & FAMILY)
            has[b"h"] = head_of(after, self._flags.get(job_id, 0), had_fields=had_fields)
        for prefix in had.keys() | has.keys():
            if had.get(prefix) != has.get(prefix):
                writing.set_field(prefix + packed, has.get(prefix))


def _parts(job: JobRecord | None) -> dict[bytes, bytes | None]:
    if job is None:
        return {}
    parts: dict[bytes, bytes | None] = {b"h": b"", b"b": body_of(job)}
    if (story := story_of(job)) is not None:
        parts[b"s"] = story
    if job.result is not None:
        parts[b"r"] = job.result
    if job.progress is not None:
        parts[b"p"] = progress_bytes(job.progress)
    if job.key is not None:
        parts[b"K"] = scoped(job.queue, job.key)
    if job.speculates_on is not None:
        parts[b"o"] = id_bytes(job.speculates_on)
        if job.avoid is not None:
            parts[b"v"] = avoid_bytes(job.avoid)
    return parts


Place = tuple[str, bytes, bytes]  # (which set, its member, the line of a waiting job or its score in `list`)


def _places(job: JobRecord, now: datetime) -> dict[Place, int]:
    """The entries of a job in the sets of its queue, with their scores."""
    places: dict[Place, int] = {}
    if job.speculates_on is None:
        score = list_score(job)
        places["list", place_of(job), b"%d" % score] = score
    elif not job.state.is_terminal:
        places["copies", id_bytes(job.id), b""] = 0
    if job.state in (JobState.READY, JobState.SCHEDULED):
        line = line_of(job.requires, job.type)
        is_later = waiting_state(job.run_at, now) is JobState.SCHEDULED
        places["waiting", entry_of(job), line] = micros(job.eligible_at) if is_later else 0
    elif job.state is JobState.RUNNING and job.lease_expires_at is not None:
        places["leases", place_of(job), b""] = micros(job.lease_expires_at)
    elif job.finished_at is not None:
        places["done", done_as(job), b""] = 0
    return places


class Writing:
    """The writes of a step, with their keys by number."""

    def __init__(self, keys: Keys) -> None:
        self.keys: list[str] = []
        self._data, self._look_from = keys.data, keys.look_from
        self._looks: dict[str, int] = {}  # queues, and from when on a claim must look at them
        self._numbers: dict[str, int] = {}
        self.number(keys.data)
        self._fields: dict[bytes, bytes | None] = {}
        self._writes: list[Any] = []
        self._listed: set[str] = set()
        self.woken: set[str] = set()  # queues that got a ready job

    def number(self, key: str) -> int:
        """The number of a key; `data` is the first."""
        if key not in self._numbers:
            self.keys.append(key)
            self._numbers[key] = len(self.keys)
        return self._numbers[key]

    def add(self, command: str, key: str, *arguments: Any) -> None:
        self._writes += [2 + len(arguments), command, self.number(key), *arguments]

    def list_queue(self, queues: str, queue: str) -> None:
        """A queue that has a job from now on; once is enough."""
        if queue not in self._listed:
            self._listed.add(queue)
            self.add("SADD", queues, queue)
            self.add("HSETNX", self._data, f"Q{queue}", b"")

    def set_field(self, name: bytes, value: bytes | None) -> None:
        self._fields[name] = value

    def enter(self, queue: str, keys: QueueKeys, place: Place, score: int) -> None:
        what, member, line = place
        if what == "copies":
            self.add("SADD", keys.copies, member)
        elif what != "waiting":
            self.add("ZADD", getattr(keys, what), score, member)
            if what == "leases":
                self._look_at(queue, score)
        else:
            self._look_at(queue, score)
            if score:
                self.add("ZADD", keys.later, score, member)
            else:
                self.add("ENTER", keys.ready, queue, member, line)
                self.woken.add(queue)
            self.add("WAKE", keys.wake)

    def _look_at(self, queue: str, score: int) -> None:
        if score < self._looks.get(queue, score + 1):
            self._looks[queue] = score

    def leave(self, keys: QueueKeys, place: Place) -> None:
        what, member, _ = place
        if what == "copies":
            self.add("SREM", keys.copies, member)
        elif what == "done" and is_of_child(member):
            self.add("UNDONE", keys.done, member[:9], member[9:])
        elif what != "waiting":
            self.add("ZREM", getattr(keys, what), member)
        else:
            self.add("LEAVE", keys.ready, self.number(keys.later), member)

    def arguments(self) -> list[Any]:
        arguments: list[Any] = []
        number = self.number(self._data)
        sets = [part for item in self._fields.items() if item[1] is not None for part in item]
        deletes = [name for name, value in self._fields.items() if value is None]
        for command, parts, width in (("HSET", sets, 2), ("HDEL", deletes, 1)):
            step = 2000 - 2000 % width
            for first in range(0, len(parts), step):
                some = parts[first : first + step]
                arguments += [2 + len(some), command, number, *some]
        for queue, score in self._looks.items():
            arguments += [5, "ZADD", self.number(self._look_from), "LT", score, queue]
        return arguments + self._writes
