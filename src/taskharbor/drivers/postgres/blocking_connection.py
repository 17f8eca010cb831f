"""A psycopg connection with a deadline on every reply, for blocking callers.

What runs through a cursor is as psycopg made it, under the deadline. `ask` leaves the cursor out: for a
statement whose arguments are bytes already that is a third of the work.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import pq

from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.connections import ANSWER_SECONDS, CONNECT_SECONDS
from taskharbor.model.clock import SystemClock

_T = TypeVar("_T")
_NAME = b"taskharbor_ask"
_BINARY = 1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_instant = struct.Struct("!q")
_clock = SystemClock()


class BlockingConnection(psycopg.Connection[Any]):
    """Used by one thread at a time. After a TimeoutError it must not be used any more."""

    answer_seconds = ANSWER_SECONDS
    _asked: bytes | None = None  # the statement that is prepared
    _ears: Any = None

    def wait(self, gen: Generator[Any, Any, _T], *arguments: Any, **options: Any) -> _T:
        """What psycopg waits with, under the deadline."""
        ends = _clock.monotonic() + self.answer_seconds
        return super().wait(_until(ends, gen), *arguments, **options)

    def ask(
        self, statement: bytes, values: Sequence[bytes | None], formats: Sequence[int], *, by_name: bool
    ) -> pq.abc.PGresult:
        """One statement with one answer. `by_name`: prepare it first, and only once on this connection."""
        line = self.pgconn
        if not by_name:
            line.send_query_params(statement, values, None, formats, _BINARY)
            return self._answer()
        if self._asked != statement:
            line.send_prepare(_NAME, statement)
            self._answer()
            self._asked = statement
        line.send_query_prepared(_NAME, values, formats, _BINARY)
        return self._answer()

    def _answer(self) -> pq.abc.PGresult:
        line = self.pgconn
        ends = _clock.monotonic() + self.answer_seconds
        while line.flush():
            self._look(ends, writes=True)
            line.consume_input()
        answer = None
        while True:
            while line.is_busy():
                self._look(ends)
                line.consume_input()
            result = line.get_result()
            if result is None:
                break
            answer = answer or result
        return _good(answer)

    def _look(self, ends: float, *, writes: bool = False) -> None:
        """Until there is something to read, or room to write."""
        left = ends - _clock.monotonic()
        if self._ears is None:
            self._ears = select.poll()
        self._ears.register(self.pgconn.socket, select.POLLIN | (select.POLLOUT if writes else 0))
        if left <= 0 or not self._ears.poll(left * 1000):
            raise TimeoutError


def connected(address: Address) -> BlockingConnection:
    """A new line; psycopg's errors come out as they are."""
    return BlockingConnection.connect(
        address.dsn,
        autocommit=True,
        connect_timeout=int(CONNECT_SECONDS),
        prepare_threshold=None if address.behind_pooler else 2,
        application_name="taskharbor",
    )


def instant_in(answer: pq.abc.PGresult) -> datetime | None:
    """The one value of an answer, a timestamptz."""
    value = answer.get_value(0, 0)
    if value is None:
        return None
    return _EPOCH + timedelta(microseconds=_instant.unpack(value)[0])


def _good(answer: pq.abc.PGresult | None) -> pq.abc.PGresult:
    if answer is None:
        raise psycopg.OperationalError("the connection gave no answer")
    if answer.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(answer)
    return answer


def _until(ends: float, gen: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
    """The same generator, which fails when its time is over. It is resumed at least ten times a second."""
    wish = next(gen)
    while True:
        ready = yield wish
        if not ready and _clock.monotonic() > ends:
            raise TimeoutError
        try:
            wish = gen.send(ready)
        except StopIteration as over:
            result: _T = over.value
            return result
