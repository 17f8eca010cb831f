"""Looking: records by id, page by page, and in numbers. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.cursor import cursor_after, seq_of
from taskharbor.drivers.messages import Counts, Page, Query, QueueInfo
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import Records
from taskharbor.drivers.sqlite.rows import instant_or_none, json_array
from taskharbor.drivers.sqlite.step import BLOCK_BITS, PLACES, Handle, Step
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import NO_RULES
from taskharbor.model.state import JobState

_BLOCKS_PER_PAGE = 64
_BLOCK = 1 << BLOCK_BITS
_AFTER_ALL = 1 << 62
_AFTER_ALL_RANKS = 1 << 62


class Queries(Handle):
    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._read(lambda step: _get(step, ids), now)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._read(lambda step: _get(step, ids, payloads=False), now)

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        return await self._read(lambda step: _find(step, query), now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        return await self._read(lambda step: _count(step, queues), now)

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        return await self._read(_queues, now)


# ------------------------------------------------------------------ by id


def _get(step: Step, ids: Sequence[str], *, payloads: bool = True) -> list[JobRecord | None]:
    """The records of these ids, in this order. An alias gives the job that it leads to."""
    records = Records(step)
    found = {job.id: job for job in records.by_ids(ids, payloads=payloads)}
    missing = [job_id for job_id in ids if job_id not in found]
    if missing:
        aliases: dict[str, int] = dict(step.fetch_all("get_aliases", ids=json_array(missing)))
        seqs = list(set(aliases.values()))
        targets = {job.seq: job for job in records.by_seqs(seqs, payloads=payloads)} if aliases else {}
        found |= {job_id: targets[seq] for job_id, seq in aliases.items() if seq in targets}
    return [None if (job := found.get(job_id)) is None else _without_token(job) for job_id in ids]


def _without_token(job: JobRecord) -> JobRecord:
    return job if job.token is None else replace(job, token=None)


# ------------------------------------------------------------------ page by page


def _find(step: Step, query: Query) -> Page:
    """The next jobs that fit. The counts per block say where to look: what does not fit costs little."""
    after = seq_of(query)
    seqs: list[int] = []
    for low, high in _ranges(step, query, after):
        seqs += _seqs_in(step, query, low, high, query.limit + 1 - len(seqs))
        if len(seqs) > query.limit:
            seqs.pop()
            return Page(_listed(step, seqs, query.payloads), cursor_after(query, seqs[-1]))
        after = low if query.newest_first else high
    is_all = after is None or next(_ranges(step, query, after), None) is None
    return Page(_listed(step, seqs, query.payloads), None if is_all else cursor_after(query, after or 0))


def _listed(step: Step, seqs: list[int], payloads: bool) -> list[JobRecord]:
    jobs = {job.seq: job for job in Records(step).by_seqs(seqs, payloads=payloads)}
    return [replace(jobs[seq], token=None, settled_token=None) for seq in seqs]


def _ranges(step: Step, query: Query, after: int | None) -> Iterator[tuple[int, int]]:
    """Up to 64 ranges of seqs behind the cursor that hold jobs of the queue and states asked for."""
    name = "find_blocks_newest" if query.newest_first else "find_blocks"
    values: dict[str, Any] = dict(zip(PLACES, _wanted(step, query), strict=True))
    if query.queue is None:
        name += "_anywhere"
    else:
        values["queue"] = query.queue
    bottom, top = 0, _AFTER_ALL
    if after is not None:
        bottom, top = (bottom, after - 1) if query.newest_first else (after + 1, top)
    start = (top if query.newest_first else bottom) >> BLOCK_BITS
    for (block,) in step.fetch_all(name, block=start, limit=_BLOCKS_PER_PAGE, **values):
        first = block << BLOCK_BITS
        low, high = max(first, bottom), min(first + _BLOCK - 1, top)
        if low <= high:
            yield low, high


def _wanted(step: Step, query: Query) -> list[bool]:
    """The stored states to look at. A scheduled job may read ready, and after a step back of the clock the
    reverse; only then does one bring the other."""
    asked = set(query.states or JobState)
    if JobState.READY in asked and _is_any_due(step, query):
        asked.add(JobState.SCHEDULED)
    if JobState.SCHEDULED in asked and step.us < step.fetch_one("find_timed_until")[0]:
        asked.add(JobState.READY)
    return [JobState(name) in asked for name in PLACES]


def _is_any_due(step: Step, query: Query) -> bool:
    names = (
        [query.queue] if query.queue is not None else [name for (name,) in step.fetch_all("promote_queues")]
    )
    return step.fetch_one("find_due", queues=json_array(names), now=step.us) is not None


def _seqs_in(step: Step, query: Query, low: int, high: int, limit: int) -> list[int]:
    rows = step.fetch_all(
        "find_newest" if query.newest_first else "find",
        low=low,
        high=high,
        queue=query.queue,
        type=query.type,
        worker=query.worker_id,
        failure_kind=query.failure_kind,
        key=query.key,
        states=None if query.states is None else json_array([state.value for state in query.states]),
        now=step.us,
        limit=limit,
    )
    return [seq for (seq,) in rows]


# ------------------------------------------------------------------ numbers


def _count(step: Step, queues: Sequence[str] | None) -> dict[str, Counts]:
    names = sorted(queues) if queues else [name for (name,) in step.fetch_all("count_queues")]
    return {name: _counts(step, name) for name in names}


def _counts(step: Step, queue: str) -> Counts:
    numbers = dict(zip(PLACES, (number or 0 for number in step.fetch_one("count", queue=queue)), strict=True))
    (due,) = step.fetch_one("count_due", queue=queue, now=step.us)
    numbers["scheduled"] -= due
    numbers["ready"] += due
    return Counts(**numbers)


def _queues(step: Step) -> list[QueueInfo]:
    known = gates.all_rules(step)
    names = {name for (name,) in step.fetch_all("count_queues")} | set(known)
    return [
        QueueInfo(
            queue=name,
            rules=known.get(name, NO_RULES),
            counts=_counts(step, name),
            oldest_ready_at=_oldest_ready_at(step, name),
            throttled_until=instant_or_none(gates.throttled_until_us(step, name)),
        )
        for name in sorted(names)
    ]


def _oldest_ready_at(step: Step, queue: str) -> datetime | None:
    """A look at the head of each lane and priority, and at the first due job."""
    lane, type_, rank = "", "", _AFTER_ALL_RANKS  # lane '' is of scheduled jobs
    (due,) = step.fetch_one("queues_oldest_due", queue=queue, now=step.us)
    heads = [] if due is None else [due]
    while (
        head := step.fetch_one("queues_next_head", queue=queue, lane=lane, type=type_, rank=rank)
    ) is not None:
        lane, type_, rank, eligible_at = head
        heads.append(eligible_at)
    return instant_or_none(min(heads, default=None))
