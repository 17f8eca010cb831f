"""A transaction for a handler's own writes, whose commit carries the ack of its job."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import datetime
from typing import TypeVar

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.sqlite.caller_transaction import do_quietly_in
from taskharbor.drivers.sqlite.connection import open_writer
from taskharbor.drivers.sqlite.faults import translated
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.settle import settle
from taskharbor.drivers.sqlite.step import Statements
from taskharbor.drivers.sqlite.wakeups import Notices
from taskharbor.drivers.sqlite.writer import begin
from taskharbor.errors import InvalidArgument
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.settlement import Ack

T = TypeVar("T")


class AckTransaction:
    """What one handle needs to open such transactions: each on a connection of its own."""

    def __init__(
        self,
        location: Location,
        sql: Statements,
        clock: Clock,
        entropy: Entropy,
        notify: Callable[[Notices], None],
    ) -> None:
        self._location = location
        self._sql = sql
        self._clock = clock
        self._entropy = entropy
        self._notify = notify

    @asynccontextmanager
    async def transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AsyncIterator[sqlite3.Connection]:
        with closing(await _in_thread(self._connect)) as connection:  # closing undoes what is not committed
            await _in_thread(lambda: begin(connection, self._location, self._entropy))
            yield connection
            await _in_thread(lambda: self._finish(connection, ack(), now), on_settled)

    def _connect(self) -> sqlite3.Connection:
        return open_writer(self._location, self._entropy)

    def _finish(self, connection: sqlite3.Connection, ack: Ack, now: datetime | None) -> Settled:
        if not connection.in_transaction:
            raise InvalidArgument(
                "the handler ended the transaction itself, so the job could not be acknowledged with it; "
                "leave BEGIN, COMMIT and ROLLBACK to ctx.transaction()"
            )
        at = now or self._clock.now()
        [answer], notices = do_quietly_in(
            connection, lambda step: settle(step, [ack]), self._location, self._sql, at
        )
        if not isinstance(answer, Settled):
            raise answer
        with translated(self._location.path, committing=True):
            connection.execute("commit")
        if notices:
            self._notify(notices)
        return answer


async def _in_thread(work: Callable[[], T], then: Callable[[T], None] | None = None) -> T:
    """Run it in a thread, where it may wait. A cancelled caller is cancelled when the work has ended."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if future.exception() is None:
            _undo_or_report(future.result(), then)
        raise
    answer = future.result()
    if then is not None:
        then(answer)
    return answer


def _undo_or_report(answer: T, then: Callable[[T], None] | None) -> None:
    if then is not None:
        then(answer)
    elif isinstance(answer, sqlite3.Connection):
        answer.close()
