"""Group commit: all requests that wait go into one transaction, and are answered after its commit.

    verbs ──request──► waiting ──► BEGIN, each step, COMMIT ──► answers, then wake-ups

One connection writes. A thread of its own serves the requests of async callers; a blocking caller takes
its turn in its own thread, and serves whatever else waits at the same time. So no call pays for a
hand-over that is not needed, and calls that wait together share one disk flush.
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

from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.sqlite.enqueue_one import EnqueueOne
from taskharbor.drivers.sqlite.faults import is_busy, translated, translation
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.step import HandleCache, Statements, Step
from taskharbor.drivers.sqlite.wakeups import Notices
from taskharbor.errors import DriverClosed, DriverUnavailable, StoreFull
from taskharbor.model.clock import Clock, micros
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob

T = TypeVar("T")
Work = Callable[[Step], Any]

_MOST_IN_ONE_COMMIT = 1000
_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.05

LITTLE = 64 * 1024 * 1024
"""Four times the usual log, in bytes."""
LONG_LOG = {"normal": 4000, "full": 1000}
"""Pages of 4 KiB between two checkpoints. A long log has fewer, larger write-backs; but while it still grows,
a flush costs nearly twice as much, and FULL flushes every commit."""
_SHORT_LOG = 64
KEPT_LOG = 64 * 1024 * 1024  # of a log that had to grow
_NO_LIMIT = 0xFFFFFFFE
_MOMENT = 0.01  # seconds, in which small steps write far less than LITTLE


class WriteRequest:
    """One verb that waits for its turn, and then its answer.

    The first to take the only ticket decides: the writer carries it out, or its caller takes it back.
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


class Writer:
    """The writing side of one handle."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        location: Location,
        sql: Statements,
        clock: Clock,
        entropy: Entropy,
        notify: Callable[[Notices], None],
        orphans: Orphans,
    ) -> None:
        self._connection = connection
        self._location = location
        self._sql = sql
        self._clock = clock
        self._entropy = entropy
        self._notify = notify
        self._orphans = orphans
        self._cache = HandleCache()
        self._room = Room(connection, location)
        self._one = EnqueueOne(connection, sql, self._cache)
        self._waiting: deque[WriteRequest] = deque()
        self._turn = threading.Lock()
        self._bell: SimpleQueue[Closing | None] = SimpleQueue()  # None: a request waits
        self._is_closed = False
        self._pid = os.getpid()
        threading.Thread(target=self._serve, name="taskharbor-sqlite-writer", daemon=True).start()

    # ------------------------------------------------------------------ in

    async def do(self, work: Callable[[Step], T], now: datetime | None) -> T:
        """Have this done and committed, from an event loop."""
        self._check()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        request = WriteRequest(work, now, future)
        self._waiting.append(request)
        self._bell.put(None)
        try:
            return await future
        except asyncio.CancelledError:
            if not request.take():
                await _answered(request)
            raise

    def do_blocking(self, work: Callable[[Step], T], now: datetime | None) -> T:
        """Have this done and committed, from any thread, without an event loop."""
        self._check()
        request = WriteRequest(work, now, None)
        self._waiting.append(request)
        with self._turn:
            while not request.is_done:
                self._take_turn()
        if request.error is not None:
            raise request.error
        answer: T = request.answer
        return answer

    def enqueue_one(self, job: NewJob, now: datetime | None) -> Enqueued | None:
        """Store one plain job from any thread, if no other request waits; None: the ordinary way decides."""
        self._check()
        at = now or self._clock.now()
        with self._turn:
            if self._waiting or self._connection.in_transaction:
                return None
            self._room.look_now_and_then(self._clock.monotonic())
            if not self._one.store(job, micros(at)):
                return None
        self._notify(Notices({job.queue}))
        return Enqueued(job.id, EnqueueResult.CREATED, at, 1)

    async def close(self) -> None:
        """Serve all requests, then close the file."""
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
        requests: list[WriteRequest] = []
        while self._waiting and len(requests) < _MOST_IN_ONE_COMMIT:
            requests.append(self._waiting.popleft())
        if not requests:
            return
        notices = Notices()
        try:
            self._carry_out(requests, notices)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            self._undo()
            for request in requests:
                request.error = request.error or error
        except BaseException:  # Ctrl+C in the thread of a blocking caller: the others only lose their answer
            self._undo()
            for request in requests:
                request.error = request.error or DriverUnavailable(
                    "interrupted before the answer came", done=None
                )
            answer(requests)
            raise
        else:
            if notices.orphans:
                self._orphans.note(notices.orphans)
        answer(requests)
        if any(isinstance(request.error, StoreFull) for request in requests):
            self._room.ran_out()
        if notices:
            self._notify(notices)

    def _carry_out(self, requests: list[WriteRequest], notices: Notices) -> None:
        if self._connection.in_transaction:  # what a failing rollback may have left open
            self._undo()
        self._room.look()
        begin(self._connection, self._location, self._entropy)
        if len(requests) == 1:
            self._run(requests[0], notices)
        else:
            for request in requests:
                self._run_apart(request, notices)
        if all(request.error is not None for request in requests):
            self._undo()
            return
        try:
            self._connection.execute("commit")
        except sqlite3.Error as error:
            failure = translation(error, self._location.path, committing=True)
            failure.__cause__ = error
            self._undo()
            for request in requests:
                request.error = request.error or failure
            notices.clear()

    def _run(self, request: WriteRequest, notices: Notices) -> None:
        if not request.take():
            request.error = asyncio.CancelledError()
            return
        step = Step(self._connection, self._sql, self._cache, request.now or self._clock.now(), notices)
        try:
            step.begin()
            request.answer = request.work(step)
            step.finish()
        except sqlite3.Error as error:
            request.error = translation(error, self._location.path)
            request.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            request.error = error

    def _run_apart(self, request: WriteRequest, notices: Notices) -> None:
        """One of several: when it fails, it fails alone."""
        mine = Notices()
        self._connection.execute("savepoint request")
        self._run(request, mine)
        if request.error is None:
            notices.add(mine)
        else:
            self._cache.forget()
            # Fails when SQLite has already undone everything (no room left): then no request was served.
            with translated(self._location.path):
                self._connection.execute("rollback to request")
        self._connection.execute("release request")

    def _undo(self) -> None:
        self._cache.forget()
        try:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            # The connection is of no use any more; the next begin says so.
            pass


class Closing:
    """How a thread reports its end to the event loop that asked for it.

    Joining it would take one more thread, and at the exit of the interpreter none can start.
    """

    def __init__(self) -> None:
        self._request = WriteRequest(lambda _: None, None, asyncio.get_running_loop().create_future())

    def over(self) -> None:
        """The last word of the thread."""
        answer([self._request])

    async def wait(self) -> None:
        if self._request.future is not None:
            await self._request.future


async def _answered(request: WriteRequest) -> None:
    """A cancelled caller waits for the outcome of its verb: the next one may depend on it."""
    while not request.is_answered:
        request.future = asyncio.get_running_loop().create_future()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it may have failed: the caller is gone
            await request.future


def answer(requests: list[WriteRequest]) -> None:
    """One message per event loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = defaultdict(list)
    for request in requests:
        request.is_done = True
        if request.loop is not None:
            by_loop[request.loop].append(request)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, mine)
        except RuntimeError:  # that loop is closed: no caller is left
            continue


def _resolve(requests: list[WriteRequest]) -> None:
    for request in requests:
        request.is_answered = True
        if request.future is None or request.future.done():
            continue
        if request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.answer)


# ------------------------------------------------------------------ a turn among processes


def begin(connection: sqlite3.Connection, location: Location, entropy: Entropy) -> None:
    """Become the writer, or raise DriverUnavailable when others kept the turn for the whole timeout.

    BEGIN IMMEDIATE, because a reader that becomes a writer half-way fails when another one wrote in
    between. The waiting is ours and not SQLite's: with chance in it, many processes share fairly.
    """
    try:
        when_free(connection, "begin immediate", location, entropy)
    except sqlite3.Error as error:
        raise translation(error, location.path) from error


def when_free(connection: sqlite3.Connection, sql: str, location: Location, entropy: Entropy) -> object:
    waited, wait = 0.0, _FIRST_WAIT
    while True:
        try:
            return connection.execute(sql).fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or waited >= location.timeout_seconds:
                raise
        pause = min(entropy.between(wait / 2, wait), location.timeout_seconds - waited)
        threading.Event().wait(pause)
        waited += pause
        wait = min(wait * 2, _LONGEST_WAIT)


# ------------------------------------------------------------------ room on the disk


class Room:
    """How much room the disk has for one writer. With little room it keeps a short log, and never more in it
    than the file can still take.

    Every commit goes into the write-ahead log first, and a checkpoint copies it into the file. So what is new
    is on the disk twice for a while. On a disk without room a long log is a trap: the checkpoint that would
    make it short finds no room for the file to grow. So while there is little room, checkpoints come early,
    a finished log is cut off, and no step may add more to the file than a checkpoint will find room for.
    """

    def __init__(self, connection: sqlite3.Connection, location: Location) -> None:
        self._connection = connection
        self._folder = os.path.dirname(location.path)
        self._log = f"{location.path}-wal"
        self._long_log = LONG_LOG[location.durability]
        self._is_little = False
        self._has_run_out = False  # since the last checkpoint that went through
        self._look_again = 0.0

    def ran_out(self) -> None:
        """A step was refused for want of room, which the file system may not show: there are quotas."""
        self._has_run_out = True

    def look_now_and_then(self, now: float) -> None:
        """Before a small step: as `look`, unless there was much room a moment ago."""
        if self._is_little or self._has_run_out or now >= self._look_again:
            self._look_again = now + _MOMENT
            self.look()

    def look(self) -> None:
        """Before a step, and outside of any transaction: see what room there is. Never raises."""
        free = self._free()
        if free >= LITTLE and not self._has_run_out:
            if self._is_little:
                self._live(is_little=False)
            return
        with contextlib.suppress(sqlite3.Error):  # the step itself will say what is wrong
            if not self._is_little:
                self._live(is_little=True)
            if self._has_run_out or self._log_bytes() > _SHORT_LOG * 8192:
                self._has_run_out = not self._shorten_log()
                free = self._free()
            self._limit_file(free)

    def _live(self, *, is_little: bool) -> None:
        self._is_little = is_little
        execute = self._connection.execute
        execute(f"pragma wal_autocheckpoint = {_SHORT_LOG if is_little else self._long_log}")
        execute(f"pragma journal_size_limit = {0 if is_little else KEPT_LOG}")
        if not is_little:
            execute(f"pragma max_page_count = {_NO_LIMIT}")

    def _shorten_log(self) -> bool:
        """Bring the log into the file and cut it off; whether that went through."""
        is_busy, _, _ = self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        return not is_busy

    def _limit_file(self, free: int) -> None:
        """A new page goes into the log and then into the file, so half of the room is for each."""
        if free >= LITTLE:
            return
        (pages,) = self._connection.execute("pragma page_count").fetchone()
        (page_bytes,) = self._connection.execute("pragma page_size").fetchone()
        self._connection.execute(f"pragma max_page_count = {pages + (free // 2) // page_bytes}")

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return LITTLE
        return disk.f_bavail * disk.f_frsize

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0
