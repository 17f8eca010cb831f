"""A handful of asyncpg connections, lent out one statement or one short transaction at a time.

No session state: whatever a connection was used for, the next user finds it as new, also behind a
pooler in transaction mode. The one exception is the connection that listens (wakeups.py): it is lent out,
too, when no other is idle, so that an idle worker needs no other. What a busy time opened is closed when it
has not been needed for a while. What the server has undone, as after a serialisation failure, is tried again.

Names in our statements mean what the server itself means by them: the search_path of our sessions holds
nothing else, so functions and operators that others create in `public` are never called by us.
Behind a pooler each transaction says so for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.array_types import Connection
from taskharbor.drivers.postgres.faults import FOREIGN, RETRYABLE, Busy, ours, sqlstate, translated
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

_T = TypeVar("_T")
_TRIES = 6  # the first and five more
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 5.0  # after that a connection that was not needed is closed
SOON_SECONDS = 0.05  # a new connection takes as long, so one that comes back within that is as good
SLOW_SECONDS = 0.15  # while a call takes longer than that, a connection is opened before it is needed
RESERVE_SECONDS = 15.0  # after an urgent call that was slow, one connection is left to the next urgent one
KNOWN_SECONDS = 1.0  # at the most, to learn what became of a call that was given up
ANSWER_SECONDS = 60.0  # for one statement: a server that vanished without a word never answers

OUR_PATH = "pg_catalog, pg_temp"
# Our queries are planned for each call: a plan kept since the store was empty reads whole tables.
# They are short: compiling each of them again (jit) does not pay. Each has an index. Without statistics, as
# in a store that was just filled, a planner would read all jobs of a queue and sort them for one page.
_OUR_SETTINGS = {
    "search_path": OUR_PATH,
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
OUR_SESSION = "; ".join(f"set {name} = {value}" for name, value in _OUR_SETTINGS.items())
THEIR_SESSION = "; ".join(f"reset {name}" for name in _OUR_SETTINGS)
READ_ONLY = "set default_transaction_read_only = on"
_BEGIN = "begin isolation level read committed"

Step = Callable[[Any], Awaitable[_T]]
"""What to do inside one transaction, given its connection. It may be called more than once."""


class Connections:
    """The connections of one driver handle."""

    def __init__(self, address: Address, first: Any = None, *, only_looks: bool = False) -> None:
        self._address = address
        self._only_looks = only_looks
        begin = f"{_BEGIN} read only" if only_looks else _BEGIN
        self._begin = f"{begin}; set local search_path = {OUR_PATH}" if address.behind_pooler else begin
        self._idle: list[Any] = [] if first is None else [first]
        self._kept: Any = None  # the one that listens
        self._wanted: tuple[Any, asyncio.Future[None]] | None = None  # a caller waits for this one
        self._leaving: set[Any] = set()  # closed as soon as the call on it is over
        self._returned = asyncio.Event()  # set when a connection comes back
        self._lent: dict[Any, float] = {}  # with the time since when
        self._most_lent = 0  # at once, since the last look at it
        self._reserved_until = 0.0
        self._spare_timer: asyncio.TimerHandle | None = None
        self._is_opening_spare = False
        self._trimming: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(address.pool_size)
        self._is_closed = False
        self._background: set[asyncio.Task[Any]] = set()

    async def rows(
        self, statement: str, *arguments: object, writes: bool = True, urgent: bool = False
    ) -> Sequence[Any]:
        """One statement in a transaction of its own. On a slow line an urgent one finds a connection free."""

        def fetch(connection: Any) -> Awaitable[Sequence[Any]]:
            fetched: Awaitable[Sequence[Any]] = connection.fetch(statement, *arguments)
            return fetched

        if self._address.behind_pooler:
            return await self.step(fetch, writes=writes, urgent=urgent)
        return await self._tried(fetch, writes, urgent)

    async def step(self, step: Step[_T], *, writes: bool = True, urgent: bool = False) -> _T:
        """Several statements in one transaction."""

        async def in_transaction(connection: Any) -> _T:
            await connection.execute(self._begin)
            try:
                result = await step(connection)
            except (TimeoutError, asyncio.CancelledError):
                connection.terminate()  # a polite rollback would wait for a server that may be gone
                raise
            except BaseException:
                await connection.execute("rollback")
                raise
            await connection.execute("commit")
            return result

        return await self._tried(in_transaction, writes, urgent)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Any]:
        """A connection for the caller's own code, for as long as it needs it; not one of the pool.

        Names in it mean what they mean to its role everywhere else; `our_names` is for statements of ours.
        """
        with translated(writes=False):
            connection = await self._take(to_lend=True)
        try:
            if not self._address.behind_pooler:
                with translated(writes=False):
                    await connection.execute(THEIR_SESSION)
            yield connection
        finally:
            self._in_background(self._taken_back(connection))

    async def _taken_back(self, connection: Any) -> None:
        try:
            if not connection.is_closed() and not self._address.behind_pooler:
                await connection.execute(OUR_SESSION, timeout=CONNECT_SECONDS)
        except (*FOREIGN, asyncio.CancelledError):
            connection.terminate()
        else:
            self._give_back(connection)

    # ------------------------------------------------------------------ the one that listens

    async def keep(self) -> Any:
        """A connection that stays until `let_go`, to listen on."""
        self._kept = connection = await self._take()
        self._give_back(connection)
        return connection

    async def on(self, connection: Any, step: Step[_T]) -> _T:
        """Something that must happen on the one that stays. One caller at a time."""
        return await self._lent_by(lambda: self._take_this(connection), step)

    async def let_go(self, connection: Any) -> None:
        """It listens no more and is closed, after the call on it if there is one: what its session holds goes
        with it.
        """
        self._kept = None
        if connection in self._idle:
            self._idle.remove(connection)
            await _hang_up(connection)
        elif connection in self._lent:
            self._leaving.add(connection)
        else:
            connection.terminate()

    async def close(self) -> None:
        self._is_closed = True
        for timer in (self._trimming, self._spare_timer):
            if timer is not None:
                timer.cancel()
        for task in tuple(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        idle, self._idle = self._idle, []
        for connection in idle:
            await _hang_up(connection)

    async def _tried(self, step: Step[_T], writes: bool, urgent: bool) -> _T:
        for left in reversed(range(_TRIES)):
            try:
                return await self._once(step, urgent)
            except Busy:
                if not left:
                    raise
            except FOREIGN as error:
                if left and (sqlstate(error) in RETRYABLE or _may_ask_again(error, writes)):
                    continue
                raise ours(error, writes=writes) from error
        raise AssertionError("unreachable")

    async def _once(self, step: Step[_T], urgent: bool) -> _T:
        if not urgent:
            return await self._lent_by(self._take, step)
        began = self._loop.time()
        try:
            return await self._lent_by(lambda: self._take(urgent=True), step, known_seconds=0.0)
        finally:
            now = self._loop.time()
            if now - began > SLOW_SECONDS:
                self._reserved_until = now + RESERVE_SECONDS

    async def _lent_by(
        self, take: Callable[[], Awaitable[Any]], step: Step[_T], known_seconds: float = KNOWN_SECONDS
    ) -> _T:
        async with self._room:
            connection = await take()
            try:
                answer = await step(connection)
            except (TimeoutError, asyncio.CancelledError):
                # The next call may depend on what became of this one: that is waited for, but not for long.
                await asyncio.wait([self._suspect(connection)], timeout=known_seconds)
                raise
            except BaseException as error:
                if isinstance(error, asyncpg.InternalClientError):
                    connection.terminate()
                self._give_back(connection)
                raise
            self._give_back(connection)
            return answer

    def _suspect(self, connection: Any) -> asyncio.Task[None]:
        """Somebody would not wait any longer: is the server slow, or the line dead without a word?

        Where one line died, those that lie idle most likely did, too. Each is asked before it is used
        again, so that no statement ever waits behind an answer that will not come. The answer of this
        connection comes after the end of the call that was given up.
        """
        idle, self._idle = self._idle, []
        for one in idle:
            self._in_background(self._asked(one))
        return self._in_background(self._asked(connection))

    async def _asked(self, connection: Any) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.execute("select")
        except (*FOREIGN, asyncio.CancelledError):
            connection.terminate()
            self._report_change(connection)
        else:
            self._give_back(connection)

    async def _take(self, *, to_lend: bool = False, urgent: bool = False) -> Any:
        connection = self._taken_idle(to_lend, urgent)
        if connection is None and self._lent and not to_lend:
            self._returned.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SOON_SECONDS):
                    await self._returned.wait()
            connection = self._taken_idle(to_lend, urgent)
        if connection is None:
            connection = await self._new_or_returned(to_lend, urgent)
        self._note_lent(connection)
        if not self._idle and self._spare_timer is None:
            self._spare_timer = self._loop.call_later(SLOW_SECONDS, self._spare_if_slow)
        return connection

    def _spare_if_slow(self) -> None:
        """Are all in use, by calls that take long? A heartbeat would wait six round trips for a new one."""
        self._spare_timer = None
        if self._idle or not self._lent or self._is_closed:
            return
        left = min(self._lent.values()) + SLOW_SECONDS - self._loop.time()
        if left > 0:
            self._spare_timer = self._loop.call_later(left, self._spare_if_slow)
        elif not self._is_opening_spare and len(self._lent) < self._address.pool_size:
            self._is_opening_spare = True
            self._in_background(self._connected()).add_done_callback(self._spare_opened)

    def _spare_opened(self, connecting: asyncio.Task[Any]) -> None:
        self._is_opening_spare = False
        self._keep(connecting)

    def _taken_idle(self, to_lend: bool, urgent: bool) -> Any:
        while self._idle:
            if not urgent and len(self._idle) <= self._reserved():
                break
            if to_lend and self._idle[-1] is self._kept:  # it comes first, so there is no other
                break
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _reserved(self) -> int:
        """How many idle connections are left to urgent calls: one, where a new one would take long."""
        has_room = len(self._lent) + 1 < self._address.pool_size
        return int(has_room and self._loop.time() < self._reserved_until)

    def _note_lent(self, connection: Any) -> None:
        self._lent[connection] = self._loop.time()
        self._most_lent = max(self._most_lent, len(self._lent))

    async def _new_or_returned(self, to_lend: bool, urgent: bool) -> Any:
        """A new connection, or one that comes back before it: on a slow line that is much earlier.

        If the caller gives up, the new one is kept: the next caller needs it.
        """
        connecting = self._in_background(self._connected())
        try:
            while not connecting.done():
                self._returned.clear()
                returned = self._in_background(self._returned.wait())
                await asyncio.wait((connecting, returned), return_when=asyncio.FIRST_COMPLETED)
                returned.cancel()
                if not connecting.done() and (found := self._taken_idle(to_lend, urgent)) is not None:
                    connecting.add_done_callback(self._keep)
                    return found
        except asyncio.CancelledError:
            connecting.add_done_callback(self._keep)
            raise
        return connecting.result()

    async def _connected(self) -> Any:
        return await connect(self._address, only_looks=self._only_looks)

    async def _take_this(self, connection: Any) -> Any:
        if connection in self._idle:
            self._idle.remove(connection)
        elif not connection.is_closed():
            await self._handed(connection)
        if connection.is_closed():
            raise asyncpg.ConnectionDoesNotExistError("the connection that listens was lost")
        self._note_lent(connection)
        return connection

    async def _handed(self, connection: Any) -> None:
        """Wait until a connection that is in use is handed over."""
        handed = self._loop.create_future()
        self._wanted = (connection, handed)
        try:
            await handed
        except asyncio.CancelledError:
            self._wanted = None
            if not handed.cancelled():  # it was, just before
                self._give_back(connection)
            raise
        self._wanted = None

    def _keep(self, connecting: asyncio.Task[Any]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            self._give_back(connecting.result())

    def _in_background(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _give_back(self, connection: Any) -> None:
        # After a cancelled call it may be inside a transaction: no other call may get it like that.
        if connection.is_closed() or self._is_closed or connection.is_in_transaction():
            connection.terminate()
        elif connection in self._leaving:
            self._in_background(_hang_up(connection))
        elif self._is_wanted(connection):
            pass  # handed over below; among the idle ones another call would take it, too
        elif connection is self._kept:
            self._idle.insert(0, connection)  # last to be taken: the listening connection should stay free
        else:
            self._idle.append(connection)
            if self._trimming is None:
                self._trimming = self._loop.call_later(IDLE_SECONDS, self._trim)
        self._report_change(connection)

    def _report_change(self, connection: Any) -> None:
        """It is free again, or lost: wake the caller that waits for this very one, or for any."""
        self._lent.pop(connection, None)
        self._leaving.discard(connection)
        self._returned.set()
        if self._wanted is not None and self._is_wanted(connection):
            self._wanted[1].set_result(None)

    def _is_wanted(self, connection: Any) -> bool:
        return self._wanted is not None and self._wanted[0] is connection and not self._wanted[1].done()

    def _trim(self) -> None:
        """Close as many as were not needed since the last time; one stays, and the one that listens."""
        needed, self._most_lent = max(self._most_lent, 1) + self._reserved(), len(self._lent)
        spare = [one for one in self._idle if one is not self._kept]
        surplus = len(self._idle) + len(self._lent) - needed
        for connection in spare[: max(surplus, 0)]:
            self._idle.remove(connection)
            self._in_background(_hang_up(connection))
        is_more = len(self._idle) + len(self._lent) > 1
        self._trimming = self._loop.call_later(IDLE_SECONDS, self._trim) if is_more else None


def _may_ask_again(error: BaseException, writes: bool) -> bool:
    """asyncpg lost count of the answers on a connection, as after a cancelled call: a read moves on."""
    return not writes and isinstance(error, asyncpg.InternalClientError)


class Handle:
    """What every part of an open driver handle has."""

    address: Address
    clock: Clock
    entropy: Entropy
    orphans: Orphans
    _connections: Connections
    _sql: Statements


@asynccontextmanager
async def our_names(connection: Any) -> AsyncIterator[None]:
    """Inside the caller's transaction: until the end of this block, the search_path is ours."""
    theirs = await connection.fetchval("select pg_catalog.current_setting('search_path')")
    await connection.execute(f"set local search_path = {OUR_PATH}")
    yield
    # What runs at their commit, as deferred triggers do, is theirs again. After an error all of it is undone.
    await connection.execute("select set_config('search_path', $1, true)", theirs)


async def connect(address: Address, *, to_listen: bool = False, only_looks: bool = False) -> Any:
    """A new connection; foreign errors come out as they are. `only_looks`: the server refuses changes."""
    settings = {"application_name": "taskharbor"}
    if not address.behind_pooler:  # a pooler would refuse it, and its administrator knows
        settings["default_transaction_isolation"] = "read committed"
        if only_looks:
            settings["default_transaction_read_only"] = "on"
    is_direct = not address.behind_pooler or (to_listen and address.listen_dsn is not None)
    connection = await asyncpg.connect(
        address.listen_dsn if to_listen and address.listen_dsn else address.dsn,
        timeout=CONNECT_SECONDS,
        command_timeout=None if to_listen else ANSWER_SECONDS,
        statement_cache_size=0 if address.behind_pooler else 200,
        server_settings=settings,
        connection_class=Connection,
    )
    if is_direct:
        try:
            # Not among the settings above: `reset` must bring back what the role has by itself.
            await connection.execute(OUR_SESSION, timeout=CONNECT_SECONDS)
        except BaseException:
            connection.terminate()
            raise
    return connection


async def _hang_up(connection: Any) -> None:
    try:
        await connection.close(timeout=2)
    except FOREIGN:
        connection.terminate()
