"""Connections: one open driver per event loop, and one for callers that have none.

A driver belongs to the loop that opened it. A program may have several: the loop of its web
server, those of its tests, and the portal's, which serves blocking code.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - it must arrange its own end before ours, see below
import logging
import os
import threading
import weakref
from typing import Any

from taskharbor.client.gathering import Gathering
from taskharbor.client.portal import Portal
from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument

_log = logging.getLogger("taskharbor.client")


class Connection:
    """A driver in one event loop."""

    def __init__(self, driver: Driver, *, is_ours: bool) -> None:
        self.driver = driver
        self.gathering = Gathering(driver)
        self.is_ours = is_ours

    async def close(self) -> None:
        if self.is_ours:
            await self.driver.close()


def loop_here() -> asyncio.AbstractEventLoop:
    """The running event loop.

    Raises:
        InvalidArgument: there is none of asyncio: the caller runs under trio, say.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidArgument(
            "async calls need the event loop of asyncio, and none runs here; under trio, call the blocking "
            "form in a thread: `await trio.to_thread.run_sync(task.enqueue, ...)`; nothing was done"
        ) from None


class Connections:
    """The handles on one store.

    With `opens`, each loop gets a handle of its own, opened at first use and closed by us. Without
    it the driver is the caller's, who opened it and closes it; only blocking calls get a handle.
    """

    def __init__(self, driver: Driver, *, opens: bool) -> None:
        self.driver = driver
        self.portal = Portal()
        self._opens = opens
        self._start_afresh()
        _all.add(self)

    def _start_afresh(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._blocking_lock = threading.Lock()
        self.blocking: Driver | None = None
        """The portal's handle, once it is open: for the blocking enqueue, which needs no loop."""
        weakref.finalize(self, _close_portal, self.portal, self._by_loop).atexit = False

    def at_hand(self) -> Connection | None:
        """The connection of the running loop, if it is open already."""
        return self._by_loop.get(loop_here())

    async def here(self, tx: Any = None) -> Connection:
        """The connection of the running loop, opened if need be, beside a transaction of the caller."""
        if (there := self.at_hand()) is not None:
            return there
        if tx is not None:
            self.driver.check_tx(tx)
        return await self._open_in(loop_here())

    def for_blocking(self, tx: Any = None) -> Driver:
        """The portal's handle, opened if need be, beside a transaction of the caller."""
        with self._blocking_lock:
            if self.blocking is None:
                if tx is not None:
                    self.driver.check_tx(tx)
                self.blocking = self.portal.call(self.here).driver
            return self.blocking

    async def aclose(self) -> None:
        """Close the handle of this loop and the portal's."""
        there = self._by_loop.pop(loop_here(), None)
        if there is not None:
            await there.close()
        await _close_all(self._of_closed_loops())
        await asyncio.to_thread(self.close)

    def close(self, *, quietly: bool = False) -> None:
        """Close the portal and its handle."""
        self.blocking = None
        _close_portal(self.portal, self._by_loop, quietly=quietly)

    async def _open_in(self, loop: asyncio.AbstractEventLoop) -> Connection:
        async with self._locks.setdefault(loop, asyncio.Lock()):
            if loop in self._by_loop:
                return self._by_loop[loop]
            connection = await self._new_connection(loop)
            self._by_loop[loop] = connection
            await _close_all(self._of_closed_loops())
            return connection

    async def _new_connection(self, loop: asyncio.AbstractEventLoop) -> Connection:
        if not self._opens and loop is not self.portal.loop:
            return Connection(self.driver, is_ours=False)
        return Connection(await self.driver.another().open(), is_ours=True)

    def _of_closed_loops(self) -> list[Connection]:
        """The handles that `asyncio.run` and the like left behind; nobody else can close them any more."""
        closed = [loop for loop in list(self._by_loop) if loop.is_closed()]
        for loop in closed:
            self._locks.pop(loop, None)
        return [left for loop in closed if (left := self._by_loop.pop(loop, None)) is not None]

    def after_fork(self) -> None:
        """In a forked child: threads are gone and connections belong to the parent."""
        self.portal = Portal()
        self._start_afresh()


async def _close_all(connections: list[Connection]) -> None:
    """Threads and files of handles whose loop is gone are let go in the loop that runs."""
    for connection in connections:
        try:
            await connection.close()
        except Exception:  # noqa: BLE001 - part of it may be bound to the loop that is gone
            _log.debug("a handle of a closed event loop could not be closed in good order", exc_info=True)


def _close_portal(
    portal: Portal, by_loop: dict[asyncio.AbstractEventLoop, Connection], *, quietly: bool = False
) -> None:
    loop = portal.loop
    there = by_loop.pop(loop, None) if loop is not None else None
    portal.close(there.close if there is not None else None, quietly=quietly)


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _after_fork() -> None:
    for connections in list(_all):
        connections.after_fork()


def _at_the_end() -> None:
    """A store likes to be closed also by a program that does not think of it.

    Quietly: from here on Python starts no new thread (3.12 and later), which some stores want to.
    """
    for connections in list(_all):
        connections.close(quietly=True)


os.register_at_fork(after_in_child=_after_fork)
# atexit would be too late: by then threads and executors, which drivers use to close, are gone.
threading._register_atexit(_at_the_end)  # type: ignore[attr-defined]
