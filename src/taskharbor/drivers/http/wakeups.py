"""Wake-ups over HTTP: an endless response with one wake-up per line, requested again when it breaks.

A new listener gets one wake-up per queue, and the cancels it may have missed; so nothing is lost while the
connection is down.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress

from taskharbor.drivers import wire
from taskharbor.drivers.http import decoding
from taskharbor.drivers.http.address import Address
from taskharbor.drivers.http.connections import CONNECT_SECONDS
from taskharbor.drivers.http.faults import Lost, ours
from taskharbor.drivers.http.response import NotHttp, ResponseParser
from taskharbor.drivers.messages import Inbox, Wakeup
from taskharbor.errors import DriverUnavailable, TaskHarborError
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy

_log = logging.getLogger("taskharbor.drivers.http")

SILENCE_SECONDS = 35.0  # the server sends a sign of life every ten
LONGEST_PAUSE = 5.0
LONGEST_LINE = 16 * 1024
MOST_UNREAD = 10_000
_clock = SystemClock()


class RemoteWakeups(Inbox):
    """The inbox of one listener, filled by a stream."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        request: Callable[[], bytes],
        entropy: Entropy,
        leave: Callable[[RemoteWakeups], None],
    ) -> None:
        super().__init__()
        self._address = address
        self._tls = tls
        self._request = request
        self._entropy = entropy
        self._leave = leave
        self._error: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="taskharbor-wakeups")

    def put(self, wakeup: Wakeup) -> None:
        if wakeup not in self._unread and len(self._unread) >= MOST_UNREAD:
            del self._unread[next(iter(self._unread))]  # may be lost: a poll finds the job
        super().put(wakeup)

    async def __anext__(self) -> Wakeup:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            if self._error is not None:
                raise self._error from None
            raise

    async def aclose(self) -> None:
        self._leave(self)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._error = None
        self.end()

    # ------------------------------------------------------------------ the stream

    async def _follow(self) -> None:
        """Listen for ever; ends only if the server will never answer."""
        pause = 0.1
        while True:
            try:
                await self._read_once()
                pause = 0.1
            except (DriverUnavailable, Lost, OSError) as error:
                _log.info("no wake-ups from %s for now (%s); polling goes on", self._address.shown, error)
            except Exception as error:  # noqa: BLE001 - the reader gets it
                self._error = error
                self._is_closed = True
                self._news.set()
                return
            await _clock.sleep(self._entropy.between(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _read_once(self) -> None:
        """Read until the server ends the stream. Raises if it breaks or never began."""
        reader, writer = await self._connected()
        try:
            writer.write(self._request())
            await self._read_lines(reader)
        except NotHttp as error:
            raise decoding.not_http(error, self._address) from error
        finally:
            writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                )
        except OSError as error:
            raise ours(error, address) from error

    async def _read_lines(self, reader: asyncio.StreamReader) -> None:
        response, begun = ResponseParser(), b""
        while not response.is_complete:
            async with asyncio.timeout(SILENCE_SECONDS):
                data = await reader.read(65536)
            if data:
                response.feed(data)
            elif not response.end():
                raise Lost("the stream broke")
            if response.has_begun and not decoding.is_success(response):
                raise await self._refusal(response, reader)
            *lines, begun = (begun + response.take_body()).split(b"\n")
            if len(begun) > LONGEST_LINE:
                raise NotHttp("a line of it has no end")
            for line in lines:
                self._heard(line)

    def _heard(self, line: bytes) -> None:
        if line.strip():
            self.put(wire.read_answer("wakeups", line))

    async def _refusal(self, response: ResponseParser, reader: asyncio.StreamReader) -> TaskHarborError:
        """The error for a response that is no stream, once it is complete."""
        async with asyncio.timeout(self._address.timeout_seconds):
            while not response.is_complete:
                data = await reader.read(65536)
                if not data:
                    response.end()
                    break
                response.feed(data)
        return decoding.error_in(response, response.take_body(), self._address)
