"""One connection to a server, for asyncio: commands go out as they come, answers come back in order.

Many callers share it; what they send while an answer is under way travels together. A connection that
breaks, or does not answer in time, ends every call that waits on it, and is not used again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import hiredis

from taskharbor.drivers.redis import faults
from taskharbor.drivers.redis.address import Address, Host

Part = bytes | str | int | float
Command = Sequence[Part]

ServerError = hiredis.ReplyError


def packed(command: Command) -> bytes:
    """A command as it goes over the wire."""
    wire: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub means one word
    return wire


class Link(asyncio.Protocol):
    """A connection. Made by `connect`."""

    def __init__(self, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._waiting: deque[tuple[asyncio.Future[Any], bool]] = deque()
        self._transport: asyncio.Transport | None = None
        self._timeout = timeout
        self._watch: asyncio.TimerHandle | None = None
        self._answered = 0.0
        self._gone: BaseException | None = None
        self.is_open = False

    # ------------------------------------------------------------------ calls

    def call(self, command: Command, *, writes: bool = True) -> asyncio.Future[Any]:
        """Send a command; the future brings its answer. An error of the server is raised as it is.

        `writes`: whether a lost answer may have been a change.
        """
        return self.send(packed(command), writes=writes)

    def send(self, command: bytes, *, writes: bool = True) -> asyncio.Future[Any]:
        """The same for a command that is packed already."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open or self._transport is None:
            future.set_exception(faults.lost(self._gone, done=False))
            return future
        self._transport.write(command)
        self._waiting.append((future, writes))
        if self._watch is None and self._timeout is not None:
            self._answered = self._loop.time()
            self._watch = self._loop.call_later(self._timeout, self._look)
        return future

    def close(self, error: BaseException | None = None) -> None:
        """Hang up; whoever waits for an answer learns it."""
        self._gone = self._gone or error
        if self._transport is not None:
            self._transport.abort()
        self._lose(error)

    def peer(self) -> str | None:
        """The address of the other side."""
        found = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(found[0]) if found else None

    # ------------------------------------------------------------------ the loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        self._answered = self._loop.time()
        try:
            while (answer := reader.gets()) is not _NOTHING:
                future, _ = waiting.popleft()
                if future.done():  # its caller has given up
                    continue
                if isinstance(answer, hiredis.ReplyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except (hiredis.HiredisError, IndexError) as error:
            self.close(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)

    def _lose(self, error: BaseException | None) -> None:
        self.is_open = False
        self._gone = self._gone or error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._waiting:
            future, writes = self._waiting.popleft()
            if not future.done():
                future.set_exception(faults.lost(self._gone, done=None if writes else False))

    def _look(self) -> None:
        """Nothing came for too long while somebody waits: the server is not there any more."""
        self._watch = None
        if not self._waiting or self._timeout is None:
            return
        quiet = self._loop.time() - self._answered
        if quiet >= self._timeout:
            self.close(TimeoutError(f"no answer for {quiet:.1f} s"))
        else:
            self._watch = self._loop.call_later(self._timeout - quiet, self._look)


_NOTHING = object()


class Links:
    """Connections by host, for several users in one event loop."""

    def __init__(self) -> None:
        self._links: dict[Host, Link] = {}
        self._locks: dict[Host, asyncio.Lock] = {}

    async def get(self, host: Host, make: Callable[[], Awaitable[Link]]) -> Link:
        """The connection to a host; whoever comes while it is being made waits for the same one."""
        async with self._locks.setdefault(host, asyncio.Lock()):
            link = self._links.get(host)
            if link is None or not link.is_open:
                link = self._links[host] = await make()
            return link

    def close(self) -> None:
        for link in self._links.values():
            link.close()


async def connect(
    address: Address,
    host: Host,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float | None = None,
    credentials: tuple[str | None, str | None] | None = None,
) -> Link:
    """A new connection that is let in and looks at the right database. Raises errors of ours."""
    where = f"{host[0]}:{host[1]}"
    try:
        async with asyncio.timeout(address.connect_timeout):
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: Link(timeout), host[0], host[1], ssl=tls
            )
    except (OSError, TimeoutError) as error:  # ssl errors are among them
        raise faults.unreachable(error, where) from error
    try:
        async with asyncio.timeout(address.connect_timeout):
            username, password = credentials or (address.username, address.password)
            for command in greeting(username, password, 0 if credentials else address.database):
                await link.call(command, writes=False)
    except TimeoutError as error:
        link.close(error)
        raise faults.unreachable(error, where) from error
    except ServerError as error:
        link.close()
        raise faults.ours(error) from error
    except BaseException:
        link.close()
        raise
    return link


def greeting(username: str | None, password: str | None, database: int) -> list[Command]:
    """What is said on a new connection."""
    said: list[Command] = []
    if password is not None:
        said.append(("AUTH", username, password) if username else ("AUTH", password))
    if database:
        said.append(("SELECT", database))
    return said
