"""`find`: jobs by enqueue or by end, page by page. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.cursor import Place, cursor_after, ended_states, is_filtered, place_of
from taskharbor.drivers.messages import Page, Query
from taskharbor.drivers.sqlite.families import FamilyRecords
from taskharbor.drivers.sqlite.prune import kinds_of_finished
from taskharbor.drivers.sqlite.rows import CODES, json_array
from taskharbor.drivers.sqlite.step import BLOCK_BITS, PLACES, Step
from taskharbor.model.clock import micros
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_BLOCKS_PER_PAGE = 64
_BLOCK = 1 << BLOCK_BITS
_AFTER_ALL = 1 << 62
_FIRST_LOOK = 10  # so many more jobs than the page has are looked at first, then four times as many


def find(step: Step, query: Query) -> Page:
    if query.worker_id is not None and query.order_by == "ended":
        return Page([])  # a job that has ended has no worker any more
    if query.order_by == "ended":
        return _by_end(step, query)
    return _by_seq(step, query) if query.parent is None else _children(step, query, query.parent)


def _listed(step: Step, seqs: list[int], payloads: bool) -> list[JobRecord]:
    records = FamilyRecords(step, shows_notes=False)
    jobs = {job.seq: job for job in records.by_seqs(seqs, payloads=payloads)}
    return [replace(jobs[seq], token=None, settled_token=None) for seq in seqs]


# ------------------------------------------------------------------ by enqueue


def _by_seq(step: Step, query: Query) -> Page:
    """The next jobs that fit. The counts per block say where to look: other states cost little."""
    place = place_of(query)
    after = None if place is None else place.seq
    seqs: list[int] = []
    examined = 0
    for low, high in _ranges(step, query, after):
        for seq, is_fit in _rows_in(step, query, low, high, _room(query, len(seqs), examined)):
            if len(seqs) == query.limit or examined == query.examine:
                return _page(step, query, seqs, after, examined)
            after, examined = seq, examined + 1
            if is_fit:
                seqs.append(seq)
        after = low if query.newest_first else high
    is_all = after is None or next(_ranges(step, query, after), None) is None
    return _page(step, query, seqs, None if is_all else after, examined)


def _page(step: Step, query: Query, seqs: list[int], after: int | None, examined: int) -> Page:
    cursor = None if after is None else cursor_after(query, Place(0, after))
    return Page(_listed(step, seqs, query.payloads), cursor, examined)


def _room(query: Query, found: int, examined: int) -> int:
    """How many rows to ask for: one more than may be looked at, to know whether there are more."""
    room = query.examine - examined
    return 1 + (room if is_filtered(query) else min(room, query.limit - found))


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


def _children(step: Step, query: Query, parent: str) -> Page:
    """The next children that fit."""
    low, high = 0, _AFTER_ALL
    if (place := place_of(query)) is not None:
        low, high = (low, place.seq - 1) if query.newest_first else (place.seq + 1, high)
    rows = _rows_in(step, query, low, high, query.examine + 1, parent=parent)
    seqs: list[int] = []
    for examined, (seq, is_fit) in enumerate(rows):
        if len(seqs) == query.limit or examined == query.examine:
            return _page(step, query, seqs, rows[examined - 1][0], examined)
        if is_fit:
            seqs.append(seq)
    return _page(step, query, seqs, None, len(rows))


def _rows_in(
    step: Step, query: Query, low: int, high: int, limit: int, **parent: str
) -> list[tuple[int, int]]:
    """Jobs in a range of seqs, or children there, and whether they fit."""
    name = "find_children" if parent else "find"
    return step.fetch_all(
        f"{name}_newest" if query.newest_first else name,
        low=low,
        high=high,
        queue=query.queue,
        type=query.type,
        worker=query.worker_id,
        failure_kind=query.failure_kind,
        key=query.key,
        ended_after=None if query.ended_after is None else micros(query.ended_after),
        states=None if query.states is None else json_array([state.value for state in query.states]),
        now=step.us,
        limit=limit,
        **parent,
    )


# ------------------------------------------------------------------ by end


def _by_end(step: Step, query: Query) -> Page:
    """The next jobs that fit, by their end: a little of every queue and state, more if that is too few."""
    look = min(query.limit + _FIRST_LOOK, query.examine)
    while True:
        rows = _ended(step, query, look + 1)
        places = [Place(at, seq) for at, seq, is_fit in rows[:look] if is_fit][: query.limit + 1]
        is_over = len(rows) <= look
        if is_over or len(places) > query.limit or look == query.examine:
            break
        look = 4 * look if 8 * look <= query.examine else query.examine  # the last step is a longer one
    examined = min(len(rows), look)
    cursor: Place | None = None if is_over else Place(*rows[look - 1][:2])
    if len(places) > query.limit:
        cursor = places[query.limit - 1]
    jobs = _listed(step, [place.seq for place in places[: query.limit]], query.payloads)
    return Page(jobs, None if cursor is None else cursor_after(query, cursor), examined)


def _ended(step: Step, query: Query, limit: int) -> list[tuple[int, int, int]]:
    """The first so many rows of all queues and states that are asked for, each job once."""
    states = ended_states(query)
    kinds = [(query.queue, state) for state in states if query.queue is not None]
    if query.queue is None:
        kept = kinds_of_finished(step, "kept_next_kind")
        kinds = [kind for kind in {*kinds_of_finished(step), *kept} if kind[1] in states]
    rows = {row for queue, state in kinds for row in _rows_of(step, query, queue, state, limit)}
    return sorted(rows, reverse=query.newest_first)[:limit]


def _rows_of(step: Step, query: Query, queue: str, state: JobState, limit: int) -> list[tuple[int, int, int]]:
    after = place_of(query) or (Place(_AFTER_ALL, 0) if query.newest_first else Place(-1, 0))
    asked = {
        "queue": queue,
        "state": CODES[state],
        "at": after.ended,
        "seq": after.seq,
        "ended_after": -1 if query.ended_after is None else micros(query.ended_after),
        "type": query.type,
        "key": query.key,
        "failure_kind": query.failure_kind,
        "parent": query.parent,
        "limit": limit,
    }
    newest = "_newest" if query.newest_first else ""
    return [row for name in ("find_ended", "find_kept") for row in step.fetch_all(name + newest, **asked)]
