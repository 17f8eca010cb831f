"""`find`: jobs by enqueue or by end, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import merge
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.cursor import Place, cursor_after, ended_states, fits, place_in, place_of
from taskharbor.drivers.memory.records import AFTER_ALL, Ordered, Records, Timed
from taskharbor.drivers.messages import Page, Query
from taskharbor.model.clock import EPOCH, instant
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.transitions import shown


def page_of(records: Records, query: Query, now: datetime) -> Page:
    """The next jobs that fit; the cursor is behind the last one examined."""
    found: list[JobRecord] = []
    last, examined = Place(0, 0), 0
    for job_id in _by_end(records, query) if query.order_by == "ended" else _by_seq(records, query):
        if len(found) == query.limit or examined == query.examine:
            return Page(found, cursor_after(query, last), examined)
        job = shown(records.jobs[job_id], now)
        last, examined = place_in(query, job), examined + 1
        if fits(job, query):
            found.append(replace(job, settled_token=None, notes=()))
    return Page(found, None, examined)


def _by_seq(records: Records, query: Query) -> Iterator[str]:
    """The listed jobs that may fit by queue and stored state, in the order asked for, behind the cursor."""
    if query.parent is not None:
        lists = [records.families.children.get(query.parent, Ordered())]
    else:
        lists = [
            records.listed[queue, state]
            for queue in _queues(records, query)
            for state in _stored_states(query)
        ]
    after = place_of(query)
    if query.newest_first:
        bound = (AFTER_ALL,) if after is None else (after.seq,)
        entries = merge(*(one.below(bound) for one in lists), reverse=True)
    else:
        entries = merge(
            *(one.above((-1,) if after is None else (after.seq, _ABOVE_ALL_IDS)) for one in lists)
        )
    return (job_id for _, job_id in entries)


def _by_end(records: Records, query: Query) -> Iterator[str]:
    lists = [
        ended[queue, state]
        for ended in (records.finished, records.ended_children)
        for queue in _queues(records, query)
        for state in ended_states(query)
    ]
    after = place_of(query)
    entries: Iterator[Timed]
    bound: tuple[Any, ...]
    if query.newest_first:
        bound = (_LATEST,) if after is None else (instant(after.ended), after.seq)
        entries = merge(*(one.below(bound) for one in lists), reverse=True)
        if (oldest := query.ended_after) is not None:
            entries = takewhile(lambda entry: entry[0] > oldest, entries)
    else:
        bound = (EPOCH,) if after is None else (instant(after.ended), after.seq, _ABOVE_ALL_IDS)
        if query.ended_after is not None:
            bound = max(bound, (query.ended_after, AFTER_ALL))
        entries = merge(*(one.above(bound) for one in lists))
    return (job_id for _, _, job_id in entries if records.jobs[job_id].speculates_on is None)


def _queues(records: Records, query: Query) -> list[str]:
    return [query.queue] if query.queue is not None else sorted(records.queues())


def _stored_states(query: Query) -> set[JobState]:
    """The clock separates ready from scheduled, so a query for one reads both."""
    asked = set(query.states or JobState)
    due_or_not = {JobState.READY, JobState.SCHEDULED}
    return asked | due_or_not if asked & due_or_not else asked


_ABOVE_ALL_IDS = "\U0010ffff"
_LATEST = datetime.max.replace(tzinfo=EPOCH.tzinfo)
