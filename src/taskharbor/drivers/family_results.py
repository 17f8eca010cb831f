"""Reading the results of families: of one job, of the child that it names, or of all its children."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.errors import JobFailed, JobNotFound, PayloadError
from taskharbor.model.entropy import child_id
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.workflow import ALL, MAX_LISTED, RETURNS_HEADER, node_name

Read = Callable[[JobRecord], Any]
Now = Callable[[], datetime | None]


async def children_of(
    driver: Driver, parent_id: str, states: Sequence[JobState] = (), *, now: Now, payloads: bool = True
) -> AsyncIterator[JobRecord]:
    """The children of a job in the order in which they were stored, read page by page."""
    query = Query(parent=parent_id, states=tuple(states) or None, limit=MAX_PAGE, payloads=payloads)
    while True:
        page = await driver.find(query, now=now())
        for record in page.jobs:
            yield record
        if page.next_cursor is None:
            return
        query = replace(query, cursor=page.next_cursor)


async def result_of(driver: Driver, record: JobRecord, read: Read, now: Now) -> Any:
    """The result of a completed job: its own, or that of the children that it names.

    Raises:
        JobFailed: the child whose result it is did not complete.
        PayloadError: more results than fit into a list.
    """
    record = await _bearer(driver, record, now)
    if record.headers.get(RETURNS_HEADER) != ALL:
        return read(record)
    total = family_of(record).total
    if total > MAX_LISTED:
        raise PayloadError(
            f'the {total:,} results of "{node_name(record)}" do not fit into an argument or a list; '
            "read them page by page: ctx.aresults(name), or handle.aresults()"
        )
    return [result async for result in results_of(driver, record, read, now)]


async def results_of(driver: Driver, record: JobRecord, read: Read, now: Now) -> AsyncIterator[Any]:
    """The results of the completed children, in order; of a job without children its own result."""
    record = await _bearer(driver, record, now)
    if record.headers.get(RETURNS_HEADER) != ALL and not family_of(record).total:
        yield read(record)
        return
    async for child in children_of(driver, record.id, (JobState.COMPLETED,), now=now):
        yield await result_of(driver, child, read, now)


async def _bearer(driver: Driver, record: JobRecord, now: Now) -> JobRecord:
    """The job that has the result: this one, or a child of it that its header names, and so on down."""
    while (name := record.headers.get(RETURNS_HEADER, ALL)) != ALL:
        child = child_id(record.id, name)
        [found] = await driver.get([child], now=now())
        if found is None:
            raise JobNotFound(child)
        if found.state is not JobState.COMPLETED:
            raise JobFailed(found.id, found.state, found.last_error)
        record = found
    return record
