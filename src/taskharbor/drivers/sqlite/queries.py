"""Looking: records by id, page by page, and in numbers. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from taskharbor.drivers.messages import Counts, Page, Query, QueueInfo
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.families import FamilyRecords
from taskharbor.drivers.sqlite.listing import find
from taskharbor.drivers.sqlite.rows import instant_or_none, json_array
from taskharbor.drivers.sqlite.step import PLACES, Handle, Step
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import NO_RULES

_AFTER_ALL_RANKS = 1 << 62


class Queries(Handle):
    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._read(lambda step: get(step, ids), now)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._read(lambda step: get(step, ids, payloads=False), now)

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        return await self._read(lambda step: find(step, query), now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        return await self._read(lambda step: _count(step, queues), now)

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        return await self._read(_queues, now)


# ------------------------------------------------------------------ by id


def get(step: Step, ids: Sequence[str], *, payloads: bool = True) -> list[JobRecord | None]:
    """The records of these ids, in this order. An alias gives the job that it leads to."""
    records = FamilyRecords(step, shows_notes=payloads)
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


# ------------------------------------------------------------------ numbers


class Arrived(NamedTuple):
    """The jobs of a queue that came one by one and have no place in line yet (enqueue_one.py)."""

    number: int = 0
    oldest: int | None = None


def _arrived(step: Step) -> dict[str, Arrived]:
    return {queue: Arrived(*numbers) for queue, *numbers in step.fetch_all("count_arrived")}


def _count(step: Step, queues: Sequence[str] | None) -> dict[str, Counts]:
    arrived = _arrived(step)
    names = set(queues) if queues else {name for (name,) in step.fetch_all("count_queues")} | set(arrived)
    return {name: _counts(step, name, arrived.get(name, Arrived())) for name in sorted(names)}


def _counts(step: Step, queue: str, arrived: Arrived) -> Counts:
    numbers = dict(zip(PLACES, (number or 0 for number in step.fetch_one("count", queue=queue)), strict=True))
    (due,) = step.fetch_one("count_due", queue=queue, now=step.us)
    numbers["scheduled"] -= due
    numbers["ready"] += due + arrived.number
    return Counts(**numbers)


def _queues(step: Step) -> list[QueueInfo]:
    known, arrived = step.rules, _arrived(step)
    names = {name for (name,) in step.fetch_all("count_queues")} | set(known) | set(arrived)
    return [
        QueueInfo(
            queue=name,
            rules=known.get(name, NO_RULES),
            counts=_counts(step, name, new := arrived.get(name, Arrived())),
            oldest_ready_at=_oldest_ready_at(step, name, new),
            throttled_until=instant_or_none(gates.throttled_until_us(step, name)),
        )
        for name in sorted(names)
    ]


def _oldest_ready_at(step: Step, queue: str, arrived: Arrived) -> datetime | None:
    """A look at the head of each lane and priority, and at the first due job."""
    lane, type_, rank = "", "", _AFTER_ALL_RANKS  # lane '' is of scheduled jobs
    (due,) = step.fetch_one("queues_oldest_due", queue=queue, now=step.us)
    heads = [at for at in (due, arrived.oldest) if at is not None]
    while (
        head := step.fetch_one("queues_next_head", queue=queue, lane=lane, type=type_, rank=rank)
    ) is not None:
        lane, type_, rank, eligible_at = head
        heads.append(eligible_at)
    return instant_or_none(min(heads, default=None))
