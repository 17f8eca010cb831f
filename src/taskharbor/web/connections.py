"""Connections: how many a server holds, whose they are, and which one goes when there is no room.

    ours    a request is being handled                      stays, whatever comes
    theirs  the caller keeps us waiting: it has sent nothing yet, sends its request, is quiet between two
            requests, or does not read its answer           the one that does so longest makes room

A caller who reads nothing at all is let go, full or not. What happens is counted, and told in one
line every few seconds: a flood of connections must not become a flood of lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Literal, Protocol

_log = logging.getLogger("taskharbor.server")

TELL_SECONDS = 10.0
LEAST_READ = 16 * 1024
"""What a caller must read of a waiting answer in `write_seconds`, if it does not read all of it."""

Reason = Literal["full", "share", "made_room", "unread", "slow", "malformed"]
REASONS: dict[Reason, str] = {
    "full": "refused: all places are taken by requests under way",
    "share": "refused: their address has its share already",
    "made_room": "closed to make room: they were waiting longest",
    "unread": "closed: they did not read their answers",
    "slow": "closed: their requests took too long to arrive",
    "malformed": "closed: what they sent is no request",
}


class Connection(Protocol):
    """What is asked of a connection."""

    address: str

    def unsent(self) -> int:
        """How many bytes of answers wait to be read by the caller."""
        ...

    def give_up(self) -> None:
        """Close at once; what was not sent is lost."""
        ...


class _Reader:
    """How a caller gets on with what was written to it."""

    __slots__ = ("baseline", "since")

    def __init__(self, baseline: int, since: float) -> None:
        self.baseline = baseline
        self.since = since


class Connections:
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
        self._theirs: dict[str, dict[Connection, float]] = {}
        """By address, and by the time since when they keep us waiting: the first is the longest."""
        self._readers: dict[Connection, _Reader] = {}
        self._paused: dict[Connection, None] = {}
        """Those with long answers that they have not read, the first since longest."""
        self._untold: Counter[Reason] = Counter()
        self._sweep: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self.dropped: Counter[Reason] = Counter()
        """How many were let go since the start, by the reason."""
        self.on_drop: Callable[[Reason], None] = lambda reason: None

    def __len__(self) -> int:
        return len(self._addresses)

    # ------------------------------------------------------------------ coming and going

    def enter(self, connection: Connection, now: float) -> Reason | None:
        """Take a new one in, if need be in place of another; says why, if it cannot be."""
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
        self.their_turn(connection, now)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._write_seconds / 4, self._look_round)
        return None

    def leave(self, connection: Connection) -> None:
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        self._no_longer_theirs(connection, address)
        self._readers.pop(connection, None)
        self._paused.pop(connection, None)

    def their_turn(self, connection: Connection, now: float) -> None:
        """From now on the caller keeps us waiting; one who does so already goes on to."""
        address = self._addresses.get(connection)
        if address is not None:
            self._theirs.setdefault(address, {}).setdefault(connection, now)

    def our_turn(self, connection: Connection) -> None:
        address = self._addresses.get(connection)
        if address is not None:
            self._no_longer_theirs(connection, address)

    def stops_reading(self, connection: Connection, now: float) -> None:
        """More waits for the caller than it has taken. What waits for all of them has a limit, too."""
        self.their_turn(connection, now)
        if connection in self._addresses:
            self._paused[connection] = None
        while len(self._paused) > 1 and sum(one.unsent() for one in self._paused) > self._most_unread:
            slowest = next(iter(self._paused))
            self.leave(slowest)
            self.count("unread")
            slowest.give_up()

    def reads(self, connection: Connection, now: float) -> None:
        """The caller has read much of what waited."""
        self._paused.pop(connection, None)
        reader = self._readers.get(connection)
        if reader is not None:
            reader.since = now

    def _no_longer_theirs(self, connection: Connection, address: str) -> None:
        waiting = self._theirs.get(address)
        if waiting is not None and waiting.pop(connection, None) is not None and not waiting:
            del self._theirs[address]

    # ------------------------------------------------------------------ making room

    def _has_its_share(self, address: str) -> bool:
        """Callers on this machine are mostly a proxy's, and have no share unless one was set."""
        share = self._share
        if share is None:
            share = 0 if _is_local(address) else max(self.most // 2, 1)
        return 0 < share <= self._held[address]

    def _make_room(self, address: str | None) -> bool:
        """Let the one go that keeps us waiting longest, of this address or of all."""
        if address is None:
            longest = [(next(iter(waiting.items())), at) for at, waiting in self._theirs.items()]
            if not longest:
                return False
            address = min(longest, key=lambda one: one[0][1])[1]
        waiting = self._theirs.get(address)
        if not waiting:
            return False
        connection = next(iter(waiting))
        self.leave(connection)
        self.count("made_room")
        connection.give_up()
        return True

    # ------------------------------------------------------------------ those who do not read

    def _look_round(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._write_seconds / 4, self._look_round) if len(self) else None
        for connection in [one for one in self._addresses if self._reads_nothing(one, loop.time())]:
            self.leave(connection)
            self.count("unread")
            connection.give_up()

    def _reads_nothing(self, connection: Connection, now: float) -> bool:
        unsent = connection.unsent()
        reader = self._readers.get(connection)
        if not unsent:
            self._readers.pop(connection, None)
        elif reader is None:
            self._readers[connection] = _Reader(unsent, now)
        elif unsent <= reader.baseline - LEAST_READ:
            reader.baseline, reader.since = unsent, now
        else:
            reader.baseline = max(reader.baseline, unsent)
            return now - reader.since >= self._write_seconds
        return False

    # ------------------------------------------------------------------ telling

    def count(self, reason: Reason) -> None:
        """Note that one was let go; the log hears of it now, or with the others of the next few seconds."""
        self.dropped[reason] += 1
        self._untold[reason] += 1
        self.on_drop(reason)
        if self._telling is None:
            self._tell()

    def _tell(self) -> None:
        self._telling = None
        if not self._untold:
            return
        said = "; ".join(f"{count} {REASONS[reason]}" for reason, count in sorted(self._untold.items()))
        address, held = next(iter(self._held.most_common(1)), ("nobody", 0))
        _log.warning("connections: %s (%d open, %d of them from %s)", said, len(self), held, address)
        self._untold.clear()
        self._telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)


def _is_local(address: str) -> bool:
    """From this machine; a caller without an address came through a socket file."""
    try:
        return not address or ip_address(address).is_loopback
    except ValueError:
        return False
