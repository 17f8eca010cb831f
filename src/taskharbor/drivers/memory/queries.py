"""`find`: jobs in enqueue order, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import merge
from itertools import islice

from msgspec.structs import replace

from taskharbor.drivers.cursor import cursor_after, seq_of
from taskharbor.drivers.memory.records import AFTER_ALL, Records
from taskharbor.drivers.messages import Page, Query
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.transitions import shown

_EXAMINED_PER_PAGE = 5000


def page_of(records: Records, query: Query, now: datetime) -> Page:
    """The next jobs that fit; the cursor is behind the last one examined."""
    found: list[JobRecord] = []
    last = None
    examined = list(islice(_walk(records, query), _EXAMINED_PER_PAGE))
    for seq, job_id in examined:
        if len(found) == query.limit:
            return Page(found, cursor_after(query, last or 0))
        last = seq
        job = shown(records.jobs[job_id], now)
        if _fits(job, query):
            found.append(replace(job, settled_token=None))
    is_all = len(examined) < _EXAMINED_PER_PAGE
    return Page(found, None if is_all else cursor_after(query, last or 0))


def _walk(records: Records, query: Query) -> Iterator[tuple[int, str]]:
    """The listed jobs that may fit by queue and stored state, in the order asked for, behind the cursor."""
    queues = [query.queue] if query.queue is not None else sorted(records.queues())
    lists = [records.listed[queue, state] for queue in queues for state in _stored_states(query)]
    after = seq_of(query)
    if query.newest_first:
        bound = (AFTER_ALL,) if after is None else (after,)
        return merge(*(entries.below(bound) for entries in lists), reverse=True)
    return merge(*(entries.above((-1,) if after is None else (after, _ABOVE_ALL_IDS)) for entries in lists))


def _stored_states(query: Query) -> set[JobState]:
    """The clock separates ready from scheduled, so a query for one reads both."""
    asked = set(query.states or JobState)
    due_or_not = {JobState.READY, JobState.SCHEDULED}
    return asked | due_or_not if asked & due_or_not else asked


def _fits(job: JobRecord, query: Query) -> bool:
    return (
        (query.states is None or job.state in query.states)
        and (query.type is None or job.type == query.type)
        and (query.key is None or job.key == query.key)
        and (query.worker_id is None or job.worker_id == query.worker_id)
        and (query.failure_kind is None or job.failure_kind == query.failure_kind)
    )


_ABOVE_ALL_IDS = "\U0010ffff"
