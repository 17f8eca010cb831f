"""The calls of one handle: sent, sent again after a lost reply, and awaited even if the caller was cancelled.

call ──► answered
  │ the connection broke: it is unknown whether the call was done
  └──► the same call again, with the same id ──► answered: done once, whatever happened before
            │ the server does not know, or is away
            └──► DriverUnavailable, done=None
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from taskharbor.drivers.http import decoding
from taskharbor.drivers.http.address import Address
from taskharbor.drivers.http.connections import Connection, ConnectionPool
from taskharbor.drivers.http.faults import Lost, TooSlow, unanswered
from taskharbor.drivers.http.requests import Requests, repeat_of
from taskharbor.drivers.http.response import NotHttp, ResponseParser
from taskharbor.errors import DriverUnavailable

_HEAR_OUT_SECONDS = 5.0
_ORDER_SECONDS = 2.0  # how long a later call waits for it: order matters, but less than a lease
_SILENCE_SECONDS = 5.0  # a call that was given up after so long has probably met a dead connection

Unheard = Callable[[str, Any], Awaitable[None]]
"""Called with the answer to a call whose caller was cancelled: its verb and the answer."""


class Calls:
    """Calls verbs on the server for one handle."""

    def __init__(
        self,
        address: Address,
        pool: ConnectionPool,
        requests: Requests,
        on_unheard: Unheard,
    ) -> None:
        self._address = address
        self._pool = pool
        self._requests = requests
        self._on_unheard = on_unheard
        self._loop = asyncio.get_running_loop()
        self._unheard: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.Task[None]] = set()  # of those: so old that no call waits for them
        self._has_many_servers = False  # a load balancer spreads the calls of one connection

    async def call(self, verb: str, body: bytes) -> Any:
        """Call a verb and return its answer. Waits first for recent calls whose caller was cancelled."""
        recent = self._unheard - self._silent
        if recent:
            await asyncio.wait(recent, timeout=_ORDER_SECONDS)
        return await self.send(verb, body)

    async def send(self, verb: str, body: bytes) -> Any:
        """The same without waiting for those."""
        call = self._requests.next_call()
        sent = self._loop.time()
        connection = await self._pool.take()
        boot = connection.boot
        try:
            response = await self._on(connection, verb, self._requests.request(verb, body, call))
        except Lost:
            again = repeat_of("" if self._has_many_servers else boot, self._loop.time() - sent)
            response = await self._once_more(verb, self._requests.request(verb, body, call, again))
        else:
            self._has_many_servers |= bool(boot) and boot != connection.boot
        return self._read(verb, response)

    async def close(self) -> None:
        """Wait for calls whose caller was cancelled, but not for long."""
        if self._unheard:
            await asyncio.wait(tuple(self._unheard), timeout=_HEAR_OUT_SECONDS)
            for task in self._unheard:
                task.cancel()

    async def _once_more(self, verb: str, request: bytes) -> ResponseParser:
        try:
            connection = await self._pool.take(fresh=True)
        except DriverUnavailable as error:
            raise unanswered(error, self._address) from error
        try:
            return await self._on(connection, verb, request)
        except Lost as error:
            raise unanswered(error, self._address) from error

    async def _on(self, connection: Connection, verb: str, request: bytes) -> ResponseParser:
        sent = self._loop.time()
        try:
            response = await connection.call(request, self._address.timeout_seconds)
        except asyncio.CancelledError:
            task = self._loop.create_task(self._hear_out(connection, verb, connection.rest_of_call()))
            self._unheard.add(task)
            task.add_done_callback(self._unheard.discard)
            if self._loop.time() - sent > _SILENCE_SECONDS:
                self._silent.add(task)
                task.add_done_callback(self._silent.discard)
                self._pool.forget_unused_since(sent)
            raise
        except BaseException as error:
            self._pool.give_back(connection)
            if isinstance(error, TooSlow):
                raise unanswered(error, self._address) from error
            if isinstance(error, NotHttp):
                raise decoding.not_http(error, self._address) from error
            raise
        self._pool.give_back(connection)
        return response

    async def _hear_out(
        self, connection: Connection, verb: str, rest: asyncio.Future[ResponseParser]
    ) -> None:
        """Await the response of a cancelled caller: claimed jobs must not be lost, and order must hold."""
        try:
            async with asyncio.timeout(_HEAR_OUT_SECONDS):
                response = await rest
        except (TimeoutError, Lost, NotHttp, TooSlow, asyncio.CancelledError):
            connection.drop()
            return
        finally:
            self._pool.give_back(connection)
        with suppress(Exception):
            await self._on_unheard(verb, self._read(verb, response))

    def _read(self, verb: str, response: ResponseParser) -> Any:
        return decoding.read(verb, response, self._address)
