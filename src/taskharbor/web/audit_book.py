"""AuditBook: what people changed, in the book `audit` of the store's logbook.

Changes that end in the same turn of the event loop are written together. A write that fails is logged and
does not fail the change. Enqueues, verbs of drivers, sign-ins and refusals are not here; the logger
`taskharbor.audit` has them all.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from taskharbor.errors import TaskHarborError
from taskharbor.model.logbook import AUDIT, MAX_ENTRIES, LogEntry
from taskharbor.web.audit import REFUSALS, shown
from taskharbor.web.auth import LogThrottle

if TYPE_CHECKING:
    from taskharbor.web.request import Request
    from taskharbor.web.service import Service

_log = logging.getLogger("taskharbor.server")

KEPT = timedelta(days=90)
_LEFT_OUT = frozenset({"enqueue", "enqueue_batch", "enqueue_workflow", "open_session", "close_session"})
_MICROSECOND = timedelta(microseconds=1)
_PAGE = 500
_MOST_LOOKED_AT = 10_000

Undo = Literal["open", "done"]


class SettingChange(msgspec.Struct, frozen=True):
    """A setting before and after a change, as it is shown; `undo` if it can be changed back."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None
    undo: Undo | None = None
    undoes: str | None = None
    """The request that this one takes back."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change by a person."""

    who: str
    name: str
    role: str | None
    client: str | None
    did: str
    what: str | None
    status: int
    request_id: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    undo: Undo | None = None
    undoes: str | None = None
    details: dict[str, Any] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AuditRecord)


class AuditBook:
    """Writes and reads the book of one server's store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._new: list[LogEntry] = []
        self._last_at: datetime | None = None
        self._warned = LogThrottle()

    async def is_kept(self) -> bool:
        """Whether the store has a logbook; one behind a server says so when it is open."""
        return (await self._service.driver()).capabilities.logbook

    def note(self, request: Request, operation: str, status: int) -> None:
        """Write down a change, whether it succeeded or failed."""
        is_of_people = not operation.startswith("driver.") and operation not in _LEFT_OUT
        if is_of_people and not request.is_preview and status not in REFUSALS:
            self._gather(self._entry(self._instant(), _record(request, operation, status)))

    def note_undone(self, at: datetime, record: AuditRecord) -> None:
        """Mark a change as taken back."""
        self._gather(self._entry(at, msgspec.structs.replace(record, undo="done")))

    async def page(self, before: datetime | None, limit: int) -> list[tuple[datetime, AuditRecord]]:
        """Changes before an instant, the newest first."""
        driver, now = await self._service.driver(), self._service.clock.now()
        entries = await driver.read_log(
            AUDIT,
            now - KEPT - timedelta(days=1),
            now + timedelta(days=1) if before is None else before,
            limit=limit,
            newest_first=True,
            now=self._service.now(),
        )
        return [(entry.at, found) for entry in entries if (found := _read(entry)) is not None]

    async def find(self, request_id: str) -> tuple[datetime, AuditRecord] | None:
        """The newest change of a request, among the newest 10,000 changes."""
        async for at, record in self._newest():
            if record.request_id == request_id and record.undoes is None:
                return at, record
        return None

    async def _newest(self) -> AsyncIterator[tuple[datetime, AuditRecord]]:
        before: datetime | None = None
        for _ in range(_MOST_LOOKED_AT // _PAGE):
            found = await self.page(before, _PAGE)
            for item in found:
                yield item
            if len(found) < _PAGE:
                return
            before = found[-1][0]

    # ------------------------------------------------------------------ writing

    def _instant(self) -> datetime:
        """Later than every one before: pages end between two instants."""
        now = self._service.clock.now()
        if self._last_at is not None and now <= self._last_at:
            now = self._last_at + _MICROSECOND
        self._last_at = now
        return now

    def _entry(self, at: datetime, record: AuditRecord) -> LogEntry:
        data = zlib.compress(_encoder.encode(record), 1)
        return LogEntry(book=AUDIT, at=at, by=record.request_id, data=data, until=at + KEPT)

    def _gather(self, entry: LogEntry) -> None:
        if not self._new:
            asyncio.get_running_loop().call_soon(self._begin)
        self._new.append(entry)

    def _begin(self) -> None:
        entries, self._new = self._new, []
        task = asyncio.get_running_loop().create_task(self._write(entries))
        self._service.background.add(task)
        task.add_done_callback(self._service.background.discard)

    async def _write(self, entries: list[LogEntry]) -> None:
        try:
            driver = await self._service.driver()
            if not driver.capabilities.logbook:
                return
            for start in range(0, len(entries), MAX_ENTRIES):
                await driver.write_log(entries[start : start + MAX_ENTRIES], now=self._service.now())
        except TaskHarborError as error:
            if self._warned.may("audit"):
                _log.error("%d changes are missing in the book audit: %s", len(entries), error)


def _record(request: Request, operation: str, status: int) -> AuditRecord:
    principal, client = request.principal, request.scope.get("client")
    session = request.service.authenticator.session_of(request)
    note = "" if session is None else session.token.note
    details = dict(request.audited)
    what = next((details.pop(name) for name in _WHAT if name in details), None)
    change = request.change or SettingChange(None, None)
    return AuditRecord(
        who=shown(note or principal.name),
        name=principal.name,
        role=principal.role,
        client=client[0] if client else None,
        did=operation,
        what=None if what is None else shown(str(what)),
        status=status,
        request_id=request.request_id,
        before=change.before,
        after=change.after,
        undo=change.undo if status < _REDIRECT else None,
        undoes=change.undoes,
        details=details,
    )


_WHAT = ("queue", "schedule", "job_id", "cause", "token", "bulk")
_REDIRECT = 300


def _read(entry: LogEntry) -> AuditRecord | None:
    """None for a cell that another version has written."""
    try:
        return _decoder.decode(zlib.decompress(entry.data))
    except (zlib.error, msgspec.MsgspecError):
        return None
