"""Settlements and leases on their way to the server: many in few arguments.

A worker sends them by the hundred, and encoding a list costs more per element than the work on it. So the ids
travel as one text, token and worker once per claim, and what only some settlements have as one JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from taskharbor.drivers.postgres.rows import MARK, is_token, span_us
from taskharbor.drivers.postgres.statements import as_array
from taskharbor.model.checks import are_ids
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Settlement, Stalled
from taskharbor.model.text import ERROR_LIMIT, TRACE_LIMIT, safe_text

_KINDS: dict[type, int] = {
    Park: 0,
    Retry: 2,
    Fail: 3,
    Release: 4,
    Cancelled: 5,
    Stalled: 6,
}  # in the function settle


class Batch(msgspec.Struct, frozen=True):
    """Settlements, or leases, that the server settles, or extends, together. Sorted by id."""

    places: Sequence[int]  # of each in the list that it came from
    ids: list[str]
    arguments: tuple[Any, ...]  # ids, leases, tokens, workers, marks


NOTHING = (None, None, None, None, None, None, None)


def batch_of(leases: Sequence[Lease]) -> Batch:
    """The leases that the server can be asked about, each job once.

    Left out are leases with an impossible id or token, and a second lease of the same job: its order counts.
    """
    ids = [lease.job_id for lease in leases]
    tokens = [lease.token for lease in leases]
    workers = [lease.worker_id for lease in leases]
    is_one = tokens.count(tokens[0]) == workers.count(workers[0]) == len(tokens)
    is_usable = (
        are_ids(ids) and len(set(ids)) == len(ids) and are_usable(set(zip(tokens, workers, strict=True)))
    )
    places: Sequence[int] = range(len(ids))
    if not is_usable:
        places, is_one = _usable(leases), False
    if not is_usable or any(map(str.__gt__, ids, ids[1:])):
        places = sorted(places, key=ids.__getitem__)
        ids = [ids[place] for place in places]
    if is_one:
        token = tokens[0]
        return Batch(places, ids, (as_array(ids), None, [token[:32]], workers[:1], [token.endswith(MARK)]))
    numbers: dict[tuple[str, str | None], int] = {}
    of_each = [numbers.setdefault((tokens[p], workers[p]), len(numbers) + 1) for p in places]
    return Batch(
        places,
        ids,
        (
            as_array(ids),
            of_each,
            [token[:32] for token, _ in numbers],
            [worker for _, worker in numbers],
            [token.endswith(MARK) for token, _ in numbers],
        ),
    )


def are_usable(claims: Iterable[tuple[str, str | None]]) -> bool:
    """Whether the server can be asked about these tokens and workers."""
    return all(is_token(token) and "\0" not in (worker or "") for token, worker in claims)


def _usable(leases: Sequence[Lease]) -> list[int]:
    first = {lease.job_id: place for place, lease in reversed(list(enumerate(leases)))}
    return [
        place
        for job_id, place in first.items()
        if are_ids([job_id]) and are_usable([(leases[place].token, leases[place].worker_id)])
    ]


def settle_arguments(batch: Batch, settlements: Sequence[Settlement]) -> tuple[Any, ...]:
    """The first arguments of settle and exchange, but for `now`."""
    ends = [settlements[place] for place in batch.places]
    results = [end.result if type(end) is Ack else None for end in ends]
    others = [_other(ord_, end) for ord_, end in enumerate(ends, 1) if type(end) is not Ack]
    return (
        *batch.arguments,
        None if results.count(None) == len(results) else results,
        msgspec.json.encode(others).decode() if others else None,
    )


def _other(ord_: int, end: Settlement) -> dict[str, Any]:
    """What the function settle must know of a settlement that is no ack: see model/transitions.py."""
    other: dict[str, Any] = {"ord": ord_, "kind": _KINDS[type(end)]}
    if isinstance(end, Retry | Release) and end.delay is not None:
        other["delay"] = span_us(end.delay)
    if isinstance(end, Release | Ack | Park):
        return other
    if isinstance(end, Retry):
        other |= {"run_at": end.run_at, "attempts": end.attempts, "failed_at": end.failed_at}
    if isinstance(end, Retry | Fail):
        other["failure_kind"] = end.failure_kind
        if end.error_class is not None:
            other["error_class"] = safe_text(end.error_class, ERROR_LIMIT)
    if end.reason or isinstance(end, Retry | Fail):
        other["error"] = safe_text(end.reason, ERROR_LIMIT)
    if trace := getattr(end, "trace", None) or end.reason:
        other["trace"] = safe_text(trace, TRACE_LIMIT)
    return other
