"""Reading jobs and queues: get, find, count, queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.cursor import Place, cursor_after, ended_states, fits, place_in, place_of
from taskharbor.drivers.messages import Counts, Page, Query, QueueInfo
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.encoding import now_arg, record_of
from taskharbor.drivers.redis.family_fields import fields_in
from taskharbor.drivers.redis.keys import SECTIONS, Keys, ids_in
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.settings_codec import rules_in
from taskharbor.model.clock import instant, micros
from taskharbor.model.entropy import id_bytes
from taskharbor.model.job import JobRecord, without_payload
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.model.state import JobState
from taskharbor.model.transitions import shown

_STATES = (
    "scheduled",
    "ready",
    "blocked",
    "running",
    "completed",
    "failed",
    "cancelled",
)
_LIVE_SIGNS = {JobState.READY: "w", JobState.SCHEDULED: "s", JobState.RUNNING: "r"}


class Queries:
    """The reading verbs of a driver, or of one slot of a cluster."""

    primary: Primary
    keys: Keys
    steps: OptimisticStep
    orphans: Orphans

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._get(ids, now, payloads=True)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        found = await self._get(ids, now, payloads=False)
        return [None if job is None else without_payload(job) for job in found]  # the script leaves the notes

    async def _get(
        self, ids: Sequence[str], now: datetime | None, *, payloads: bool
    ) -> list[JobRecord | None]:
        lean = "" if payloads else "1"
        reply = await self.primary.run(
            "get", [self.keys.data], now_arg(now), lean, *map(id_bytes, ids), writes=False
        )
        at = instant(int(reply[0]))
        return [shown(record_in(parts), at) if parts else None for parts in reply[1:]]

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        queues: Sequence[str] = () if query.queue is None else (query.queue,)
        if not (queues or _is_of_parent(query)):
            queues = await self.steps.queue_names()
        found, last, examined = await self.part_of_page(queues, query, now)
        jobs = found[: query.limit]
        if len(found) > query.limit:
            last = place_in(query, jobs[-1])
        return Page(jobs, None if last is None else cursor_after(query, last), examined)

    async def part_of_page(
        self, queues: Sequence[str], query: Query, now: datetime | None
    ) -> tuple[list[JobRecord], Place | None, int]:
        """The next matching jobs, the place of the last one examined (None: no more), and how many were."""
        keys = [self.keys.data]
        is_of_parent = _is_of_parent(query)
        if is_of_parent:
            keys.append(self.keys.relatives)
        else:
            for queue in queues:
                own = self.keys.queue(queue)
                keys += (own.list, own.leases, own.done)
        sections, signs = _sections(query)
        after = place_of(query)
        is_filtered_here = any((query.worker_id, query.failure_kind, query.parent))
        reply = await self.primary.run(
            "find",
            keys,
            now_arg(now),
            "newest" if query.newest_first else "oldest",
            query.order_by,
            *(("", "") if after is None else (after.seq, after.ended)),
            query.examine,
            query.examine if is_filtered_here else query.limit,
            sections,
            signs,
            "" if query.payloads else "1",
            query.type or "",
            "" if query.ended_after is None else micros(query.ended_after),
            query.key or b"",
            id_bytes(query.parent) if query.parent is not None and is_of_parent else "",
            "1" if self.primary.only_looks else "",
            writes=False,
        )
        at = instant(int(reply[0]))
        self.orphans.note(ids_in(reply[5]))
        found = [shown(record_in(parts), at) for parts in reply[6:]]
        fitting = [replace(job, settled_token=None) for job in found if fits(job, query)]
        last = None if reply[1] == b"1" else Place(int(reply[3]), int(reply[2]))
        return fitting, last, int(reply[4])

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        names = sorted(queues) if queues else await self.steps.queue_names()
        _, rows = await self._numbers(names, now, wants_more=False)
        counted = {name: _counts(row) for name, row in zip(names, rows, strict=True)}
        return counted if queues else {name: counts for name, counts in counted.items() if counts.total}

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        with_jobs = await self.steps.queue_names()
        configured = {name.decode() for name in await self.primary.command("SMEMBERS", self.keys.configured)}
        names = sorted({*with_jobs, *configured})
        _, rows = await self._numbers(names, now, wants_more=True)
        infos = [_queue_info(name, row) for name, row in zip(names, rows, strict=True)]
        return [info for info in infos if info.queue in configured or info.counts.total]

    async def info_of(self, name: str, now: datetime | None) -> QueueInfo:
        _, [row] = await self._numbers([name], now, wants_more=True)
        return _queue_info(name, row)

    async def _numbers(
        self, names: Sequence[str], now: datetime | None, *, wants_more: bool
    ) -> tuple[datetime, list[Any]]:
        keys = [self.keys.data]
        for name in names:
            own = self.keys.queue(name)
            keys += (own.list, own.ready, own.later, own.leases, own.copies)
            keys.append(self.keys.execute_rate if name == EVERY_QUEUE else own.execute_rate)
        reply = await self.primary.run(
            "count", keys, now_arg(now), "1" if wants_more else "", *names, writes=False
        )
        return instant(int(reply[0])), reply[1:]


def record_in(parts: Sequence[Any]) -> JobRecord:
    """A record from what get.lua returns."""
    packed_id, head, body, story, result, progress, key = parts[:7]
    return record_of(
        packed_id,
        head,
        body,
        story=story or None,
        result=result[1:] if result else None,
        progress=progress or None,
        key=key.partition(b"\0")[2] if key else None,
        of_family=fields_in(parts[7]) if len(parts) > 7 else None,
    )


def _is_of_parent(query: Query) -> bool:
    """Whether the children of a job are listed in enqueue order: `relatives` has that, over all queues."""
    return query.parent is not None and query.order_by == "seq"


def _sections(query: Query) -> tuple[str, str]:
    """The sections of `list` to scan, and which live jobs to return; '' for all of them."""
    states = ended_states(query) if query.order_by == "ended" else query.states or tuple(JobState)
    sections = "".join(sorted({str(SECTIONS[state]) for state in states}))
    signs = "".join(sorted({sign for state, sign in _LIVE_SIGNS.items() if state in states}))
    return sections, "" if len(signs) == len(_LIVE_SIGNS) else signs


def _counts(row: Sequence[Any]) -> Counts:
    return Counts(**dict(zip(_STATES, row, strict=False)))


def _queue_info(name: str, row: Sequence[Any]) -> QueueInfo:
    oldest, throttled, packed = row[7:10]
    return QueueInfo(
        queue=name,
        rules=rules_in(packed or None),
        counts=_counts(row),
        oldest_ready_at=instant(int(oldest)) if oldest else None,
        throttled_until=instant(int(throttled)) if throttled else None,
    )
