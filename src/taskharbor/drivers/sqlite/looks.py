"""The reading side of one handle: a connection and a thread of its own, so that looking never waits
behind a writer, and short transactions, so that it never holds one up.
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

from taskharbor.drivers.sqlite.commits import Closing, Post, answer
from taskharbor.drivers.sqlite.faults import translation
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.statements import Statements
from taskharbor.drivers.sqlite.step import Hints, Kept, Step
from taskharbor.errors import DriverClosed
from taskharbor.model.clock import Clock

T = TypeVar("T")


class Looks:
    """Steps that change nothing, each on one consistent picture of the store."""

    def __init__(
        self, connection: sqlite3.Connection, location: Location, sql: Statements, clock: Clock
    ) -> None:
        self._connection = connection
        self._location = location
        self._sql = sql
        self._clock = clock
        self._kept = Kept()
        self._posts: SimpleQueue[Post | Closing] = SimpleQueue()
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
        self._posts.put(Post(look, now, future))
        return await future

    async def close(self) -> None:
        self._is_closed = True
        if os.getpid() == self._pid:
            closing = Closing()
            self._posts.put(closing)
            await closing.wait()

    def _serve(self) -> None:
        while isinstance(post := self._posts.get(), Post):
            self._look(post)
            answer([post])
        self._connection.close()
        post.over()

    def _look(self, post: Post) -> None:
        step = Step(self._connection, self._sql, self._kept, post.now or self._clock.now(), Hints())
        self._end()  # what a failing rollback may have left open
        try:
            self._connection.execute("begin")
            post.answer = post.work(step)
        except sqlite3.Error as error:
            post.error = translation(error, self._location.path)
            post.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            post.error = error
        finally:
            self._end()

    def _end(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            # Nothing was written; the next begin says what is wrong.
            pass
