"""Connections to the server, kept and reused, one call at a time on each.

take ──► an idle connection, or a new one ──► call ──► response ──► give back ──► idle
                                               │ lost, too slow: dropped, never used again
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import cast

from taskharbor.drivers.http.address import Address
from taskharbor.drivers.http.faults import Lost, TooSlow, ours
from taskharbor.drivers.http.response import NotHttp, ResponseParser
from taskharbor.drivers.wire import BOOT_HEADER
from taskharbor.errors import DriverClosed

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 55.0  # firewalls and proxies drop idle connections silently, usually after a minute
_BOOT = BOOT_HEADER.lower()


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response = ResponseParser()
        self._waiter: asyncio.Future[ResponseParser] | None = None
        self._error: Exception | None = None
        self.is_open = True
        self.idle_since = 0.0
        self.boot = ""
        """Which start of which server answered here last."""

    async def call(self, request: bytes, seconds: float) -> ResponseParser:
        """Send a request and wait. Raises Lost, TooSlow or NotHttp; the connection cannot be used after that.

        If the caller is cancelled, the response still arrives: see `rest_of_call`.
        """
        self._response = ResponseParser()
        self._error = None
        waiter: asyncio.Future[ResponseParser] = self._loop.create_future()
        self._waiter = waiter
        assert self._transport is not None  # noqa: S101 - only connected ones are handed out
        self._transport.write(request)
        timer = self._loop.call_later(seconds, self._too_slow, seconds)
        try:
            return await waiter
        finally:
            timer.cancel()

    def rest_of_call(self) -> asyncio.Future[ResponseParser]:
        """The response to a call whose caller was cancelled."""
        self._waiter = waiter = self._loop.create_future()
        if self._error is not None:
            waiter.set_exception(self._error)
        elif self._response.is_complete:
            waiter.set_result(self._response)
        return waiter

    def drop(self) -> None:
        self.is_open = False
        if self._transport is not None:
            with suppress(RuntimeError):  # its loop was closed
                self._transport.abort()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        response = self._response
        try:
            response.feed(data)
        except NotHttp as error:
            self._fail(error)
            return
        if response.is_complete:
            self._complete(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._response.is_complete:
            return
        if self._response.end():
            self._complete(self._response)
        else:
            self._fail(Lost("the connection broke"))

    def _complete(self, response: ResponseParser) -> None:
        self.is_open = self.is_open and response.keeps_alive
        self.boot = response.headers.get(_BOOT, "")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)

    def _too_slow(self, seconds: float) -> None:
        self._fail(TooSlow(seconds))

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.drop()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class ConnectionPool:
    """The connections of one handle."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(address.connections)
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._is_closed = False

    async def take(self, *, fresh: bool = False) -> Connection:
        """A connection for one call, to be given back. Raises DriverUnavailable or StoreRefused."""
        await self._places.acquire()
        try:
            if self._is_closed:
                raise DriverClosed
            connection = None if fresh else self._waiting()
            if connection is None:
                connection = await self._connect()
                self._all.add(connection)
            return connection
        except BaseException:
            self._places.release()
            raise

    def give_back(self, connection: Connection) -> None:
        if connection.is_open:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.drop()
            self._all.discard(connection)
        self._places.release()

    def forget_unused_since(self, instant: float) -> None:
        """Drop connections that have answered nothing since then: what killed one has often killed all."""
        old = [connection for connection in self._idle if connection.idle_since < instant]
        self._idle = [connection for connection in self._idle if connection not in old]
        for connection in old:
            connection.drop()
            self._all.discard(connection)

    def close(self) -> None:
        self._is_closed = True
        for connection in self._all:
            connection.drop()
        self._all.clear()
        self._idle.clear()

    def _waiting(self) -> Connection | None:
        """The connection used last, so that the others age and are dropped."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self._loop.time() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.drop()
            self._all.discard(connection)
        return None

    async def _connect(self) -> Connection:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await self._loop.create_connection(
                    Connection,
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                )
        except OSError as error:
            raise ours(error, address) from error
        return connection
