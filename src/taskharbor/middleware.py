"""The onion: layers around an enqueue and around an attempt, first registered outermost.

    async def timed(ctx, job, call_next):        # around an attempt
        started = ctx.clock.monotonic()
        try:
            return await call_next(ctx, job)
        finally:
            report(job.type, ctx.clock.monotonic() - started)

    async def signed(jobs, call_next):           # around an enqueue
        return await call_next([with_signature(job) for job in jobs])

A layer may hand on something else than it was given, answer without calling on, or raise: around
an attempt that counts as the handler's own error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from taskharbor.errors import ConfigurationError
from taskharbor.model.job import Job, NewJob

CallNext = Callable[[Any, Job], Awaitable[Any]]
AttemptMiddleware = Callable[[Any, Job, CallNext], Awaitable[Any]]
"""(context, job, call_next) → what the handler returned, or something else in its place."""

EnqueueNext = Callable[[Sequence[NewJob]], Awaitable[Any]]
EnqueueMiddleware = Callable[[Sequence[NewJob], EnqueueNext], Awaitable[Any]]
"""(jobs, call_next) → the answers of the store, one per job."""

around_every_attempt: list[AttemptMiddleware] = []
around_every_enqueue: list[EnqueueMiddleware] = []
"""Layers of every worker and client in this process, around their own: for what instruments programs
from outside."""

around_every_process_call: list[Callable[[Any, Job], AbstractContextManager[Any]]] = []
"""(context, job) → what surrounds a handler in its handler process, where the layers above do not reach. The
modules of handlers are imported there, and register it as in the worker."""

around_every_step: list[Callable[[Any, str], AbstractContextManager[Any]]] = []
"""(context, name) → what surrounds a step of a durable handler. Steps that are remembered do not run."""

running: ContextVar[Any] = ContextVar("taskharbor_running")
"""The context of the attempt that runs here, for code outside of its handler, such as logs."""


def compose(
    layers: Iterable[Callable[..., Awaitable[Any]]], innermost: Callable[..., Any]
) -> Callable[..., Any]:
    """One callable out of the layers and what they surround. Without layers it is `innermost` itself."""
    call = innermost
    for layer in reversed(list(layers)):
        call = _around(layer, call)
    return call


@contextmanager
def around_step(ctx: Any, name: str) -> Iterator[None]:
    with ExitStack() as layers:
        for layer in around_every_step:
            layers.enter_context(layer(ctx, name))
        yield


def check_layer(layer: object) -> None:
    if not callable(layer):
        raise ConfigurationError(f"a middleware is an async function that calls on, not {layer!r}")


def _around(layer: Callable[..., Awaitable[Any]], inner: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    def call(*args: Any) -> Awaitable[Any]:
        return layer(*args, inner)

    return call
