"""One asyncio connection to a server: commands are sent at once, replies come back in order.

Many callers share it; their commands are pipelined. When the connection breaks or a reply times out,
every waiting call fails and the connection is not used again. Decision 0021 says why this is not redis-py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import Context
from typing import Any, Self, cast

import hiredis

from taskharbor.drivers.redis import faults
from taskharbor.drivers.redis.address import Address, Host
from taskharbor.drivers.redis.failover import FailoverDetector

Part = bytes | str | int | float
Command = Sequence[Part]

ServerError = hiredis.ReplyError


def packed(command: Command) -> bytes:
    """Encode a command for the wire."""
    wire: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub means one word
    return wire


class PendingReply:
    """The reply to one command, awaited by one task, which resumes in the same loop turn that reads it.

    An asyncio future would resume the task one turn later, and each turn costs a system call.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_context",
        "_error",
        "_loop",
        "_value",
        "is_done",
        "writes",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, writes: bool) -> None:
        self._asyncio_future_blocking = False  # asyncio.Task requires this attribute of what it awaits
        self._loop = loop
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self.is_done = False
        self.writes = writes

    def __await__(self) -> Generator[Self, None, Any]:
        if not self.is_done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def set_result(self, value: Any) -> None:
        """Resume the waiting task before returning, unless another task is running now."""
        self.is_done, self._value = True, value
        if self._context is not None and self._callback is not None:
            if asyncio.current_task(self._loop) is None:
                self._context.run(self._callback, self)
            else:
                self._resume_soon()

    def set_exception(self, error: BaseException) -> None:
        """Raise this error in the waiting task in the next turn."""
        self.is_done, self._error = True, error
        self._resume_soon()

    def _resume_soon(self) -> None:
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)

    # ------------------------------------------------------------------ what a task asks of what it waits for

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        self._callback, self._context = callback, context

    def cancel(self, msg: Any = None) -> bool:
        if self.is_done:
            return False
        self.set_exception(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


# Without a buffer of our own asyncio allocates 256 KiB for every read. Replies are small, and the
# allocation was half of the cost of a call.
_READ_BYTES = 131072


class Connection(asyncio.BufferedProtocol):
    """A connection. Made by `connect`."""

    def __init__(self, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(_READ_BYTES)
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._waiting: deque[PendingReply] = deque()
        self._transport: asyncio.Transport | None = None
        self._timeout = timeout
        self._watch: asyncio.TimerHandle | None = None
        self._quiet_since = 0.0
        self._gone: BaseException | None = None
        self.is_open = False

    # ------------------------------------------------------------------ calls

    def call(self, command: Command, *, writes: bool = True) -> PendingReply:
        """Send a command; await the returned reply. An error of the server is raised as it is.

        `writes`: True if a lost reply may hide a change.
        """
        return self.send(packed(command), writes=writes)

    def send(self, command: bytes, *, writes: bool = True) -> PendingReply:
        """The same for an encoded command."""
        reply = PendingReply(self._loop, writes)
        if not self.is_open or self._transport is None:
            reply.set_exception(faults.lost(self._gone, done=False))
            return reply
        self._transport.write(command)
        if not self._waiting:
            self._quiet_since = self._loop.time()
        self._waiting.append(reply)
        if self._watch is None and self._timeout is not None:
            self._watch = self._loop.call_later(self._timeout, self._look)
        return reply

    def close(self, error: BaseException | None = None) -> None:
        """Close the connection. Waiting calls fail."""
        self._gone = self._gone or error
        if self._transport is not None:
            self._transport.abort()
        self._lose(error)

    def peer(self) -> str | None:
        """The remote address."""
        found = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(found[0]) if found else None

    # ------------------------------------------------------------------ the loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader, waiting = self._reader, self._waiting
        reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]  # its stub knows bytes alone
        self._quiet_since = self._loop.time()
        arrived: list[tuple[PendingReply, Any]] = []
        try:
            while (value := reader.gets()) is not _NOTHING:
                arrived.append((waiting.popleft(), value))
        except (hiredis.HiredisError, IndexError) as error:
            self.close(error)
        for reply, value in arrived:
            if reply.is_done:  # its caller was cancelled
                continue
            if isinstance(value, hiredis.ReplyError):
                reply.set_exception(value)
            else:
                reply.set_result(value)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)

    def _lose(self, error: BaseException | None) -> None:
        self.is_open = False
        self._gone = self._gone or error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._waiting:
            reply = self._waiting.popleft()
            if not reply.is_done:
                reply.set_exception(faults.lost(self._gone, done=None if reply.writes else False))

    def _look(self) -> None:
        """Close the connection if calls wait and nothing has arrived for too long."""
        self._watch = None
        if not self._waiting or self._timeout is None:
            return
        quiet = self._loop.time() - self._quiet_since
        if quiet >= self._timeout:
            self.close(TimeoutError(f"no answer for {quiet:.1f} s"))
        else:
            self._watch = self._loop.call_later(self._timeout - quiet, self._look)


_NOTHING = object()


class Connections:
    """Connections by host, shared within one event loop."""

    def __init__(self) -> None:
        self.failover = FailoverDetector()
        self._connections: dict[Host, Connection] = {}
        self._locks: dict[Host, asyncio.Lock] = {}

    async def get(self, host: Host, make: Callable[[], Awaitable[Connection]]) -> Connection:
        """The connection to a host. Callers that arrive while it is being opened wait for the same one."""
        async with self._locks.setdefault(host, asyncio.Lock()):
            connection = self._connections.get(host)
            if connection is None or not connection.is_open:
                connection = self._connections[host] = await make()
            return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


async def connect(
    address: Address,
    host: Host,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float | None = None,
    credentials: tuple[str | None, str | None] | None = None,
) -> Connection:
    """A new, authenticated connection with its database selected. Raises our errors."""
    where = f"{host[0]}:{host[1]}"
    try:
        async with asyncio.timeout(address.connect_timeout):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(timeout), host[0], host[1], ssl=tls
            )
    except (OSError, TimeoutError) as error:  # ssl errors are OSErrors, too
        raise faults.unreachable(error, where) from error
    try:
        async with asyncio.timeout(address.connect_timeout):
            username, password = credentials or (address.username, address.password)
            for command in greeting(username, password, 0 if credentials else address.database):
                await connection.call(command, writes=False)
    except TimeoutError as error:
        connection.close(error)
        raise faults.unreachable(error, where) from error
    except ServerError as error:
        connection.close()
        raise faults.ours(error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def greeting(username: str | None, password: str | None, database: int) -> list[Command]:
    """The commands to send on a new connection."""
    commands: list[Command] = []
    if password is not None:
        commands.append(("AUTH", username, password) if username else ("AUTH", password))
    if database:
        commands.append(("SELECT", database))
    return commands
