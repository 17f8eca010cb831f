"""Opaque keyset cursors: where a listing stopped, bound to the query it came from; and what fits a query."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import NamedTuple

import msgspec

from taskharbor.drivers.messages import MAX_EXAMINED, MAX_PAGE, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import MAX_BATCH, check_count, check_id, check_instant, check_key, check_name
from taskharbor.model.clock import micros
from taskharbor.model.job import JobRecord
from taskharbor.model.state import TERMINAL, JobState

_VERSION = 2


class Place(NamedTuple):
    """Where a job is in a listing: by enqueue `ended` is 0, by end it is the instant in microseconds."""

    ended: int
    seq: int


def cursor_after(query: Query, place: Place) -> str:
    """A cursor that continues after this place."""
    raw = msgspec.msgpack.encode((_VERSION, _shape(query), *place))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def place_of(query: Query) -> Place | None:
    """The place to continue after, or None for the first page. A cursor of another query is refused."""
    if query.cursor is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4))
        version, shape, ended, seq = msgspec.msgpack.decode(raw, type=tuple[int, bytes, int, int])
    except (msgspec.DecodeError, binascii.Error, ValueError, TypeError):
        raise InvalidArgument("the cursor is not one of ours; start again without it") from None
    if version != _VERSION or shape != _shape(query) or seq < 0 or ended < 0:
        raise InvalidArgument("the cursor belongs to another listing; start again without it")
    return Place(ended, seq)


def check_query(query: Query) -> None:
    check_count(query.limit, "limit", least=1, most=MAX_PAGE)
    check_count(query.examine, "examine", least=1, most=MAX_BATCH)
    if query.queue is not None:
        check_name(query.queue, "queue")
    if query.type is not None:
        check_name(query.type, "type")
    if query.key is not None:
        check_key(query.key, "key")
    if query.states is not None and (
        not query.states or any(not isinstance(state, JobState) for state in query.states)
    ):
        raise InvalidArgument("states must be a tuple with at least one JobState")
    if "\x00" in f"{query.worker_id}{query.failure_kind}":  # some stores cannot even be asked for it
        raise InvalidArgument("no worker and no kind of failure has a NUL in its name")
    if query.parent is not None:
        check_id(query.parent)
    _check_end(query)
    place_of(query)


def _check_end(query: Query) -> None:
    if query.ended_after is not None:
        check_instant(query.ended_after, "ended_after")
    if query.order_by not in ("seq", "ended"):
        raise InvalidArgument("order_by must be 'seq' or 'ended'")
    if query.order_by == "ended" and not ended_states(query):
        raise InvalidArgument("only jobs that are completed, failed or cancelled have an end to order by")


def ended_states(query: Query) -> list[JobState]:
    """The states among those asked for in which a job has ended."""
    return [state for state in JobState if state in (query.states or TERMINAL) and state in TERMINAL]


def is_filtered(query: Query) -> bool:
    """Whether something is asked for besides queue and state."""
    asked = (query.type, query.key, query.worker_id, query.failure_kind, query.ended_after)
    return any(value is not None for value in asked)


def fits(job: JobRecord, query: Query) -> bool:
    """Whether a job as it reads now is one that the query asks for."""
    return (
        (query.queue is None or job.queue == query.queue)
        and (query.states is None or job.state in query.states)
        and (query.type is None or job.type == query.type)
        and (query.key is None or job.key == query.key)
        and (query.worker_id is None or job.worker_id == query.worker_id)
        and (query.failure_kind is None or job.failure_kind == query.failure_kind)
        and (query.parent is None or (job.bonds is not None and job.bonds.parent == query.parent))
        and (query.order_by == "seq" or job.finished_at is not None)
        and (
            query.ended_after is None or (job.finished_at is not None and job.finished_at > query.ended_after)
        )
    )


def place_in(query: Query, job: JobRecord) -> Place:
    """Where a job is in the listing of this query."""
    if query.order_by == "seq" or job.finished_at is None:
        return Place(0, job.seq)
    return Place(micros(job.finished_at), job.seq)


def _shape(query: Query) -> bytes:
    """A short digest of the query without what may change from page to page: sizes, and the cursor."""
    plain = msgspec.structs.replace(query, limit=1, examine=MAX_EXAMINED, cursor=None)
    return hashlib.sha256(msgspec.msgpack.encode(plain)).digest()[:8]
