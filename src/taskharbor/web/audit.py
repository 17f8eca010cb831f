"""The audit log: who changed what, and who was refused, on the logger `taskharbor.audit`.

    refusal  ──► the first is logged at once, as a warning; more by the same caller are counted, and the count
                 is logged after one second, then two, four, up to a minute, while they continue
    change   ──► logged at the next turn of the event loop, whether it succeeded or failed; calls of one kind
                 by one caller share a record that lists them

Under load many calls end in the same turn, because their jobs share a write, and a line for each would cost
more than the calls. Refusals must not fill the disk: a record names the first few and counts the rest,
unknown callers are distinguished by address only, and beyond 1,000 addresses only the sum is logged. Bodies,
tokens and query strings are never logged.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from taskharbor.web.auth import NOBODY

if TYPE_CHECKING:
    from taskharbor.web.request import Request

_log = logging.getLogger("taskharbor.audit")

REFUSALS = frozenset({401, 403, 429})
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MOST_NAMED = 10
"""Refused calls listed in one record; the rest are counted."""
MOST_CALLERS = 1_000
"""Refused callers with a record of their own; the rest share one."""


class _Kind(NamedTuple):
    operation: str
    principal: str
    role: str | None
    client: str | None
    status: int


_OTHERS = "other addresses"


class _Refused:
    """The refusals of one caller since the last record."""

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.pause = FIRST_PAUSE_SECONDS
        self.count = 0
        self.named: list[dict[str, Any]] = []

    def add(self, kind: _Kind, details: dict[str, Any]) -> None:
        self.count += 1
        if len(self.named) < MOST_NAMED:
            self.named.append({"operation": kind.operation, "status": kind.status, **details})

    def log(self) -> None:
        if self.count:
            _log_refused(self.kind, self.count, self.named)
        self.count, self.named = 0, []


class AuditLog:
    """The audit log of one server."""

    def __init__(self) -> None:
        self._changes: dict[_Kind, list[dict[str, Any]]] = {}
        self._refused: dict[object, _Refused] = {}
        """Callers who were refused recently."""

    def note(self, request: Request, operation: str, status: int, *, is_change: bool) -> None:
        """Log a change and every refusal; reads are not logged."""
        if is_change:
            request.service.shared_answers.clear()
            request.service.audit_book.note(request, operation, status)
        if status in REFUSALS:
            if _log.isEnabledFor(logging.WARNING):
                self._refuse(_kind(request, operation, status), _details(request))
        elif is_change and _log.isEnabledFor(logging.INFO):
            self._gather(_kind(request, operation, status), _details(request))

    def close(self) -> None:
        """Log what is left."""
        self._log_changes()
        for refused in self._refused.values():
            refused.log()
        self._refused.clear()

    # ------------------------------------------------------------------ refusals

    def _refuse(self, kind: _Kind, details: dict[str, Any]) -> None:
        # A caller without a token can call anything: only the address distinguishes them.
        caller: object = kind if kind.role is not None else kind.client
        if caller not in self._refused and len(self._refused) >= MOST_CALLERS:
            caller, kind = _OTHERS, kind._replace(client=_OTHERS)
        following = self._refused.get(caller)
        if following is not None:
            following.add(kind, details)
            return
        self._log_changes()  # keep the order
        _log_calls(logging.WARNING, kind, [details])
        self._refused[caller] = _Refused(kind)
        self._log_later(caller, FIRST_PAUSE_SECONDS)

    def _log_later(self, caller: object, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._log_refusals, caller)

    def _log_refusals(self, caller: object) -> None:
        refused = self._refused.get(caller)
        if refused is None:
            return
        if not refused.count:
            del self._refused[caller]
            return
        refused.log()
        refused.pause = min(refused.pause * 2, LONGEST_PAUSE_SECONDS)
        self._log_later(caller, refused.pause)

    # ------------------------------------------------------------------ changes

    def _gather(self, kind: _Kind, details: dict[str, Any]) -> None:
        if not self._changes:
            asyncio.get_running_loop().call_soon(self._log_changes)
        there = self._changes.get(kind)
        if there is None:
            self._changes[kind] = [details]
        else:
            there.append(details)

    def _log_changes(self) -> None:
        changes, self._changes = self._changes, {}
        for kind, calls in changes.items():
            _log_calls(logging.INFO, kind, calls)


def _kind(request: Request, operation: str, status: int) -> _Kind:
    principal, client = request.principal, request.scope.get("client")
    role = None if principal is NOBODY else principal.role or "none"
    return _Kind(operation, principal.name, role, client[0] if client else None, status)


def _details(request: Request) -> dict[str, Any]:
    return {"request_id": request.request_id, "path": _shown_path(request.scope["path"]), **request.audited}


def _log_calls(level: int, kind: _Kind, calls: list[dict[str, Any]]) -> None:
    extra: dict[str, Any] = kind._asdict()
    if len(calls) == 1:
        _log.log(level, "%s by %s: %d", kind.operation, kind.principal, kind.status, extra=extra | calls[0])
    else:
        extra["calls"] = calls
        _log.log(
            level,
            "%s by %s: %d, %d calls",
            kind.operation,
            kind.principal,
            kind.status,
            len(calls),
            extra=extra,
        )


def _log_refused(kind: _Kind, count: int, named: list[dict[str, Any]]) -> None:
    extra = {**kind._asdict(), "refused": count, "calls": named}
    _log.warning("%d more calls by %s at %s were refused", count, kind.principal, kind.client, extra=extra)


def shown(text: str) -> str:
    """Untrusted text made safe for a log: one line, short, no control characters."""
    plain = ascii(text)[1:-1]
    return plain if len(plain) <= 200 else plain[:197] + "..."


_shown_path = lru_cache(maxsize=64)(shown)
