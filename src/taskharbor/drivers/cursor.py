"""Opaque keyset cursors: where a listing stopped, bound to the query it came from."""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_count, check_key, check_name
from taskharbor.model.state import JobState

_VERSION = 1


def cursor_after(query: Query, seq: int) -> str:
    """A cursor that continues after the job with this `seq`."""
    raw = msgspec.msgpack.encode((_VERSION, _shape(query), seq))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def seq_of(query: Query) -> int | None:
    """The seq to continue after, or None for the first page. A cursor of another query is refused."""
    if query.cursor is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4))
        version, shape, seq = msgspec.msgpack.decode(raw, type=tuple[int, bytes, int])
    except (msgspec.DecodeError, binascii.Error, ValueError, TypeError):
        raise InvalidArgument("the cursor is not one of ours; start again without it") from None
    if version != _VERSION or shape != _shape(query) or seq < 0:
        raise InvalidArgument("the cursor belongs to another listing; start again without it")
    return seq


def check_query(query: Query) -> None:
    check_count(query.limit, "limit", least=1, most=MAX_PAGE)
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
    seq_of(query)


def _shape(query: Query) -> bytes:
    """A short digest of the query without page size and cursor: the page size may change."""
    plain = msgspec.structs.replace(query, limit=1, cursor=None)
    return hashlib.sha256(msgspec.msgpack.encode(plain)).digest()[:8]
