"""Coroutine handlers: awaited by the slot itself, cancelled at their next await."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskharbor.errors import DecodeError
from taskharbor.model.job import Job
from taskharbor.tasks import Handler
from taskharbor.worker.executors.contract import BadPayload, Call, Where, is_coroutine_function

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.leased_jobs import LeasedJob


class LoopExecutor:
    """Runs handlers in the worker's event loop; plain functions too, with run_in="loop"."""

    where: Where = "loop"

    def call_of(self, handler: Handler) -> Callable[[LeasedJob], Call]:
        call = _coroutine_call(handler) if is_coroutine_function(handler.function) else _plain_call(handler)
        return lambda leased: call

    def stop(self, leased: LeasedJob) -> None:
        if leased.attempt.task is not None:
            leased.attempt.task.cancel()

    def give_up(self, leased: LeasedJob) -> bool:
        return False  # the slot's own task is stuck in the handler

    async def close(self) -> None:
        pass


def _coroutine_call(handler: Handler) -> Call:
    bind, function = handler.bind, handler.function

    def call(ctx: JobContext, job: Job) -> Any:  # its coroutine needs no other around it
        try:
            args, kwargs = bind(ctx, job)
        except DecodeError as error:
            raise BadPayload from error
        return function(*args, **kwargs)

    return call


def _plain_call(handler: Handler) -> Call:
    bind, function = handler.bind, handler.function

    async def call(ctx: JobContext, job: Job) -> Any:
        try:
            args, kwargs = bind(ctx, job)
        except DecodeError as error:
            raise BadPayload from error
        return function(*args, **kwargs)

    return call
