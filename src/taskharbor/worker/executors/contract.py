"""The contract of executors, and which one a handler gets."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from taskharbor.errors import ConfigurationError, TimedOut
from taskharbor.model.job import Job
from taskharbor.tasks import Handler

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.leased_jobs import LeasedJob

Where = Literal["loop", "thread", "process"]
Call = Callable[["JobContext", Job], Awaitable[Any]]


class Executor(Protocol):
    """One way of running handlers."""

    where: Where

    def call_of(self, handler: Handler) -> Callable[[LeasedJob], Call]:
        """How to run this handler for one leased job, made once per type."""
        ...

    def stop(self, leased: LeasedJob) -> None:
        """Stop the handler as far as this executor can. Never blocks."""
        ...

    def give_up(self, leased: LeasedJob) -> bool:
        """It did not stop in time: stop waiting for it. Whether its slot can continue."""
        ...

    async def close(self) -> None:
        """End threads and processes."""
        ...


class GivenUp(TimedOut):
    """A handler was asked to stop and did not; it is not waited for any more."""

    def __init__(self) -> None:
        Exception.__init__(self, "asked to stop, and kept running")


class HandlerDied(Exception):
    """The process that ran a handler died; the text is the cause of death."""


class RemoteFailure(Exception):
    """The failed outcome of a handler in another process."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        super().__init__(getattr(outcome, "reason", ""))


class BadPayload(Exception):
    """The payload does not fit the handler; its cause has the details."""


def where_to_run(handler: Handler) -> Where:
    """The handler's own `run_in`; by default coroutines in the loop and plain functions in a thread."""
    if handler.run_in != "auto":
        return handler.run_in
    return "loop" if is_coroutine_function(handler.function) else "thread"


def is_coroutine_function(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    )


def check_importable(handler: Handler, *, is_virtual: bool = False) -> None:
    """A handler that runs in a process must be found there by name; in virtual time there is no process.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    if where_to_run(handler) == "process" and handler.reference is None and not is_virtual:
        raise ConfigurationError(_why_not_importable(handler))


def _why_not_importable(handler: Handler) -> str:
    what = f"{handler.type!r} is to run in a process, but its function cannot be imported there: "
    if getattr(handler.function, "__module__", None) == "__main__":
        return what + (
            "it is defined in __main__, the script that was started; put it into a module of its own, "
            "or start the worker with `taskharbor worker module:harbor`"
        )
    return what + "define it at the top level of a module"
