"""The audit log: who changed what, and who was refused, on the logger `taskharbor.audit`.

    refused                 ──► the first at once, as a warning; what follows by the same caller is counted,
                                and told after a second, then two, four, up to a minute, while it goes on
    changed, done or failed ──► gathered until the event loop comes round again, then told;
                                calls of one kind by one caller share a record that lists them

Under load many calls end in the same round, because their jobs shared a write: a line for each would
cost more than the calls. And whoever is refused a thousand times a second may fill no disk: a record of
refusals names the first few and counts the rest, callers that nobody knows are told apart by their address
only, and of very many addresses only the sum is told. Bodies, tokens and query strings never get here.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from taskharbor.web.auth import NOBODY

if TYPE_CHECKING:
    from taskharbor.web.call import Call

_log = logging.getLogger("taskharbor.audit")

REFUSALS = frozenset({401, 403, 429})
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MOST_NAMED = 10
"""Refused calls that one record names; the rest is a number."""
MOST_CALLERS = 1_000
"""Refused callers that are told apart; the rest share a record."""


class _Kind(NamedTuple):
    operation: str
    principal: str
    role: str | None
    client: str | None
    status: int


_OTHERS = "other addresses"


class _Refused:
    """The refusals of one caller since the record before."""

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.pause = FIRST_PAUSE_SECONDS
        self.count = 0
        self.named: list[dict[str, Any]] = []

    def add(self, kind: _Kind, told: dict[str, Any]) -> None:
        self.count += 1
        if len(self.named) < MOST_NAMED:
            self.named.append({"operation": kind.operation, "status": kind.status, **told})

    def tell(self) -> None:
        if self.count:
            _tell_refused(self.kind, self.count, self.named)
        self.count, self.named = 0, []


class AuditLog:
    """The records of one server."""

    def __init__(self) -> None:
        self._gathered: dict[_Kind, list[dict[str, Any]]] = {}
        self._refused: dict[object, _Refused] = {}
        """Callers who were refused a moment ago."""

    def note(self, call: Call, operation: str, status: int, *, is_change: bool) -> None:
        """Tell of a change and of every refusal; looking is not told."""
        if status in REFUSALS:
            if _log.isEnabledFor(logging.WARNING):
                self._refuse(_kind(call, operation, status), _told(call))
        elif is_change and _log.isEnabledFor(logging.INFO):
            self._gather(_kind(call, operation, status), _told(call))

    def close(self) -> None:
        """Tell what is left."""
        self._tell_all()
        for refused in self._refused.values():
            refused.tell()
        self._refused.clear()

    # ------------------------------------------------------------------ refusals

    def _refuse(self, kind: _Kind, told: dict[str, Any]) -> None:
        # Somebody whom nobody knows can call everything: the address is all that tells them apart.
        caller: object = kind if kind.role is not None else kind.client
        if caller not in self._refused and len(self._refused) >= MOST_CALLERS:
            caller, kind = _OTHERS, kind._replace(client=_OTHERS)
        following = self._refused.get(caller)
        if following is not None:
            following.add(kind, told)
            return
        self._tell_all()  # what came before stands before
        _tell(logging.WARNING, kind, [told])
        self._refused[caller] = _Refused(kind)
        self._tell_later(caller, FIRST_PAUSE_SECONDS)

    def _tell_later(self, caller: object, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._tell_refused, caller)

    def _tell_refused(self, caller: object) -> None:
        refused = self._refused.get(caller)
        if refused is None:
            return
        if not refused.count:
            del self._refused[caller]
            return
        refused.tell()
        refused.pause = min(refused.pause * 2, LONGEST_PAUSE_SECONDS)
        self._tell_later(caller, refused.pause)

    # ------------------------------------------------------------------ changes

    def _gather(self, kind: _Kind, told: dict[str, Any]) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._tell_all)
        there = self._gathered.get(kind)
        if there is None:
            self._gathered[kind] = [told]
        else:
            there.append(told)

    def _tell_all(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for kind, calls in gathered.items():
            _tell(logging.INFO, kind, calls)


def _kind(call: Call, operation: str, status: int) -> _Kind:
    principal, client = call.principal, call.scope.get("client")
    role = None if principal is NOBODY else principal.role or "none"
    return _Kind(operation, principal.name, role, client[0] if client else None, status)


def _told(call: Call) -> dict[str, Any]:
    return {"request_id": call.request_id, "path": _shown_path(call.scope["path"]), **call.audited}


def _tell(level: int, kind: _Kind, calls: list[dict[str, Any]]) -> None:
    told: dict[str, Any] = kind._asdict()
    if len(calls) == 1:
        _log.log(level, "%s by %s: %d", kind.operation, kind.principal, kind.status, extra=told | calls[0])
    else:
        told["calls"] = calls
        _log.log(
            level,
            "%s by %s: %d, %d calls",
            kind.operation,
            kind.principal,
            kind.status,
            len(calls),
            extra=told,
        )


def _tell_refused(kind: _Kind, count: int, named: list[dict[str, Any]]) -> None:
    told = {**kind._asdict(), "refused": count, "calls": named}
    _log.warning("%d more calls by %s at %s were refused", count, kind.principal, kind.client, extra=told)


def shown(text: str) -> str:
    """A text from outside as it may stand in a log: one line, short, nothing that steers a terminal."""
    plain = ascii(text)[1:-1]
    return plain if len(plain) <= 200 else plain[:197] + "..."


_shown_path = lru_cache(maxsize=64)(shown)
