"""A handful of asyncpg connections, lent out one statement or one short transaction at a time.

No session state: whatever a connection was used for, the next user finds it as new, also behind a
pooler in transaction mode. Serialisation failures and deadlocks are tried again in here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.faults import FOREIGN, RETRYABLE, ours, sqlstate, translated

_T = TypeVar("_T")
_TRIES = 6  # the first and five more
CONNECT_SECONDS = 10.0

Step = Callable[[Any], Awaitable[_T]]
"""What to do inside one transaction, given its connection. It may be called more than once."""


class Connections:
    """The connections of one driver handle."""

    def __init__(self, address: Address, first: Any = None) -> None:
        self._address = address
        self._idle: list[Any] = [] if first is None else [first]
        self._room = asyncio.Semaphore(address.pool_size)
        self._is_closed = False

    async def rows(self, statement: str, *arguments: object, writes: bool = True) -> Sequence[Any]:
        """One statement in a transaction of its own."""
        if self._address.behind_pooler:
            return await self.step(lambda connection: connection.fetch(statement, *arguments), writes=writes)
        return await self._tried(lambda connection: connection.fetch(statement, *arguments), writes)

    async def step(self, step: Step[_T], *, writes: bool = True) -> _T:
        """Several statements in one transaction."""

        async def in_transaction(connection: Any) -> _T:
            async with connection.transaction(isolation="read_committed"):
                return await step(connection)

        return await self._tried(in_transaction, writes)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Any]:
        """A connection for as long as somebody else's code wants it; it is not one of the handful."""
        with translated(writes=False):
            connection = await self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    async def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await _hang_up(connection)

    async def _tried(self, step: Step[_T], writes: bool) -> _T:
        for left in reversed(range(_TRIES)):
            try:
                return await self._once(step)
            except FOREIGN as error:
                if left and sqlstate(error) in RETRYABLE:
                    continue
                raise ours(error, writes=writes) from error
        raise AssertionError("unreachable")

    async def _once(self, step: Step[_T]) -> _T:
        async with self._room:
            connection = await self._take()
            try:
                return await step(connection)
            finally:
                self._give_back(connection)

    async def _take(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._address)

    def _give_back(self, connection: Any) -> None:
        # In the middle of something after a cancelled call: nobody else shall find it like that.
        if connection.is_closed() or self._is_closed or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(connection)


async def connect(address: Address, *, to_listen: bool = False) -> Any:
    """A new connection; foreign errors come out as they are."""
    settings = {"application_name": "taskharbor"}
    if not address.behind_pooler:  # a pooler would refuse it, and its administrator knows
        settings["default_transaction_isolation"] = "read committed"
    return await asyncpg.connect(
        address.listen_dsn if to_listen and address.listen_dsn else address.dsn,
        timeout=CONNECT_SECONDS,
        statement_cache_size=0 if address.behind_pooler else 200,
        server_settings=settings,
    )


async def _hang_up(connection: Any) -> None:
    try:
        await connection.close(timeout=2)
    except FOREIGN:
        connection.terminate()
