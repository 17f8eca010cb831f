"""Marks on charts: new releases of the workers, and changed settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from taskharbor.model.clock import Clock
from taskharbor.model.presence import WorkerInfo
from taskharbor.web.audit_book import AuditBook, AuditRecord
from taskharbor.web.auth import Principal

_MOST_RELEASES = 100
_MOST_CHANGES = 200
_KEPT_SECONDS = 5.0
_SETTINGS = frozenset({"configure_queue", "pause_queue", "resume_queue"})


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    kind: Literal["release", "setting"]
    text: str
    by: str | None = None


class ChartMarks:
    """When each release was first at work, as far as this server has seen it, and the newest changes."""

    def __init__(self, book: AuditBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._since: dict[str, datetime] = {}
        self._read = float("-inf")
        self._changes: list[tuple[datetime, AuditRecord]] = []

    def note(self, workers: Sequence[WorkerInfo]) -> None:
        for worker in workers:
            release = worker.report.release
            started_at = worker.report.started_at or worker.seen_at
            if release and started_at < self._since.get(release, started_at):
                self._since[release] = started_at
            elif release:
                self._since.setdefault(release, started_at)
        while len(self._since) > _MOST_RELEASES:
            self._since.pop(min(self._since, key=lambda name: self._since[name]))

    async def seen_by(self, principal: Principal) -> list[Mark]:
        """The marks that a caller may see; changes are read at most every few seconds."""
        if self._clock.monotonic() >= self._read + _KEPT_SECONDS and await self._book.is_kept():
            self._read = self._clock.monotonic()
            self._changes = await self._book.page(None, _MOST_CHANGES)
        releases = [Mark(at=at, kind="release", text=release) for release, at in self._since.items()]
        return [*releases, *setting_marks(self._changes, principal)]


def setting_marks(records: Sequence[tuple[datetime, AuditRecord]], principal: Principal) -> Iterator[Mark]:
    """The changes of settings among these, as far as the caller may see their queues."""
    for at, record in records:
        what = record.what or ""
        may_see = principal.queues is None or what in principal.queues
        if record.did in _SETTINGS and record.status < 300 and may_see:
            text = changed_text(what, record.before or {}, record.after or {})
            if text:
                yield Mark(at=at, kind="setting", text=text, by=record.who)


def changed_text(what: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """`mail max_running 40 → 20`; empty if nothing differs."""
    name = "harbor" if what == "*" else what
    changes = [
        f"{key} {_value(before.get(key))} → {_value(after.get(key))}"
        for key in after
        if before.get(key) != after.get(key)
    ]
    return f"{name} {', '.join(changes)}" if changes else ""


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            return " ".join(f"{key} {_value(one)}" for key, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
