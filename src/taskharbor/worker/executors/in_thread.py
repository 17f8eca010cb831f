"""Blocking handlers with middleware around them: each in a thread while it runs, called from the event loop.

Without middleware a thread runs them from beginning to end: worker/thread_slots.py. A thread cannot be
stopped, only asked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from taskharbor.errors import DecodeError
from taskharbor.model.job import Job
from taskharbor.tasks import Handler
from taskharbor.worker.daemon_threads import DaemonPool
from taskharbor.worker.executors.contract import BadPayload, Call, GivenUp, Where

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.leased_jobs import LeasedJob


class _Work:
    """One call on its way through a thread."""

    __slots__ = ("args", "context", "function", "future", "kwargs", "loop")

    def __init__(self, function: Any, args: Any, kwargs: Any, context: Context) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()

    def __call__(self) -> Callable[[], None]:
        try:
            answer = self.context.run(self.function, *self.args, **self.kwargs), None
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes its outcome
            return partial(self._send, (None, error))
        return partial(self._send, answer)

    def _send(self, answer: tuple[Any, BaseException | None]) -> None:
        with suppress(RuntimeError):  # the worker has ended and needs no answer
            self.loop.call_soon_threadsafe(self._answer, answer)

    def _answer(self, answer: tuple[Any, BaseException | None]) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class ThreadExecutor:
    """A pool that starts a thread only when none is idle. Daemons: a stuck one keeps no process alive."""

    where: Where = "thread"

    def __init__(self, name: str = "taskharbor") -> None:
        self._pool = DaemonPool(name)

    def call_of(self, handler: Handler) -> Callable[[LeasedJob], Call]:
        bind, function = handler.bind, handler.function

        def for_job(leased: LeasedJob) -> Call:
            async def call(ctx: JobContext, job: Job) -> Any:
                try:
                    args, kwargs = bind(ctx, job)
                except DecodeError as error:
                    raise BadPayload from error
                leased.attempt.work = work = _Work(function, args, kwargs, copy_context())
                self._pool.start(work)
                value, raised = await work.future
                if raised is not None:
                    raise raised
                return await value if inspect.isawaitable(value) else value

            return call

        return for_job

    def stop(self, leased: LeasedJob) -> None:
        """The handler sees ctx.cancelled; nothing more can be done to a thread."""

    def give_up(self, leased: LeasedJob) -> bool:
        work = leased.attempt.work
        if work is None or work.future.done():
            return False
        work.future.set_exception(GivenUp())
        return True

    async def close(self) -> None:
        self._pool.close()
