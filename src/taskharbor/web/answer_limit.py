"""AnswerLimit: jobs with payloads are read in chunks, and one answer has at most so many bytes.

A payload may have a megabyte, so the size of a chunk follows the size of recent jobs. Jobs that do not fit
into an answer are refused (by id), or come with the next page (listings) or the next claim.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.cursor import check_query
from taskharbor.drivers.log_pages import each_entry
from taskharbor.drivers.messages import Claim, Claimed, Exchanged, Page, Query, check_claim
from taskharbor.errors import TaskHarborError
from taskharbor.model.checks import ID_LENGTH, MAX_BATCH, check_count, check_ids
from taskharbor.model.job import JobRecord
from taskharbor.model.logbook import LogEntry
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Release
from taskharbor.web.problems import Problem

_LEAST, _FIRST, _MOST = 8, 16, 128
_MOST_CLAIMED = 256
"""In one step of the store: a worker settles and claims about two hundred short jobs in one call."""
_AROUND = 1024
"""Roughly what a job takes besides its payload, result and history."""
_PER_ATTEMPT = 300
_PER_NOTE = 300
_CELLS = 100
"""Cells of the logbook that are read at a time; each has up to 64 KiB."""
_AT_ONCE = 4
"""Answers with payloads that are built at the same time."""

Shown = Callable[[JobRecord], JobRecord]


class AnswerLimit:
    """Reads jobs in chunks. `budget` is the most bytes of jobs in one answer."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._largest = budget // (2 * _FIRST)
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def get(
        self, driver: Driver, ids: Sequence[str], *, now: datetime | None, shown: Shown | None = None
    ) -> list[JobRecord | None]:
        """The records of these ids; an id that is given twice is read once.

        Raises:
            Problem: `answer-too-large`.
        """
        check_ids(ids)
        times, left = Counter(ids), self.budget
        names, found = list(times), dict[str, JobRecord | None]()
        async with self._places:
            while len(found) < len(names):
                part = names[len(found) : len(found) + self._size(left)]
                for job_id, job in zip(part, await driver.get(part, now=now), strict=True):
                    found[job_id] = seen = None if job is None else self._seen(job, shown)
                    left -= 0 if seen is None else answer_size(seen) * times[job_id]
                if left < 0 and len(ids) > 1:
                    raise _too_much(self.budget)
        return [found[job_id] for job_id in ids]

    async def each(
        self, driver: Driver, ids: Sequence[str], *, now: datetime | None
    ) -> AsyncIterator[tuple[str, JobRecord | None]]:
        """Each job once, in turn: for callers that look at payloads without keeping them."""
        names, at = list(dict.fromkeys(ids)), 0
        while at < len(names):
            part = names[at : at + self._size(self.budget)]
            at += len(part)
            for job_id, job in zip(part, await driver.get(part, now=now), strict=True):
                yield job_id, None if job is None else self._seen(job, None)

    async def find(
        self, driver: Driver, query: Query, *, now: datetime | None, shown: Shown | None = None
    ) -> Page:
        """A page. It may be short and still have a cursor."""
        if not query.payloads:
            return await driver.find(query, now=now)
        check_query(query)
        jobs: list[JobRecord] = []
        cursor, left, examined = query.cursor, self.budget, 0
        async with self._places:
            while True:
                limit = min(query.limit - len(jobs), self._size(left))
                part = replace(query, limit=limit, cursor=cursor, examine=query.examine - examined)
                page = await driver.find(part, now=now)
                some = [self._seen(job, shown) for job in page.jobs]
                jobs += some
                cursor, left = page.next_cursor, left - sum(map(answer_size, some))
                examined += page.examined
                is_enough = len(some) < limit or len(jobs) >= query.limit or left <= 0
                if cursor is None or is_enough or examined >= query.examine:
                    return Page(jobs, cursor, examined)

    async def read_log(self, driver: Driver, limit: int, **asked: Any) -> list[LogEntry]:
        """Cells of the logbook.

        Raises:
            Problem: `answer-too-large`.
        """
        found: list[LogEntry] = []
        left = self.budget
        async with self._places:
            async for entry in each_entry(driver, **asked, page=min(limit, _CELLS)):
                found.append(entry)
                left -= len(entry.data) * 4 // 3 + _AROUND
                if left < 0 and len(found) > 1:
                    raise _too_much(self.budget)
                if len(found) == limit:
                    break
        return found

    async def claim(self, driver: Driver, verb: str, arguments: Mapping[str, Any]) -> Claimed | Exchanged:
        """`reserve` or `exchange`; jobs that would be too much for one answer wait for the next claim.

        How large they are is known once they are claimed: then those that do not fit are released.
        """
        claim: Claim = arguments["claim"]
        check_claim(claim)
        limit = min(claim.limit, self._size(self.budget, _MOST_CLAIMED))
        answer: Claimed | Exchanged = await getattr(driver, verb)(
            **{**arguments, "claim": replace(claim, limit=limit)}
        )
        jobs = some = jobs_in(answer)
        given_up, ended = answer.given_up, answer.ended
        left = self.budget - self._weight(some)
        with suppress(TaskHarborError):  # jobs that are claimed already must reach their worker
            if left < 0:
                await self._release_surplus(driver, jobs, arguments["now"])
            while len(some) == limit and len(jobs) < claim.limit and left > 0:
                limit = min(claim.limit - len(jobs), self._size(left, _MOST_CLAIMED))
                more = await driver.reserve(replace(claim, limit=limit), now=arguments["now"])
                some = more.jobs
                jobs += some
                given_up += more.given_up
                ended += more.ended
                left -= self._weight(some)
        return replace(answer, given_up=given_up, ended=ended)

    async def _release_surplus(self, driver: Driver, jobs: list[JobRecord], now: datetime | None) -> None:
        """Leave as many of these as fit into an answer, and at least one."""
        left, kept = self.budget, 0
        for job in jobs:
            left -= answer_size(job)
            if left < 0 and kept:
                break
            kept += 1
        surplus = jobs[kept:]
        del jobs[kept:]
        if surplus:
            await driver.settle([Release(job.lease) for job in surplus], now=now)

    def check_schedules(self, there: Iterable[Schedule], schedule: Schedule) -> None:
        """Raises Problem `payload-too-large` if the payloads of all schedules exceed one answer."""
        others = sum(len(one.template.payload) for one in there if one.name != schedule.name)
        if (others + len(schedule.template.payload)) * 4 // 3 > self.budget:
            raise Problem(
                "payload-too-large",
                f"the payloads of all schedules together may have {self.budget * 3 // 4} bytes; nothing was "
                "stored. Keep large data elsewhere and send a reference",
            )

    # ------------------------------------------------------------------

    def _size(self, left: int, most: int = _MOST) -> int:
        """How many to read next: as many as fit if all are as large as the largest recent one."""
        return max(_LEAST, min(most, left // (2 * (self._largest + _AROUND))))

    def _seen(self, job: JobRecord, shown: Shown | None) -> JobRecord:
        self._note(job)
        return job if shown is None else shown(job)

    def _weight(self, jobs: Iterable[JobRecord]) -> int:
        total = 0
        for job in jobs:
            self._note(job)
            total += answer_size(job)
        return total

    def _note(self, job: JobRecord) -> None:
        self._largest = max(_bytes_of(job), self._largest - self._largest // 64)  # decays slowly


def jobs_in(answer: Claimed | Exchanged) -> list[JobRecord]:
    return answer.claimed if isinstance(answer, Exchanged) else answer.jobs


def answer_size(job: JobRecord) -> int:
    """About what a job takes in an answer: its bytes travel as base64."""
    return _bytes_of(job) * 4 // 3 + _AROUND + _PER_ATTEMPT * len(job.history)


def _bytes_of(job: JobRecord) -> int:
    """Its payload and result, its notes, and the ids that it comes after."""
    size = len(job.payload) + len(job.result or b"")
    if job.bonds is not None:
        size += len(job.bonds.after) * ID_LENGTH
    if job.notes:
        size += sum(len(note.data) + _PER_NOTE for note in job.notes)
    return size


class LimitedDriver:
    """A driver whose `get`, `find` and `read_log` stay within the limit; other verbs are passed on."""

    def __init__(self, driver: Driver, answer_limit: AnswerLimit, shown: Shown | None) -> None:
        self._driver = driver
        self._limit = answer_limit
        self._shown = shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def get(
        self, ids: Sequence[str], *, payloads: bool = True, now: datetime | None = None
    ) -> list[JobRecord | None]:
        if not payloads:
            return await self._driver.get(ids, payloads=False, now=now)
        return await self._limit.get(self._driver, ids, now=now, shown=self._shown)

    async def find(self, query: Query, *, now: datetime | None = None) -> Page:
        return await self._limit.find(self._driver, query, now=now, shown=self._shown)

    async def read_log(self, **asked: Any) -> list[LogEntry]:
        check_count(asked["limit"], "limit", least=1, most=MAX_BATCH)
        return await self._limit.read_log(self._driver, **asked)


def _too_much(budget: int) -> Problem:
    return Problem(
        "answer-too-large",
        f"the answer would exceed the limit of {budget} bytes; ask for fewer at a time",
    )
