"""Where `run_in="process"` handlers run: `python -m taskharbor.worker.executors.handler_process`.

One job at a time, in the main thread, which waits for it on the connection itself: no other thread takes
part. A second thread reads requests to stop, at the signal that the worker sends with each, and watches the
connection: when that ends, the process and its group end at once.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections import deque
from contextlib import ExitStack, suppress
from contextvars import copy_context
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec.structs import replace

from taskharbor.errors import DecodeError
from taskharbor.middleware import around_every_process_call, running
from taskharbor.model.checks import MAX_PAYLOAD
from taskharbor.model.clock import SystemClock
from taskharbor.model.job import Progress
from taskharbor.model.outcome import Failed, Outcome
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.text import ERROR_LIMIT, safe_text
from taskharbor.tasks import Handler, job_handler, load_function
from taskharbor.tasks.handler import full_name
from taskharbor.worker.attempt import JobContext, bind_structlog
from taskharbor.worker.cancellation import Cancellation
from taskharbor.worker.executors.contract import BadPayload
from taskharbor.worker.executors.gpu_context import context_trouble
from taskharbor.worker.executors.process_tree import LOST_CONNECTION, die_with_parent
from taskharbor.worker.executors.wire import (
    ChildHello,
    Frames,
    FromChild,
    ProgressMade,
    Ready,
    Start,
    Stop,
    ended,
    frame,
    to_child,
)
from taskharbor.worker.outcomes import DONE, failure_of, success_of

LOGS_VARIABLE = "TASKHARBOR_LOGS"
"""How the worker logs: what `log_to_stderr` in observe/logs.py passes to processes started from there."""
MAX_LEAKED_THREADS = 32
MAX_LEAKED_FILES = 128
PROGRESS_SECONDS = 0.1
WATCH_SECONDS = 1.0
BUSY_WATCH_SECONDS = 0.2  # a request to stop is read then at the latest: a handler may catch SIGTERM itself


class _Stopped(BaseException):
    """Raised in a handler that must stop."""


class HandlerProcess:
    """The process side: reads jobs, runs them, answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._clock = SystemClock()
        self._frames = Frames()
        self._jobs: deque[Start] = deque()
        self._reading = threading.Lock()  # the connection, while a job runs
        self._is_busy = False
        self._was_signalled = False
        self._woken, self._wake = os.pipe()
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._cancellation = Cancellation()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_handling = False
        self._pid = os.getpid()
        self._home = Path.cwd()
        self._threads = 0
        self._files = 0
        self._sent_at = 0.0

    def serve(self) -> None:
        """Until the worker is gone."""
        hello = self._read_hello()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stop_now)
        if LOGS_VARIABLE in os.environ:  # as the worker logs; by name: worker must not import observe
            importlib.import_module("taskharbor.observe.logs").log_in_child(os.environ[LOGS_VARIABLE])
        for module in hello.modules:
            importlib.import_module(module)
        if hello.memory:
            resource.setrlimit(resource.RLIMIT_AS, (hello.memory, hello.memory))
        threading.Thread(target=self._watch, name="taskharbor-watch", daemon=True).start()
        self._threads, self._files = threading.active_count(), _open_files()
        self._send(Ready())
        while True:
            self._run(self._next_job())

    def _next_job(self) -> Start:
        with self._reading:
            self._is_busy = False
        try:
            while not self._jobs:
                self._take(self._connection.recv(65536))
            self._is_busy = True
            if self._was_signalled:  # the other thread may have looked before this was set
                self._was_signalled = False
                self._look()
        except (OSError, ValueError):
            os._exit(LOST_CONNECTION)
        return self._jobs.popleft()

    # ------------------------------------------------------------------ one job

    def _run(self, start: Start) -> None:
        outcome, error = self._outcome(start)
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and this is the copy: only the original answers
        worn = named_in(start.recycle_on, error) or context_trouble(has_failed=error is not None)
        if worn and isinstance(outcome, Failed):
            outcome = _with_cause(outcome, worn)
        self._send(ended(outcome, self._tidied() or worn))

    def _outcome(self, start: Start) -> tuple[Outcome, BaseException | None]:
        """The outcome of the job, and what its handler raised."""
        ends = None if start.ends_in_seconds is None else self._clock.monotonic() + start.ends_in_seconds
        ctx = JobContext(
            start.job, start.fence, self._cancellation, self._clock, ends, self._progress, start.worker
        )
        ctx.gpu = start.gpu
        try:
            handler = self._handler(start)
            ctx._retry = handler.retry or RetryPolicy(max_attempts=start.max_attempts)
            # In a context of its own: what a job sets there is not seen by the next.
            value = copy_context().run(self._call, handler, ctx, start)
            if value is None:
                return DONE, None
            return success_of(value, handler.encode_result, MAX_PAYLOAD * 16), None
        except _Stopped as stopped:
            return failure_of(InterruptedError("stopped by its worker")), stopped
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes its outcome
            return failure_of(error), error
        finally:
            self._is_handling = False

    def _call(self, handler: Handler, ctx: JobContext, start: Start) -> Any:
        try:
            args, kwargs = handler.bind(ctx, start.job)
        except DecodeError as error:
            raise BadPayload from error
        if self._cancellation.is_set():
            raise _Stopped
        running.set(ctx)
        if "structlog" in sys.modules:
            bind_structlog(ctx)
        with ExitStack() as stack:
            for around in around_every_process_call:
                stack.enter_context(around(ctx, start.job))
            self._is_handling = True
            value = handler.function(*args, **kwargs)
            if asyncio.iscoroutine(value):
                value = self._awaited(value)
            self._is_handling = False
        return value

    def _awaited(self, coroutine: Any) -> Any:
        async def main() -> Any:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            try:
                return await coroutine
            finally:
                self._task = None

        return asyncio.run(main())

    def _handler(self, start: Start) -> Handler:
        """The handler behind a reference: a task's own, or the plain function in the form (ctx, job)."""
        key = (start.reference, start.job.type)
        if key not in self._handlers:
            self._handlers[key] = find_handler(start.reference, start.job.type)
        return self._handlers[key]

    # ------------------------------------------------------------------ messages of the worker

    def _watch(self) -> None:
        try:
            self._wait_for_end()
        except (OSError, ValueError):
            os._exit(LOST_CONNECTION)  # a handler closed every descriptor: the worker would get no answer
        os.killpg(0, signal.SIGKILL)  # the worker is gone: nothing may be left of this process

    def _wait_for_end(self) -> None:
        """Until the worker is gone. Also polls: a descriptor that is closed here wakes nobody."""
        either = select.poll()
        either.register(self._connection, 0)  # its end is reported without being asked for
        either.register(self._woken, select.POLLIN)
        while True:
            seconds = BUSY_WATCH_SECONDS if self._is_busy else WATCH_SECONDS
            events = dict(either.poll(1000 * seconds))
            if any(what & select.POLLNVAL for what in events.values()):
                raise ValueError("a handler has closed the connection")
            if events.pop(self._woken, 0):
                os.read(self._woken, 65536)
            if events:
                return
            self._look()

    def _look(self) -> None:
        """Read without waiting, while a job runs; otherwise the main thread reads."""
        with self._reading, suppress(BlockingIOError):
            if self._is_busy:
                self._take(self._connection.recv(65536, socket.MSG_DONTWAIT))

    def _take(self, data: bytes) -> None:
        if not data:
            os.killpg(0, signal.SIGKILL)
            os._exit(LOST_CONNECTION)
        for message in self._frames.feed(data):
            self._received(to_child.decode(message))

    def _received(self, message: ChildHello | Start | Stop) -> None:
        if isinstance(message, Start):
            self._cancellation = Cancellation()
            self._jobs.append(message)
        elif isinstance(message, Stop):
            self._cancellation.set(message.reason)  # type: ignore[arg-type]

    def _read_hello(self) -> ChildHello:
        size = int.from_bytes(_exactly(self._connection, 4), "big")
        message = to_child.decode(_exactly(self._connection, size))
        assert isinstance(message, ChildHello)  # noqa: S101 - the protocol's first word
        sys.path[:] = message.path
        return message

    def _stop_now(self, number: int, at: FrameType | None) -> None:
        self._was_signalled = True
        with suppress(OSError):
            os.write(self._wake, b"!")  # not read here: what sets the cancellation must not interrupt itself
        if self._task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        elif self._is_handling:
            self._is_handling = False  # once
            raise _Stopped

    # ------------------------------------------------------------------ answers

    def _send(self, message: FromChild) -> None:
        try:
            self._connection.sendall(frame(message))
        except OSError:
            os._exit(LOST_CONNECTION)

    def _progress(self, progress: Progress) -> None:
        now = self._clock.monotonic()
        if now - self._sent_at >= PROGRESS_SECONDS or progress.fraction >= 1.0:
            self._sent_at = now
            self._send(ProgressMade(progress.fraction, progress.text))

    def _tidied(self) -> str:
        """Undo what a handler may have changed; returns why the process must be replaced, else empty."""
        with suppress(OSError):
            os.chdir(self._home)
        signal.signal(signal.SIGTERM, self._stop_now)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if (
            threading.active_count() - self._threads > MAX_LEAKED_THREADS
            or _open_files() - self._files > MAX_LEAKED_FILES
        ):
            return "its handlers left too many threads or files behind"
        return ""


def named_in(names: tuple[str, ...], error: BaseException | None) -> str:
    """Why an error ends this process: it, or what it was raised from, is of a kind that was named."""
    seen: set[int] = set()
    while names and error is not None and id(error) not in seen:
        for kind in type(error).__mro__:
            if kind.__name__ in names or full_name(kind) in names:
                return f"recycle_on names {kind.__name__}"
        seen.add(id(error))
        error = error.__cause__
    return ""


def _with_cause(failed: Failed, worn: str) -> Failed:
    """The failure, and that its process is replaced: whole, however long the failure itself is."""
    note = f" [its process is replaced: {worn}]"
    reason = safe_text(failed.reason, ERROR_LIMIT - len(note.encode())) + note
    return replace(failed, reason=reason)


def find_handler(reference: str, type_name: str) -> Handler:
    """Import what a reference names. A task carries its handler; a plain function takes (ctx, job)."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    handler = getattr(found, "handler", None)
    return handler if isinstance(handler, Handler) else job_handler(type_name, load_function(reference))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def _open_files() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 0


def main() -> None:
    descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid)
    HandlerProcess(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main()
