"""Group commit: everything that waits goes into one transaction, and is answered after its commit.

    verbs ──post──► waiting ──► BEGIN, each step, COMMIT ──► answers, then wake-ups

One connection writes. A thread of its own takes what async callers posted; a blocking caller takes
its turn in its own thread, and carries out whatever else waits while it is at it. So nobody waits
for a hand-over that is not needed, and nobody pays for a disk flush alone when others wait too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import datetime
from queue import SimpleQueue
from typing import Any, TypeVar

from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.sqlite.connection import begin
from taskharbor.drivers.sqlite.faults import translated, translation
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.room import Room
from taskharbor.drivers.sqlite.statements import Statements
from taskharbor.drivers.sqlite.step import Hints, Kept, Step
from taskharbor.errors import DriverClosed, DriverUnavailable, StoreFull, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

T = TypeVar("T")
Work = Callable[[Step], Any]

_MOST_IN_ONE_COMMIT = 1000


class Post:
    """One verb that waits for its turn, and then its answer.

    Whoever takes the only ticket decides: the writer carries it out, or its caller takes it back.
    """

    __slots__ = ("answer", "error", "future", "is_answered", "is_done", "loop", "now", "tickets", "work")

    def __init__(self, work: Work, now: datetime | None, future: asyncio.Future[Any] | None) -> None:
        self.work = work
        self.now = now
        self.future = future
        self.loop = None if future is None else future.get_loop()
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.is_answered = False
        self.tickets = [True]

    def take(self) -> bool:
        """The ticket, once, whatever threads try at the same time."""
        try:
            return self.tickets.pop()
        except IndexError:
            return False


class Commits:
    """The writing side of one handle."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        location: Location,
        sql: Statements,
        clock: Clock,
        entropy: Entropy,
        tell: Callable[[Hints], None],
        orphans: Orphans,
    ) -> None:
        self._connection = connection
        self._location = location
        self._sql = sql
        self._clock = clock
        self._entropy = entropy
        self._tell = tell
        self._orphans = orphans
        self._kept = Kept()
        self._room = Room(connection, location)
        self._waiting: deque[Post] = deque()
        self._turn = threading.Lock()
        self._bell: SimpleQueue[Closing | None] = SimpleQueue()  # None: somebody waits
        self._is_closed = False
        self._pid = os.getpid()
        threading.Thread(target=self._serve, name="taskharbor-sqlite-writer", daemon=True).start()

    # ------------------------------------------------------------------ in

    async def do(self, work: Callable[[Step], T], now: datetime | None) -> T:
        """Have this done and committed, from an event loop."""
        self._check()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        post = Post(work, now, future)
        self._waiting.append(post)
        self._bell.put(None)
        try:
            return await future
        except asyncio.CancelledError:
            if not post.take():
                await _answered(post)
            raise

    def do_here(self, work: Callable[[Step], T], now: datetime | None) -> T:
        """Have this done and committed, from any thread, without an event loop."""
        self._check()
        post = Post(work, now, None)
        self._waiting.append(post)
        with self._turn:
            while not post.is_done:
                self._take_turn()
        if post.error is not None:
            raise post.error
        answer: T = post.answer
        return answer

    async def close(self) -> None:
        """Finish what was posted, then let the file go."""
        self._is_closed = True
        if os.getpid() != self._pid:  # the thread and the connection belong to the parent
            return
        closing = Closing()
        self._bell.put(closing)
        await closing.wait()

    def _check(self) -> None:
        if self._is_closed:
            raise DriverClosed
        if os.getpid() != self._pid:
            raise DriverClosed(
                "this handle was opened before the process was forked; open another() in the child instead"
            )

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        while (closing := self._bell.get()) is None:
            if self._waiting:
                with self._turn:
                    self._take_turn()
        with self._turn:
            while self._waiting:
                self._take_turn()
            self._connection.close()
        closing.over()

    def _take_turn(self) -> None:
        """Carry out what waits, as one commit. The caller holds the turn."""
        posts: list[Post] = []
        while self._waiting and len(posts) < _MOST_IN_ONE_COMMIT:
            posts.append(self._waiting.popleft())
        if not posts:
            return
        hints = Hints()
        try:
            self._carry_out(posts, hints)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            self._undo()
            for post in posts:
                post.error = post.error or error
        except BaseException:  # Ctrl+C in the thread of a blocking caller: the others only lose their answer
            self._undo()
            for post in posts:
                post.error = post.error or DriverUnavailable("interrupted before the answer came", done=None)
            answer(posts)
            raise
        else:
            self._orphans.note(hints.orphans)
        answer(posts)
        if any(isinstance(post.error, StoreFull) for post in posts):
            self._room.ran_out()
        if hints:
            self._tell(hints)

    def _carry_out(self, posts: list[Post], hints: Hints) -> None:
        if self._connection.in_transaction:  # what a failing rollback may have left open
            self._undo()
        self._room.look()
        begin(self._connection, self._location, self._entropy)
        if len(posts) == 1:
            self._run(posts[0], hints)
        else:
            for post in posts:
                self._run_apart(post, hints)
        if all(post.error is not None for post in posts):
            self._undo()
            return
        try:
            with translated(self._location.path, committing=True):
                self._connection.execute("commit")
        except TaskHarborError as error:
            self._undo()
            for post in posts:
                post.error = post.error or error
            hints.clear()

    def _run(self, post: Post, hints: Hints) -> None:
        if not post.take():
            post.error = asyncio.CancelledError()
            return
        step = Step(self._connection, self._sql, self._kept, post.now or self._clock.now(), hints)
        try:
            post.answer = post.work(step)
            step.finish()
        except sqlite3.Error as error:
            post.error = translation(error, self._location.path)
            post.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            post.error = error

    def _run_apart(self, post: Post, hints: Hints) -> None:
        """One of several: when it fails, it fails alone."""
        mine = Hints()
        self._connection.execute("savepoint post")
        self._run(post, mine)
        if post.error is None:
            hints.add(mine)
        else:
            self._kept.forget()
            # Fails when SQLite has already undone everything (no room left): then nobody was served.
            with translated(self._location.path):
                self._connection.execute("rollback to post")
        self._connection.execute("release post")

    def _undo(self) -> None:
        self._kept.forget()
        try:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            # The connection is of no use any more; the next begin says so.
            pass


class Closing:
    """How a thread tells the event loop that asked it to end that it has.

    Joining it would take one more thread, and at the exit of the interpreter none can start.
    """

    def __init__(self) -> None:
        self._post = Post(lambda _: None, None, asyncio.get_running_loop().create_future())

    def over(self) -> None:
        """The last word of the thread."""
        answer([self._post])

    async def wait(self) -> None:
        if self._post.future is not None:
            await self._post.future


async def _answered(post: Post) -> None:
    """Whoever gives up waits until it is known what became of the verb: the next one may depend on it."""
    while not post.is_answered:
        post.future = asyncio.get_running_loop().create_future()
        with contextlib.suppress(
            asyncio.CancelledError, Exception
        ):  # it may have failed: nobody asks any more
            await post.future


def answer(posts: list[Post]) -> None:
    """One message per event loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Post]] = defaultdict(list)
    for post in posts:
        post.is_done = True
        if post.loop is not None:
            by_loop[post.loop].append(post)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, mine)
        except RuntimeError:  # that loop is closed: nobody waits any more
            continue


def _resolve(posts: list[Post]) -> None:
    for post in posts:
        post.is_answered = True
        if post.future is None or post.future.done():
            continue
        if post.error is not None:
            post.future.set_exception(post.error)
        else:
            post.future.set_result(post.answer)
