"""Jobs in: many plain ones with a few statements, the others one by one."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import Records, json_text
from taskharbor.drivers.sqlite.rows import micros_or_none, traits_of_new, traits_with_headers
from taskharbor.drivers.sqlite.statements import SIZES
from taskharbor.drivers.sqlite.step import Step, blocks_of
from taskharbor.errors import RateLimited
from taskharbor.model.clock import micros
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.state import JobState
from taskharbor.model.transitions import absorb, new_record, starting_at

_CREATED = EnqueueResult.CREATED

Shape = tuple[str, str, str, int, datetime | None, str | None]
"""queue, type, requires, priority, run_at, traits: what the jobs of one statement share."""
Groups = dict[Shape, list[Any]]
"""Per shape the (place, id, payload) of its jobs, flat."""


def enqueue(step: Step, jobs: Sequence[NewJob]) -> list[Enqueued] | RateLimited:
    """Every job of one call, in list order; or what stands against it."""
    if gates.limits_enqueues(step) and (refusal := gates.admit(step, _arriving(step, jobs))):
        return refusal
    answers = _all_new(step, jobs)
    if answers is not None:
        return answers
    records = Records(step)
    return [_one(step, records, job) for job in jobs]


# ------------------------------------------------------------------ many at once


def _all_new(step: Step, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
    """Store jobs without keys, or None and nothing stored when one has a key or a known id."""
    groups = _alike(jobs, step.now)
    if groups is None:
        return None
    if step.one("enqueue_any_alias") is not None and step.one(
        "get_alias", ids=json_text([j.id for j in jobs])
    ):
        return None
    execute = step.connection.execute
    is_one = len(groups) == 1 and len(jobs) in SIZES  # one statement stores nothing when it fails
    if not is_one:
        execute("savepoint enqueue")
    try:
        _store(step, groups, step.take_seqs(len(jobs)), len(jobs))
    except sqlite3.IntegrityError:
        if not is_one:
            execute("rollback to enqueue")
            execute("release enqueue")
        step.seqs_undone()
        return None
    if not is_one:
        execute("release enqueue")
    now = step.now
    return [Enqueued(job.id, _CREATED, now, 1) for job in jobs]


def _store(step: Step, groups: Groups, first: int, count: int) -> None:
    for (queue, type_, requires, priority, run_at, traits), rows in groups.items():
        at = micros_or_none(run_at)
        _store_bodies(step, [first, queue, type_, requires, priority, step.us, at, traits], rows)
    _line_up(step, groups, first, count)
    for (queue, *_, run_at, _), rows in groups.items():
        is_later = run_at is not None and run_at > step.now
        if not is_later:
            step.hints.queues.add(queue)
            step.has_timed |= run_at is not None
        _count(step, queue, first, rows, JobState.SCHEDULED if is_later else JobState.READY)


def _line_up(step: Step, groups: Groups, first: int, count: int) -> None:
    """Jobs that are alike and came one after the other stand in line as one run."""
    bounds = {"first": first, "last": first + count - 1, "now": step.us}
    if any(run_at is not None for *_, run_at, _ in groups):
        step.run("enqueue_later", **bounds)
    ready = {shape: rows for shape, rows in groups.items() if shape[4] is None or shape[4] <= step.now}
    if not all(_is_run(rows) for rows in ready.values()):
        step.run("enqueue_ready", **bounds)
        return
    for (queue, type_, requires, priority, run_at, _), rows in ready.items():
        step.run(
            "put_ready",
            queue=queue,
            lane=requires,
            rank=-priority,
            eligible_at=step.us if run_at is None else micros(run_at),
            seq=first + rows[0],
            last=first + rows[-3],
            timed=run_at is not None,
            flags=0,
            type=type_,
            avoid=None,
        )


def _is_run(rows: list[Any]) -> bool:
    """Whether no other job came between these."""
    return bool(len(rows) // 3 == rows[-3] - rows[0] + 1)


def _alike(jobs: Sequence[NewJob], now: datetime) -> Groups | None:
    """Jobs that differ in id and payload only, together; None when one has a key."""
    groups: Groups = {}
    rows: list[Any] = []
    queue = type_ = requires = timeout = low = high = None
    numbers = (0, 0, 0)
    for place, job in enumerate(jobs):
        # Jobs of one task share these very objects, and comparing objects is cheaper than values.
        if (
            job.queue is not queue
            or job.type is not type_
            or job.requires is not requires
            or job.timeout is not timeout
            or job.min_backoff is not low
            or job.max_backoff is not high
            or (job.priority, job.max_attempts, job.max_stalls) != numbers
            or job.headers
            or job.run_at is not None
            or job.delay is not None
            or job.key is not None
            or job.idempotency_key is not None
        ):
            if job.key is not None or job.idempotency_key is not None:
                return None
            rows = groups.setdefault(_shape(job, now), [])
            queue = job.queue if _is_bare(job) else None
            type_, requires, timeout, low, high = (
                job.type, job.requires, job.timeout, job.min_backoff, job.max_backoff
            )  # fmt: skip
            numbers = (job.priority, job.max_attempts, job.max_stalls)
        rows += (place, job.id, job.payload)
    return groups


def _is_bare(job: NewJob) -> bool:
    return not job.headers and job.run_at is job.delay is job.key is job.idempotency_key is None  # type: ignore[comparison-overlap]


def _shape(job: NewJob, now: datetime) -> Shape:
    traits = traits_with_headers(job) if job.headers else traits_of_new(job)
    run_at = job.run_at if job.delay is None else starting_at(job.run_at, job.delay, now)
    return job.queue, job.type, job.requires, job.priority, run_at, traits


def _store_bodies(step: Step, shared: list[Any], rows: list[Any]) -> None:
    start, end = 0, len(rows)
    for size in SIZES:
        while end - start >= 3 * size:
            step.listed("enqueue_body", size, shared + rows[start : start + 3 * size])
            start += 3 * size


def _count(step: Step, queue: str, first: int, rows: list[Any], state: JobState) -> None:
    if _is_run(rows):
        seqs: Collection[int] = range(first + rows[0], first + rows[-3] + 1)
    else:
        seqs = [first + place for place in rows[::3]]
    for block, count in blocks_of(seqs).items():
        step.count_block(queue, block, state, count)


# ------------------------------------------------------------------ one by one


def _one(step: Step, records: Records, job: NewJob) -> Enqueued:
    known = _known(step, job)
    if known is not None:
        there = records.find(known)
        return Enqueued(
            there.id if there else known, EnqueueResult.DUPLICATE, step.now, there.version if there else 0
        )
    slot = None if job.key is None else records.slot(job.queue, job.key)
    if slot is not None:
        place = slot.blocked if slot.waiting is None else slot.waiting
        if place is not None:
            return _absorbed(step, records, records.by_seq(place), job)
    is_blocked = slot is not None and slot.running is not None
    record = new_record(job, step.take_seqs(1), step.now, blocked=is_blocked)
    records.add(record)
    _remember(step, job, record)
    result = EnqueueResult.BLOCKED if is_blocked else EnqueueResult.CREATED
    return Enqueued(record.id, result, step.now, record.version)


def _absorbed(step: Step, records: Records, there: JobRecord, job: NewJob) -> Enqueued:
    record = absorb(there, job, step.now)
    records.put(there, record)
    records.alias(job.id, record)
    _remember(step, job, record)
    return Enqueued(record.id, EnqueueResult.UPDATED, step.now, record.version)


def _remember(step: Step, job: NewJob, record: JobRecord) -> None:
    if job.idempotency_key is not None:
        step.run("idempotency_remember", queue=job.queue, key=job.idempotency_key, id=record.id)


def _known(step: Step, job: NewJob) -> str | None:
    """The id that already answers for this job: its own, or the one of its idempotency key."""
    ids = json_text([job.id])
    if step.one("get_seq_of", ids=ids) or step.one("get_alias", ids=ids):
        return job.id
    if job.idempotency_key is not None:
        row = step.one("idempotency_find", queue=job.queue, key=job.idempotency_key, now=step.us)
        return None if row is None else str(row[0])
    return None


def _arriving(step: Step, jobs: Sequence[NewJob]) -> Counter[str]:
    """How many of these jobs are new, per queue: duplicates spend no budget."""
    ids: set[str] = set()
    keys: set[tuple[str, bytes]] = set()
    new: Counter[str] = Counter()
    for job in jobs:
        key = None if job.idempotency_key is None else (job.queue, job.idempotency_key)
        if job.id not in ids and key not in keys and _known(step, job) is None:
            new[job.queue] += 1
            ids.add(job.id)
            if key is not None:
                keys.add(key)
    return new
