"""The reading side of one handle: a connection and a thread of its own, so that a query never waits
behind a writer, and short transactions, so that it never delays one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import datetime
from queue import SimpleQueue
from typing import TypeVar

from taskharbor.drivers.sqlite.faults import translation
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.step import HandleCache, Statements, Step
from taskharbor.drivers.sqlite.wakeups import Notices
from taskharbor.drivers.sqlite.writer import Closing, WriteRequest, answer
from taskharbor.errors import DriverClosed
from taskharbor.model.clock import Clock

T = TypeVar("T")


class Reader:
    """Steps that change nothing, each on one consistent picture of the store."""

    def __init__(
        self, connection: sqlite3.Connection, location: Location, sql: Statements, clock: Clock
    ) -> None:
        self._connection = connection
        self._location = location
        self._sql = sql
        self._clock = clock
        self._cache = HandleCache()
        self._requests: SimpleQueue[WriteRequest | Closing] = SimpleQueue()
        self._is_closed = False
        self._pid = os.getpid()
        threading.Thread(target=self._serve, name="taskharbor-sqlite-reader", daemon=True).start()

    async def do(self, look: Callable[[Step], T], now: datetime | None) -> T:
        if self._is_closed:
            raise DriverClosed
        if os.getpid() != self._pid:
            raise DriverClosed(
                "this handle was opened before the process was forked; open another() in the child instead"
            )
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._requests.put(WriteRequest(look, now, future))
        return await future

    async def close(self) -> None:
        self._is_closed = True
        if os.getpid() == self._pid:
            closing = Closing()
            self._requests.put(closing)
            await closing.wait()

    def _serve(self) -> None:
        while isinstance(request := self._requests.get(), WriteRequest):
            self._look(request)
            answer([request])
        self._connection.close()
        request.over()

    def _look(self, request: WriteRequest) -> None:
        step = Step(self._connection, self._sql, self._cache, request.now or self._clock.now(), Notices())
        self._end()  # what a failing rollback may have left open
        try:
            self._connection.execute("begin")
            request.answer = request.work(step)
        except sqlite3.Error as error:
            request.error = translation(error, self._location.path)
            request.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            request.error = error
        finally:
            self._end()

    def _end(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            # Nothing was written; the next begin says what is wrong.
            pass
