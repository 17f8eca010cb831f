"""Failures: why jobs fail, from the logbook, with what people noted about each cause.

causes.1m, causes.15m ──► one line per cause and window
causes.status         ──► muted, snoozed until an instant or the next release; without a cell: open
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from taskharbor.client.needs import NewCause
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import EPOCH
from taskharbor.model.log_cells import OTHER, CauseNumbers
from taskharbor.model.log_series import QUARTER, window
from taskharbor.model.logbook import CAUSE_STATUS, LogEntry, LogKey
from taskharbor.observe.logbook import LogReader
from taskharbor.web.auth import Principal
from taskharbor.web.dead_letters import TOO_MANY, DeadNow

if TYPE_CHECKING:
    from taskharbor.web.service import Service

NEW_FOR = timedelta(hours=24)
QUIET_BEFORE = timedelta(days=7)
"""A cause that was not seen in so many days before is new."""
HISTORY = QUIET_BEFORE + NEW_FOR
STATUS_KEPT = timedelta(days=365)
_REFRESH_SECONDS = 5.0
_SETTLED_AFTER = timedelta(hours=1)
_MOST_CAUSES = 10_000
# Cells of one book at one instant: every store reads all of them in one step.
_STATUS_AT = datetime(2020, 1, 1, tzinfo=UTC)
_MOST_STATUSES = 1000

StatusName = Literal["open", "muted", "snoozed"]


class CauseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What people noted about a cause."""

    status: StatusName
    until: datetime | None = None
    release: str | None = None
    """Snoozed until another release than this one fails for it."""

    def now(self, now: datetime, release: str) -> StatusName:
        """The status as it is now: a snooze ends by itself."""
        if self.status != "snoozed":
            return self.status
        is_over = self.until is not None and self.until <= now
        return "open" if is_over or self.release not in (None, release) else "snoozed"


class FailingCause(msgspec.Struct, kw_only=True):
    """One cause within a window."""

    numbers: CauseNumbers
    per_step: list[int]
    queues: set[str]
    first_at: datetime
    last_at: datetime
    is_new: bool
    status: StatusName
    began_with: str = ""
    """The release of the worker that saw it first; empty if it was seen before this window, or not kept."""
    attempts: int = 0
    """Attempts that failed in the window, as workers reported, and at least the jobs that died since."""
    dead: int = 0
    """Its jobs that are dead now: the numbers count a job again that was retried and died again."""

    def saw_fail(self, instants: Iterable[datetime], since: datetime) -> None:
        """Jobs whose last attempt failed for it at these instants: it failed at least so often since then."""
        self.attempts = max(self.attempts, sum(at >= since for at in instants))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CauseStatus)


class Failures:
    """The causes of one server's store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader: LogReader | None = None
        self._first_seen: dict[str, int] = {}
        self._learned = EPOCH
        self._new: tuple[NewCause, ...] = ()
        self._next_refresh = float("-inf")

    async def causes(
        self, name: str, principal: Principal, *, queue: str | None = None, release: str | None = None
    ) -> tuple[list[FailingCause], timedelta]:
        """The causes of a window, most attempts first, and its step. KeyError: there is no such window."""
        now = self._service.clock.now()
        since, until, step = window(name, now)
        reader = await self._log_reader()
        cells = await reader.causes(since, until, now, step)
        await self._learn_first(reader, now)
        rows = [
            (at, row)
            for at, found in cells
            for row in found
            if (row.queue == queue if queue else row.queue == OTHER or principal.may_use(row.queue))
            and (row.queue != OTHER or principal.queues is None)
            and (release is None or row.release == release)
        ]
        statuses = await self.statuses()
        steps = (until - since) // step
        found = self._gathered(rows, since, step, steps)
        dead_now = await self._service.dead_letters.look() if found else TOO_MANY
        for one in found:
            died = _died_of(one, dead_now, lambda name: name == queue if queue else principal.may_use(name))
            one.dead = one.numbers.dead if died is None else len(died)
            one.attempts = one.numbers.retried + one.numbers.dead
            if release is None:  # which release a dead job had is not known
                one.saw_fail(died or (), since)
            known = statuses.get(one.numbers.cause)
            one.status = "open" if known is None else known.now(now, one.numbers.release)
            one.first_at = min(
                one.first_at, _instant(self._first_seen.get(one.numbers.cause)) or one.first_at
            )
            if one.first_at < (_instant(one.numbers.first_at) or EPOCH):
                one.began_with = ""
            one.is_new = now - one.first_at < NEW_FOR
        return sorted(found, key=lambda one: -one.attempts), step

    def _gathered(
        self, rows: Iterable[tuple[datetime, CauseNumbers]], since: datetime, step: timedelta, steps: int
    ) -> list[FailingCause]:
        found: dict[str, FailingCause] = {}
        for at, row in rows:
            there = found.get(row.cause)
            if there is None:
                there = found[row.cause] = FailingCause(
                    numbers=msgspec.structs.replace(row),
                    per_step=[0] * steps,
                    queues=set(),
                    first_at=EPOCH,
                    last_at=EPOCH,
                    is_new=False,
                    status="open",
                )
            else:
                there.numbers.add(row)
            there.queues.add(row.queue)
            number = (at - since) // step
            if 0 <= number < steps:
                there.per_step[number] += row.retried + row.dead
        for one in found.values():
            one.first_at = _instant(one.numbers.first_at) or EPOCH
            one.last_at = _instant(one.numbers.last_at) or EPOCH
            one.began_with = one.numbers.first_release
        return list(found.values())

    async def _learn_first(self, reader: LogReader, now: datetime) -> None:
        """When each cause was first seen. What was learned an hour ago or earlier does not change."""
        cells = await reader.causes(now - HISTORY, now, now, QUARTER)
        if len(self._first_seen) > _MOST_CAUSES:
            self._first_seen, self._learned = {}, EPOCH
        learned, self._learned = self._learned, now - _SETTLED_AFTER
        for at, rows in cells:
            for row in rows if at >= learned else ():
                known = self._first_seen.get(row.cause, row.first_at)
                self._first_seen[row.cause] = min(known, row.first_at)

    async def _log_reader(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(await self._service.driver())
        return self._reader

    # ------------------------------------------------------------------ what people noted

    async def statuses(self) -> dict[str, CauseStatus]:
        driver = await self._service.driver()
        entries = await driver.read_log(
            CAUSE_STATUS,
            _STATUS_AT,
            _STATUS_AT + timedelta(seconds=1),
            limit=_MOST_STATUSES,
            now=self._service.now(),
        )
        found = {}
        for entry in entries:
            try:
                found[entry.by] = _decoder.decode(entry.data)
            except msgspec.MsgspecError:  # of another version
                continue
        return found

    async def say(self, cause: str, status: CauseStatus) -> None:
        """Store what a person noted about a cause; `open` forgets it."""
        driver, now = await self._service.driver(), self._service.clock.now()
        if status.status == "open":
            await driver.write_log(
                [], instead_of=[LogKey(CAUSE_STATUS, _STATUS_AT, cause)], now=self._service.now()
            )
            return
        entry = LogEntry(
            book=CAUSE_STATUS,
            at=_STATUS_AT,
            by=cause,
            data=_encoder.encode(status),
            until=now + STATUS_KEPT,
        )
        await driver.write_log([entry], now=self._service.now())

    # ------------------------------------------------------------------ what needs a person

    async def new_causes(self) -> tuple[NewCause, ...]:
        """Open causes that are new and have dead letters, as of the last seconds.

        Only the first call waits for them: no verdict may say that all is calm before it has looked.
        """
        now, is_first = self._service.clock.monotonic(), self._next_refresh == float("-inf")
        if now >= self._next_refresh:
            self._next_refresh = now + _REFRESH_SECONDS
            task = asyncio.get_running_loop().create_task(self._refresh())
            self._service.background.add(task)
            task.add_done_callback(self._service.background.discard)
            if is_first:
                await asyncio.wait([task])
        return self._new

    async def _refresh(self) -> None:
        try:
            if not (await self._service.driver()).capabilities.logbook:
                return
            found, _ = await self.causes("24h", Principal(name="board", role="viewer"))
        except TaskHarborError:  # the board reports a store that does not answer
            return
        self._new = tuple(
            NewCause(
                cause=one.numbers.cause,
                type=one.numbers.type,
                title=one.numbers.title,
                dead=one.dead,
                queue=next(iter(one.queues)) if len(one.queues) == 1 else None,
            )
            for one in found
            if one.is_new and one.dead and one.status == "open" and one.numbers.cause != OTHER
        )


def _died_of(one: FailingCause, now: DeadNow, sees: Callable[[str], bool]) -> list[datetime] | None:
    """When its dead jobs failed. None where only the logbook knows: too many are dead, or too many causes."""
    return None if one.numbers.cause == OTHER else now.of(one.numbers.cause, sees)


def _instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)
