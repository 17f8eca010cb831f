"""Queries: records, listings, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.cursor import Place, cursor_after, ended_states, place_in, place_of
from taskharbor.drivers.families import CALL_LIMIT
from taskharbor.drivers.messages import Counts, DriverInfo, Page, Query, QueueInfo
from taskharbor.drivers.postgres.connections import Handle
from taskharbor.drivers.postgres.rows import CODES, notes_of, record_of
from taskharbor.drivers.postgres.schema import function_state
from taskharbor.model.clock import instant, micros
from taskharbor.model.family_steps import parent_of
from taskharbor.model.job import JobRecord
from taskharbor.model.limits import free_at
from taskharbor.model.queue import NO_RULES, QueueRules, QueueSettings, rules_of
from taskharbor.model.state import JobState
from taskharbor.model.transitions import shown

_FIRST_LOOK = 10  # so many more jobs than the page has are looked at first
_LATEST = datetime(2300, 1, 1, tzinfo=UTC)
_FEW = frozenset(
    CODES[state] for state in (JobState.BLOCKED, JobState.RUNNING, JobState.FAILED, JobState.CANCELLED)
)
_WAITING = frozenset((JobState.SCHEDULED, JobState.READY))
_settings = msgspec.json.Decoder(QueueSettings)


class Queries(Handle):
    """The verbs of a driver handle that change nothing."""

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._get(ids, now, payloads=True)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._get(ids, now, payloads=False)

    async def _get(
        self, ids: Sequence[str], now: datetime | None, *, payloads: bool
    ) -> list[JobRecord | None]:
        statement = self._sql.reading("get", payloads)
        rows = await self._connections.rows(statement, list(ids), now, writes=False)
        return found_records(rows, len(ids))

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        """A look at little more than a page; if that does not fill it, one as far as the query allows."""
        first = min(query.limit + _FIRST_LOOK, query.examine)
        name = _way(query)
        page = _page(query, await self._found(name, query, first, now))
        if not _is_done(query, page) and _is_of_waiting(query):
            name = "find_waiting"
            page = _page(query, await self._found(name, query, first, now))
        if _is_done(query, page) or first == query.examine:
            return page
        return _page(query, await self._found(name, query, query.examine, now))

    async def _found(self, name: str, query: Query, examine: int, now: datetime | None) -> Sequence[Any]:
        codes = _codes(query)
        after = place_of(query)
        if after is None:
            after = Place(micros(_LATEST), 1 << 62) if query.newest_first else Place(0, -1)
        asked = (
            *(now, query.queue, codes, after.seq, examine),
            *(query.type, query.key, query.worker_id, query.failure_kind, query.limit + 1, query.ended_after),
        )
        statement = self._sql.directed(name, query.newest_first, query.payloads)
        return await self._connections.rows(statement, *asked, *_more(name, query, after), writes=False)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        rows = await self._rows("count", now, list(queues) if queues else None)
        counted = _counted(rows)
        names = sorted(queues) if queues else sorted(name for name, counts in counted.items() if counts.total)
        return {name: counted.get(name, _NONE) for name in names}

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        rows = await self._rows("count", now, None)
        counted = _counted(rows)
        oldest = {row[0]: row[3] for row in rows if row[1] == JobState.READY}
        rules = {name: rules_of(_settings.decode(text)) for name, text in await self._rows("all_settings")}
        throttled = await self._throttled(rules, now)
        return [
            QueueInfo(
                queue=name,
                rules=rules.get(name, NO_RULES),
                counts=counted.get(name, _NONE),
                oldest_ready_at=oldest.get(name),
                throttled_until=throttled.get(name),
            )
            for name in sorted(counted.keys() | rules.keys())
        ]

    async def _throttled(self, rules: dict[str, QueueRules], now: datetime | None) -> dict[str, datetime]:
        """When each spent execute rate has room again."""
        rates = {name: rule.execute_rate for name, rule in rules.items() if rule.execute_rate is not None}
        if not rates:
            return {}
        entries: dict[str, list[tuple[int, int]]] = {}
        at_us = 0
        for name, at, count, asked_at in await self._rows("rate_usage", now):
            entries.setdefault(name, []).append((micros(at), count))
            at_us = micros(asked_at)
        free = {name: free_at(rate, entries.get(name, ()), at_us) for name, rate in rates.items()}
        return {name: instant(until) for name, until in free.items() if until is not None}

    async def do_info(self) -> DriverInfo:
        [row] = await self._connections.rows(self._sql["info"], writes=False)
        health = await self._connections.rows(self._sql["health"], writes=False)
        texts = await self._connections.rows(self._sql["function_texts"], writes=False)
        number = max((text[2] for text in texts), default=0)
        has_families = (row[4] or "") >= "0003"  # a store that is only looked at may be older
        owed = await self._rows("count_owed", CALL_LIMIT) if has_families else ()
        return DriverInfo(
            driver="postgres",
            store=f"PostgreSQL {row[1]}",
            location=self.address.shown,
            durability="D3" if row[2] == "on" and row[3] != "off" else "D1",
            schema=row[4] or "none",
            at=row[0],
            owed=sum(one[0] for one in owed),
            details={
                "fsync": row[2],
                "synchronous_commit": row[3],
                "pooler": "transaction" if self.address.behind_pooler else "none",
                "functions": function_state({text[0]: text[1] for text in texts}, number),
                **dict(health),
            },
        )

    async def _rows(self, name: str, *arguments: object) -> Sequence[Any]:
        return await self._connections.rows(self._sql[name], *arguments, writes=False)


def found_records(rows: Sequence[Any], count: int) -> list[JobRecord | None]:
    """The answer of the statement `get` to a question for `count` ids."""
    found = {row[-2]: shown(_with_notes(row), row[-1]) for row in rows}
    return [found.get(place) for place in range(1, count + 1)]


def _with_notes(row: Sequence[Any]) -> JobRecord:
    job = record_of(row)
    return job if row[-3] is None else replace(job, notes=notes_of(msgspec.json.decode(row[-3])))


def _codes(query: Query) -> list[int]:
    states = ended_states(query) if query.order_by == "ended" else query.states or JobState
    return sorted(CODES[state] for state in set(states))


def _more(name: str, query: Query, after: Place) -> tuple[object, ...]:
    """The last argument of some ways to find."""
    if name == "find_ended":
        return (instant(after.ended),)
    return (query.parent,) if name == "find_children" else ()


def _is_done(query: Query, page: Page) -> bool:
    return len(page.jobs) == query.limit or page.next_cursor is None


def _is_of_waiting(query: Query) -> bool:
    """The first page of scheduled or ready jobs of one queue: jobs that ended may be before all of them."""
    is_first = query.queue is not None and query.cursor is None and query.order_by == "seq"
    return is_first and query.parent is None and _WAITING.issuperset(query.states or JobState)


def _way(query: Query) -> str:
    """The statement that finds such jobs."""
    if query.order_by == "ended":
        return "find_ended"
    if query.parent is not None:
        return "find_children"
    return "find_few" if _FEW.issuperset(_codes(query)) else "find_walk"


def _page(query: Query, rows: Sequence[Any]) -> Page:
    """The jobs of a page. Every row has how far the search went: a place, or null if it saw all."""
    ended, seq, examined, at = rows[0][-4:]
    jobs = [shown(record_of(row), at) for row in rows if row[0] is not None]
    cursor = None
    if len(jobs) > query.limit:
        jobs = jobs[: query.limit]
        cursor = cursor_after(query, place_in(query, jobs[-1]))
    elif seq is not None:
        cursor = cursor_after(query, Place(0 if ended is None else micros(ended), seq))
    if query.parent is not None:  # by end, the others were found, too
        jobs = [job for job in jobs if parent_of(job) == query.parent]
    return Page(jobs, cursor, examined)


_NONE = Counts()


def _counted(rows: Sequence[Any]) -> dict[str, Counts]:
    numbers: dict[str, dict[str, int]] = {}
    for queue, state, count, _ in rows:
        numbers.setdefault(queue, {})[state] = count
    return {queue: Counts(**of_queue) for queue, of_queue in numbers.items()}
