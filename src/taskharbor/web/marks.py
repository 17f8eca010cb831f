"""Marks on charts: new releases of the workers, and changed settings."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.logbook import KEPT, MAX_ENTRIES, RELEASES, LogEntry
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.web.audit_book import AuditBook, AuditRecord
from taskharbor.web.auth import Principal

_log = logging.getLogger("taskharbor.server")
_MOST_RELEASES = 100
_DAY = timedelta(days=1)
_MOST_CHANGES = 200
_KEPT_SECONDS = 5.0
_SETTINGS = frozenset({"configure_queue", "pause_queue", "resume_queue"})


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    kind: Literal["release", "setting"]
    text: str
    by: str | None = None
    queue: str | None = None
    """Whose setting was changed; `*` for all queues."""


class ReleaseBook:
    """When each release was first at work, in the book `releases` of the store: servers come and go.

    One cell per release and instant. Two servers may have seen different workers of it: the earliest counts.
    """

    def __init__(
        self, driver: Callable[[], Awaitable[Driver]], clock: Clock, now: Callable[[], datetime | None]
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._now = now

    async def read(self) -> dict[str, datetime]:
        driver, now = await self._driver(), self._clock.now()
        since, until = now - KEPT[RELEASES] - _DAY, now + _DAY
        entries = await driver.read_log(RELEASES, since, until, newest_first=True, now=self._now())
        # newest first: of two cells of a release the earlier one stays
        return {msgspec.msgpack.decode(entry.data, type=str): entry.at for entry in entries}

    async def write(self, releases: dict[str, datetime]) -> None:
        """A failure is logged and harms nothing: the next look has the same workers."""
        cells = [_release_cell(release, at) for release, at in releases.items()]
        try:
            await (await self._driver()).write_log(cells[:MAX_ENTRIES], now=self._now())
        except TaskHarborError as error:
            _log.warning("releases could not be written into the logbook: %s", error)


def _release_cell(release: str, at: datetime) -> LogEntry:
    by = blake2b(release.encode(), digest_size=8).hexdigest()  # a release is any text, a writer is a name
    return LogEntry(
        book=RELEASES, at=at, by=by, data=msgspec.msgpack.encode(release), until=at + KEPT[RELEASES]
    )


class ChartMarks:
    """When each release was first at work, as far as a server has seen it, and the newest changes."""

    def __init__(self, book: AuditBook, releases: ReleaseBook, clock: Clock) -> None:
        self._book = book
        self._releases = releases
        self._clock = clock
        self._since: dict[str, datetime] = {}
        self._read = self._releases_read = float("-inf")
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
            await self._share_releases()
        releases = [Mark(at=at, kind="release", text=release) for release, at in self._since.items()]
        return [*releases, *setting_marks(self._changes, principal)]

    async def release_since(self, release: str) -> datetime | None:
        """When this release was first at work. Reads nothing but releases, and writes nothing."""
        if self._clock.monotonic() >= self._releases_read + _KEPT_SECONDS and await self._book.is_kept():
            self._releases_read = self._clock.monotonic()
            self._take_over(await self._releases.read())
        return self._since.get(release)

    async def _share_releases(self) -> None:
        """Take over what other servers saw, and write what they did not."""
        stored = await self._releases.read()
        new = {name: at for name, at in self._since.items() if name not in stored or at < stored[name]}
        self._take_over(stored)
        if new:
            await self._releases.write(new)

    def _take_over(self, stored: dict[str, datetime]) -> None:
        for name, at in stored.items():
            self._since[name] = min(at, self._since.get(name, at))


def marks_for(marks: Sequence[Mark], queues: Sequence[str] | None) -> list[Mark]:
    """The marks for a chart of these queues (None: of all): releases, and what changed for one of them."""
    return [mark for mark in marks if queues is None or mark.queue in (None, EVERY_QUEUE, *queues)]


def setting_marks(records: Sequence[tuple[datetime, AuditRecord]], principal: Principal) -> Iterator[Mark]:
    """The changes of settings among these, as far as the caller may see their queues."""
    for at, record in records:
        what = record.what or ""
        may_see = principal.queues is None or what in principal.queues
        if record.did in _SETTINGS and record.status < 300 and may_see:
            text = changed_text(what, record.before or {}, record.after or {})
            if text:
                yield Mark(at=at, kind="setting", text=text, by=record.who, queue=what)


def changed_text(what: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """`mail max_running 40 → 20`, `mail paused`; empty if nothing differs."""
    name = "harbor" if what == EVERY_QUEUE else what
    changes = [
        _change(key, before.get(key), value) for key, value in after.items() if before.get(key) != value
    ]
    return f"{name} {', '.join(changes)}" if changes else ""


def _change(key: str, before: Any, after: Any) -> str:
    if key == "paused":
        return "paused" if after else "resumed"
    return f"{key} {_value(before)} → {_value(after)}"


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            return " ".join(f"{key} {_value(one)}" for key, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
