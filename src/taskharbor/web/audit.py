"""The audit log: who changed what, and who was refused, on the logger `taskharbor.audit`.

    refused                 ──► the first at once, as a warning; what follows of the same kind by the same
                                caller shares a record every second, or as soon as there are many
    changed, done or failed ──► gathered until the event loop comes round again, then told;
                                calls of one kind by one caller share a record that lists them

Under load many calls end in the same round, because their jobs shared a write: a line for each would
cost more than the calls. And whoever is refused a thousand times a second may fill no disk and hold up no
server whose log is read slowly. Bodies, tokens and query strings never get here.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from taskharbor.web.auth import NOBODY

if TYPE_CHECKING:
    from taskharbor.web.call import Call

_log = logging.getLogger("taskharbor.audit")

REFUSALS = frozenset({401, 403, 429})
TOGETHER_SECONDS = 1.0
MOST_TOGETHER = 1_000

_Kind = tuple[str, str, "str | None", "str | None", int]


class AuditLog:
    """The records of one server."""

    def __init__(self) -> None:
        self._gathered: dict[_Kind, list[dict[str, Any]]] = {}
        self._refused: dict[_Kind, list[dict[str, Any]]] = {}
        """What was refused since the record before, of kinds that were told of a moment ago."""

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
        for kind, calls in self._refused.items():
            if calls:
                _tell(logging.WARNING, kind, calls)
        self._refused.clear()

    def _refuse(self, kind: _Kind, told: dict[str, Any]) -> None:
        following = self._refused.get(kind)
        if following is None:
            self._tell_all()  # what came before stands before
            _tell(logging.WARNING, kind, [told])
            self._wait_for_more(kind)
        else:
            following.append(told)
            if len(following) >= MOST_TOGETHER:
                _tell(logging.WARNING, kind, following)
                self._refused[kind] = []

    def _wait_for_more(self, kind: _Kind) -> None:
        self._refused[kind] = []
        asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._tell_refused, kind)

    def _tell_refused(self, kind: _Kind) -> None:
        following = self._refused.pop(kind, None)
        if following:
            _tell(logging.WARNING, kind, following)
            self._wait_for_more(kind)

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
    role = None if principal is NOBODY else principal.role
    return operation, principal.name, role, client[0] if client else None, status


def _told(call: Call) -> dict[str, Any]:
    return {"request_id": call.request_id, "path": _shown_path(call.scope["path"]), **call.audited}


def _tell(level: int, kind: _Kind, calls: list[dict[str, Any]]) -> None:
    operation, principal, role, client, status = kind
    told: dict[str, Any] = {
        "operation": operation,
        "principal": principal,
        "role": role,
        "client": client,
        "status": status,
    }
    if len(calls) == 1:
        _log.log(level, "%s by %s: %d", operation, principal, status, extra=told | calls[0])
    else:
        told["calls"] = calls
        _log.log(level, "%s by %s: %d, %d calls", operation, principal, status, len(calls), extra=told)


def shown(text: str) -> str:
    """A text from outside as it may stand in a log: one line, short, nothing that steers a terminal."""
    plain = ascii(text)[1:-1]
    return plain if len(plain) <= 200 else plain[:197] + "..."


_shown_path = lru_cache(maxsize=64)(shown)
