"""Failure jobs: what a queue's `fail_queue` gets about a job that failed for good."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from taskharbor.errors import ConfigurationError


class FailedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed for good, as its failure job describes it."""

    id: str
    type: str
    queue: str
    key: str | None
    """Its key as text, bytes that are no UTF-8 escaped."""

    payload: bytes
    """As it was stored; JSON unless the task has another codec."""

    error: str | None
    failure_kind: str | None
    attempts: int
    stalls: int


def failure_handler(function: Callable[[FailedJob], Any]) -> Callable[..., Any]:
    """A function with the parameters of a failure job's payload that calls `function(failed)`."""
    if not callable(function):
        raise ConfigurationError(f"harbor.on_failure goes on a function, not on {function!r:.80}")

    async def awaited(
        id: str,
        type: str,
        queue: str,
        key: str | None,
        payload: bytes,
        error: str | None,
        failure_kind: str | None,
        attempts: int,
        stalls: int,
    ) -> Any:
        return await function(FailedJob(**locals_of(locals())))

    def called(
        id: str,
        type: str,
        queue: str,
        key: str | None,
        payload: bytes,
        error: str | None,
        failure_kind: str | None,
        attempts: int,
        stalls: int,
    ) -> Any:
        return function(FailedJob(**locals_of(locals())))

    made: Callable[..., Any] = awaited if inspect.iscoroutinefunction(function) else called
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(made, name, getattr(function, name, None) or getattr(made, name))
    return made


def locals_of(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call out of its local names."""
    return {name: given[name] for name in FailedJob.__struct_fields__}
