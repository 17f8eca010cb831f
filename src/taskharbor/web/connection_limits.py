"""ConnectionLimits: how many connections a server keeps open, in all and per address, and which it closes.

    busy     a request is being handled                     never closed to make room
    waiting  we wait for the caller: it has sent nothing yet, is sending, is idle between two requests,
             or is not reading its answer                   the longest waiting is closed to make room

A caller that stops reading is always closed. Closed connections are counted and logged in one line
every few seconds, so that a flood of connections is not a flood of log lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Literal, Protocol

_log = logging.getLogger("taskharbor.server")

LOG_SECONDS = 10.0
LEAST_READ = 16 * 1024
"""A caller must read this much of an answer in `write_seconds`, or all of it."""

Reason = Literal["full", "share", "made_room", "unread", "slow", "malformed"]
REASONS: dict[Reason, str] = {
    "full": "refused: all connections are busy with requests",
    "share": "refused: too many from the same address",
    "made_room": "closed to make room for new ones: the longest idle",
    "unread": "closed: the caller did not read its answers",
    "slow": "closed: the request took too long to arrive",
    "malformed": "closed: not a valid HTTP request",
}


class Connection(Protocol):
    """The part of a connection that is used here."""

    address: str

    def unsent(self) -> int:
        """Bytes of answers that the caller has not read yet."""
        ...

    def give_up(self) -> None:
        """Close at once; unsent bytes are lost."""
        ...


class _ReadProgress:
    """How far a caller has read what was written to it."""

    __slots__ = ("baseline", "since")

    def __init__(self, baseline: int, since: float) -> None:
        self.baseline = baseline
        self.since = since


class ConnectionLimits:
    """The connections of one server."""

    def __init__(
        self,
        most: int,
        most_per_address: int | None = None,
        write_seconds: float = 30.0,
        most_unread: int = 64 * 1024 * 1024,
    ) -> None:
        self.most = most
        self._most_unread = most_unread
        self._share = most_per_address
        self._write_seconds = write_seconds
        self._addresses: dict[Connection, str] = {}
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, dict[Connection, float]] = {}
        """By address: the waiting connections with the time since when, the longest waiting first."""
        self._progress_of: dict[Connection, _ReadProgress] = {}
        self._paused: dict[Connection, None] = {}
        """Connections with long unread answers, the longest unread first."""
        self._unlogged: Counter[Reason] = Counter()
        self._sweep: asyncio.TimerHandle | None = None
        self._log_timer: asyncio.TimerHandle | None = None
        self.dropped: Counter[Reason] = Counter()
        """How many were refused or closed since the start, by reason."""
        self.on_drop: Callable[[Reason], None] = lambda reason: None

    def __len__(self) -> int:
        return len(self._addresses)

    # ------------------------------------------------------------------ opening and closing

    def enter(self, connection: Connection, now: float) -> Reason | None:
        """Accept a connection, if need be in place of another. Returns the reason if it is refused."""
        address = connection.address
        refusal: Reason | None = None
        if self._has_its_share(address):
            refusal = None if self._make_room(address) else "share"
        elif len(self) >= self.most:
            refusal = None if self._make_room(None) else "full"
        if refusal is not None:
            self.count(refusal)
            return refusal
        self._addresses[connection] = address
        self._held[address] += 1
        self.waits(connection, now)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._write_seconds / 4, self._close_unread)
        return None

    def leave(self, connection: Connection) -> None:
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        self._stop_waiting(connection, address)
        self._progress_of.pop(connection, None)
        self._paused.pop(connection, None)

    def waits(self, connection: Connection, now: float) -> None:
        """We wait for the caller from now on, or since earlier if we already do."""
        address = self._addresses.get(connection)
        if address is not None:
            self._waiting.setdefault(address, {}).setdefault(connection, now)

    def is_busy(self, connection: Connection) -> None:
        address = self._addresses.get(connection)
        if address is not None:
            self._stop_waiting(connection, address)

    def stops_reading(self, connection: Connection, now: float) -> None:
        """The caller has fallen behind. Unread answers of all callers together are limited, too."""
        self.waits(connection, now)
        if connection in self._addresses:
            self._paused[connection] = None
        while len(self._paused) > 1 and sum(one.unsent() for one in self._paused) > self._most_unread:
            slowest = next(iter(self._paused))
            self.leave(slowest)
            self.count("unread")
            slowest.give_up()

    def reads(self, connection: Connection, now: float) -> None:
        """The caller has read much of its answer."""
        self._paused.pop(connection, None)
        progress = self._progress_of.get(connection)
        if progress is not None:
            progress.since = now

    def _stop_waiting(self, connection: Connection, address: str) -> None:
        waiting = self._waiting.get(address)
        if waiting is not None and waiting.pop(connection, None) is not None and not waiting:
            del self._waiting[address]

    # ------------------------------------------------------------------ making room

    def _has_its_share(self, address: str) -> bool:
        """Whether an address has all it may. This machine (often a proxy) has no limit unless one is set."""
        share = self._share
        if share is None:
            share = 0 if _is_local(address) else max(self.most // 2, 1)
        return 0 < share <= self._held[address]

    def _make_room(self, address: str | None) -> bool:
        """Close the longest waiting connection, of this address or of all."""
        if address is None:
            longest = [(next(iter(waiting.items())), at) for at, waiting in self._waiting.items()]
            if not longest:
                return False
            address = min(longest, key=lambda one: one[0][1])[1]
        waiting = self._waiting.get(address)
        if not waiting:
            return False
        connection = next(iter(waiting))
        self.leave(connection)
        self.count("made_room")
        connection.give_up()
        return True

    # ------------------------------------------------------------------ callers that do not read

    def _close_unread(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._write_seconds / 4, self._close_unread) if len(self) else None
        for connection in [one for one in self._addresses if self._reads_nothing(one, loop.time())]:
            self.leave(connection)
            self.count("unread")
            connection.give_up()

    def _reads_nothing(self, connection: Connection, now: float) -> bool:
        unsent = connection.unsent()
        progress = self._progress_of.get(connection)
        if not unsent:
            self._progress_of.pop(connection, None)
        elif progress is None:
            self._progress_of[connection] = _ReadProgress(unsent, now)
        elif unsent <= progress.baseline - LEAST_READ:
            progress.baseline, progress.since = unsent, now
        else:
            progress.baseline = max(progress.baseline, unsent)
            return now - progress.since >= self._write_seconds
        return False

    # ------------------------------------------------------------------ counting

    def count(self, reason: Reason) -> None:
        """Count a refused or closed connection; it is logged now or with the others of the next seconds."""
        self.dropped[reason] += 1
        self._unlogged[reason] += 1
        self.on_drop(reason)
        if self._log_timer is None:
            self._log_counts()

    def _log_counts(self) -> None:
        self._log_timer = None
        if not self._unlogged:
            return
        counts = "; ".join(f"{count} {REASONS[reason]}" for reason, count in sorted(self._unlogged.items()))
        address, held = next(iter(self._held.most_common(1)), ("nowhere", 0))
        _log.warning("connections: %s (%d open, %d of them from %s)", counts, len(self), held, address)
        self._unlogged.clear()
        self._log_timer = asyncio.get_running_loop().call_later(LOG_SECONDS, self._log_counts)


def _is_local(address: str) -> bool:
    """From this machine; a caller without an address came through a Unix socket."""
    try:
        return not address or ip_address(address).is_loopback
    except ValueError:
        return False
