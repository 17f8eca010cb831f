"""Acks on their way to the server: many in few arguments.

A worker sends them by the hundred, and encoding a list costs more per element than the work on it. So the
ids travel as one text, and the number of the lease per ack only where they come from several claims.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from taskharbor.drivers.postgres.statements import as_array
from taskharbor.model.checks import are_ids
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack, Settlement

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Acks(msgspec.Struct, frozen=True):
    """The first arguments of exchange.sql."""

    ids: list[str] = []
    text: str | None = None  # the ids as the server reads an array
    numbers: list[int] | None = None  # per ack its lease in `tokens` and `workers`; none: the first
    tokens: Sequence[str] = ()
    workers: Sequence[str | None] = ()
    results: list[bytes | None] | None = None


NO_ACKS = Acks()


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def acks_of(settlements: Sequence[Settlement]) -> Acks | None:
    """All of them, if every one is an ack that may travel with the claim; else None."""
    if not settlements:
        return NO_ACKS
    if set(map(type, settlements)) != {Ack}:
        return None
    acks = numbered_acks(settlements)
    is_usable = are_ids(acks.ids) and len(set(acks.ids)) == len(acks.ids)
    said = "".join([*acks.tokens, *filter(None, acks.workers)])
    return acks if is_usable and "\0" not in said else None


def numbered_acks(settlements: Sequence[Any]) -> Acks:
    """The same without a look at whether the server can read them."""
    leases: list[Lease] = [ack.lease for ack in settlements]
    ids = [lease.job_id for lease in leases]
    numbers, tokens, workers = numbered(leases)
    results = [ack.result for ack in settlements]
    return Acks(
        ids,
        as_array(ids),
        None if len(tokens) == 1 else numbers,
        tokens,
        workers,
        None if results.count(None) == len(results) else results,
    )


def numbered(leases: Sequence[Lease]) -> tuple[list[int], list[str], list[str | None]]:
    """Few claims have made many leases: the number of its claim per lease, and token and worker per claim."""
    tokens = [lease.token for lease in leases]
    workers = [lease.worker_id for lease in leases]
    if tokens and tokens.count(tokens[0]) == workers.count(workers[0]) == len(tokens):
        return [1] * len(tokens), tokens[:1], workers[:1]
    numbers: dict[tuple[str, str | None], int] = {}
    of_each = [numbers.setdefault(claim, len(numbers) + 1) for claim in zip(tokens, workers, strict=True)]
    return of_each, [token for token, _ in numbers], [worker for _, worker in numbers]
