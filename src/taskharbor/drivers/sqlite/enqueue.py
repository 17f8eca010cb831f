"""Jobs in, any mixture, by sets: look up keys, store bodies, line them up."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from taskharbor.drivers.lifecycle import admit, enqueue_one
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import Records
from taskharbor.drivers.sqlite.rows import json_array, micros_or_none, options_of_new
from taskharbor.drivers.sqlite.step import ALIASES, IDEMPOTENCY, SIZES, Step
from taskharbor.errors import RateLimited
from taskharbor.model.job import NewJob
from taskharbor.model.state import JobState
from taskharbor.model.transitions import new_record, starting_at

RunAts = list[int | None]


def enqueue(step: Step, jobs: Sequence[NewJob]) -> list[Enqueued] | RateLimited:
    """Every job of one call, in list order; or why none was stored."""
    if step.rules and gates.limits_enqueues(step):
        refusal = gates.admit(step, admit(Records(step), jobs))
        if refusal is not None:
            return refusal
    if not any(job.key is not None or job.idempotency_key is not None for job in jobs):
        return _Batch(step, jobs).store()
    return [answer for part in _parts(jobs) for answer in _Batch(step, part).store()]


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Cut where an id, a key or an idempotency key comes a second time: there the order decides."""
    start = 0
    seen: set[tuple[object, ...]] = set()
    ids_differ = len({job.id for job in jobs}) == len(jobs)
    for place, job in enumerate(jobs):
        if ids_differ and job.key is None is job.idempotency_key:
            continue
        names: list[tuple[object, ...]] = [(job.id,)]
        if job.key is not None:
            names.append((job.queue, job.key))
        if job.idempotency_key is not None:
            names.append((job.queue, job.idempotency_key, "idempotency"))
        if not seen.isdisjoint(names):
            yield jobs[start:place]
            start = place
            seen.clear()
        seen.update(names)
    yield jobs[start:]


class _Batch:
    """Jobs of which no two share a key or an idempotency key. Two may share an id if none has either."""

    def __init__(self, step: Step, jobs: Sequence[NewJob]) -> None:
        self._step = step
        self._jobs = jobs
        self._has_keys = any(job.key is not None for job in jobs)
        self._remembered = [place for place, job in enumerate(jobs) if job.idempotency_key is not None]
        self._met: set[int] = set()  # places in the list of jobs that meet a stored one
        self._blocked: set[int] = set()  # places of jobs whose key is held by a running one

    def store(self) -> list[Enqueued]:
        """New jobs by sets. Those that meet a stored one are handled one by one, in list order."""
        if self._remembered:
            self._met |= self._known_keys()
        if self._step.has(ALIASES):
            self._met |= self._known_ids()
        if not self._store_fresh():
            self._met |= self._known_ids()
            if not self._store_fresh():  # none is known any more: an id comes twice
                self._met.update(range(len(self._jobs)))
        return self._answers()

    def _answers(self) -> list[Enqueued]:
        now, created, blocked = self._step.now, EnqueueResult.CREATED, EnqueueResult.BLOCKED
        if not self._met and not self._blocked:
            return [Enqueued(job.id, created, now, 1) for job in self._jobs]
        records = Records(self._step)
        return [
            enqueue_one(records, job)
            if place in self._met
            else Enqueued(job.id, blocked if place in self._blocked else created, now, 1)
            for place, job in enumerate(self._jobs)
        ]

    def _known_ids(self) -> set[int]:
        """Places of jobs whose id has a record or an alias."""
        rows = self._step.fetch_all("enqueue_known", ids=json_array([job.id for job in self._jobs]))
        known = {job_id for (job_id,) in rows}
        return {place for place, job in enumerate(self._jobs) if job.id in known}

    def _known_keys(self) -> set[int]:
        """Places of jobs whose idempotency key has a job that has not ended, or ended not long ago."""
        jobs, us = self._jobs, self._step.us
        names = [(jobs[place].queue, jobs[place].idempotency_key) for place in self._remembered]
        values = [value for name in names for value in (us, *name)]
        cursors = self._step.execute_rows("enqueue_find_idempotency", 3, values)
        known = {name for cursor in cursors for name in cursor}
        return {place for place, name in zip(self._remembered, names, strict=True) if name in known}

    # ------------------------------------------------------------------ new jobs

    def _store_fresh(self) -> bool:
        """Store the new jobs; False, and nothing is stored, when the id of one is known."""
        step, met = self._step, self._met
        places: Sequence[int] = range(len(self._jobs))
        fresh = self._jobs
        if met:
            places = [place for place in places if place not in met]
            fresh = [self._jobs[place] for place in places]
        if not fresh:
            return True
        first = step.take_seqs(len(fresh))
        run_ats = _run_ats(fresh, step.now)
        if not self._store_bodies(fresh, first, run_ats):
            step.return_seqs(first)
            return False
        bounds = {"first": first, "last": first + len(fresh) - 1}
        hidden = self._take_keys(places, first, bounds) if self._has_keys else {}
        step.execute("enqueue_waiting", now=step.us, hidden=json_array(hidden) if hidden else None, **bounds)
        if self._remembered:
            step.execute("enqueue_remember", **bounds)
            step.add_sign(IDEMPOTENCY)
        self._count(fresh, first, run_ats, hidden)
        return True

    def _take_keys(self, places: Sequence[int], first: int, bounds: dict[str, int]) -> dict[int, bool]:
        """Take the keys of new jobs. The seqs of those that found theirs taken, and whether they are blocked;
        the others are absorbed by the job that is there.
        """
        step = self._step
        count = sum(self._jobs[place].key is not None for place in places)
        if step.execute("enqueue_keys", **bounds).rowcount == count:
            return {}
        hidden: dict[int, bool] = {}
        for seq, holder, is_lost, is_running, blocked in step.fetch_all("enqueue_keys_taken", **bounds):
            place = places[seq - first]
            job = self._jobs[place]
            if blocked is None and is_lost:
                step.execute("key_free", seq=holder)
                step.execute("key_hold", queue=job.queue, key=job.key, seq=seq)
            elif blocked is None and is_running:
                hidden[seq] = True
                self._blocked.add(place)
                step.execute("key_block", queue=job.queue, key=job.key, next=seq)
                Records(step).put_state(new_record(job, seq, step.now, blocked=True))
            else:
                hidden[seq] = False
                self._met.add(place)
                step.execute("drop_job", seqs=json_array([seq]))
        return hidden

    def _store_bodies(self, fresh: Sequence[NewJob], first: int, run_ats: RunAts) -> bool:
        self._step.write_rows()
        execute = self._step.connection.execute
        is_one = len(fresh) in SIZES  # one statement stores nothing when it fails
        if not is_one:
            execute("savepoint enqueue")
        try:
            self._insert_bodies(fresh, first, run_ats)
        except sqlite3.IntegrityError:
            if not is_one:
                execute("rollback to enqueue")
                execute("release enqueue")
            return False
        if not is_one:
            execute("release enqueue")
        return True

    def _insert_bodies(self, fresh: Sequence[NewJob], first: int, run_ats: RunAts) -> None:
        """What all jobs share is bound once: each value of a row costs as much as a tenth of the row."""
        step = self._step
        shared: list[Any] = [first, step.us]
        columns: list[list[Any]] = [
            list(range(len(fresh))),
            [job.id for job in fresh],
            [job.payload for job in fresh],
        ]
        own = 0
        for place, values in enumerate(self._columns(fresh, run_ats)):
            if values.count(values[0]) == len(values):
                shared.append(values[0])
            else:
                columns.append(values)
                own |= 1 << place
        rows = list(chain.from_iterable(zip(*columns, strict=True)))
        step.execute_bodies(own, rows, shared)

    def _columns(self, fresh: Sequence[NewJob], run_ats: RunAts) -> Iterator[list[Any]]:
        """The columns of a body that many jobs mostly share, in the order of step.SHARED."""
        none = [None] * len(fresh)
        yield [job.queue for job in fresh]
        yield [job.type for job in fresh]
        yield [job.requires for job in fresh]
        yield [job.priority for job in fresh]
        yield [options_of_new(job) for job in fresh]
        yield run_ats or none
        yield [job.key for job in fresh] if self._has_keys else none
        yield [job.idempotency_key for job in fresh] if self._remembered else none

    def _count(self, fresh: Sequence[NewJob], first: int, run_ats: RunAts, hidden: dict[int, bool]) -> None:
        """All are ready, but for those that are scheduled, blocked or absorbed."""
        step = self._step
        seqs: dict[str, Collection[int]] = {fresh[0].queue: range(first, first + len(fresh))}
        if any(job.queue != fresh[0].queue for job in fresh):
            by_queue: dict[str, list[int]] = {}
            for seq, job in enumerate(fresh, first):
                by_queue.setdefault(job.queue, []).append(seq)
            seqs = dict(by_queue)
        others: dict[int, JobState | None] = {}
        for seq, run_at in enumerate(run_ats, first):
            if run_at is not None and run_at > step.us:
                others[seq] = JobState.SCHEDULED
            elif run_at is not None:
                step.has_timed = True
        for seq, is_blocked in hidden.items():
            others[seq] = JobState.BLOCKED if is_blocked else None
        left = Counter(fresh[seq - first].queue for seq in others)
        for queue, mine in seqs.items():
            step.count_seqs(queue, mine, JobState.READY)
            if len(mine) > left[queue]:
                step.notices.queues.add(queue)
        for seq, state in others.items():
            queue = fresh[seq - first].queue
            step.count(queue, seq, JobState.READY, -1)
            if state is not None:
                step.count(queue, seq, state, +1)


def _run_ats(fresh: Sequence[NewJob], now: datetime) -> RunAts:
    """The run_at of each job; empty when none has one."""
    if all(job.run_at is job.delay is None for job in fresh):  # type: ignore[comparison-overlap]
        return []
    # Jobs of one call mostly share their delay.
    known: dict[tuple[datetime | None, timedelta | None], int | None] = {}
    run_ats = []
    for job in fresh:
        when = (job.run_at, job.delay)
        if when not in known:
            known[when] = micros_or_none(starting_at(*when, now))
        run_ats.append(known[when])
    return run_ats
