"""Handler: everything a worker needs to run one type of job. The seam between tasks and workers."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.checks import check_name
from taskharbor.model.codec import Codec, JsonCodec
from taskharbor.model.job import Job
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.speculation import Speculate

RunIn = Literal["auto", "loop", "thread", "process"]
RUN_IN = ("auto", "loop", "thread", "process")

RecycleOn = type[BaseException] | str
"""An exception, or its name with or without its module, such as "AcceleratorError"."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to run one type of job."""

    type: str
    function: Callable[..., Any]
    bind: Callable[[Any, Job], Arguments]
    """(context, job) → the arguments of `function`; DecodeError when the payload does not fit."""
    encode_result: Callable[[Any], bytes | None]
    """What the function returned, as bytes; None stays None."""
    run_in: RunIn = "auto"
    retry: RetryPolicy | None = None
    speculate: Speculate | None = None
    reference: str | None = None
    """`module:name` to import the function in another process; None when it cannot be imported."""
    recycle_on: tuple[str, ...] = ()
    """Names of exceptions after which the process of a process handler takes no further job."""


def job_handler(
    type: str,
    function: Callable[[Any, Job], Any],
    *,
    run_in: RunIn = "auto",
    retry: RetryPolicy | None = None,
    speculate: Speculate | None = None,
    codec: Codec | None = None,
    recycle_on: RecycleOn | Iterable[RecycleOn] = (),
) -> Handler:
    """The handler of the form `function(ctx, job)`: it reads the payload bytes by itself.

    What it returns is kept as JSON unless another codec is given.

    Raises:
        ConfigurationError: a blank type, or something that cannot be called.
    """
    if not isinstance(type, str) or not type.strip():
        raise ConfigurationError("a handler needs a type: the name that its jobs carry")
    try:
        check_name(type, "type")  # else no claim could name it
    except InvalidArgument as error:
        raise ConfigurationError(str(error)) from None
    if not callable(function):
        raise ConfigurationError(f"the handler of {type!r} must be callable, not {function!r}")
    refuse_generator(function, f"the handler of {type!r}")
    check_run_in(run_in, type)
    return Handler(
        type=type,
        function=function,
        bind=_context_and_job,
        encode_result=result_encoder(codec or JsonCodec()),
        run_in=run_in,
        retry=retry,
        speculate=speculate,
        reference=reference_of(function),
        recycle_on=recycle_names(recycle_on, run_in, type),
    )


def _context_and_job(context: Any, job: Job) -> Arguments:
    return (context, job), {}


def result_encoder(codec: Codec) -> Callable[[Any], bytes | None]:
    """How results become bytes: by this codec, nothing for None."""

    def encode_result(value: Any) -> bytes | None:
        return None if value is None else codec.encode(value)

    return encode_result


def refuse_generator(function: object, what: str) -> None:
    """Calling one runs none of its code, so its jobs would all succeed without having done anything."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{what} is a generator function, it yields: a task is a function that returns"
        )


def check_run_in(run_in: object, what: str) -> None:
    if run_in not in RUN_IN:
        raise ConfigurationError(f"{what}: run_in={run_in!r} must be one of {', '.join(RUN_IN)}")


def recycle_names(recycle_on: RecycleOn | Iterable[RecycleOn], run_in: RunIn, what: str) -> tuple[str, ...]:
    """The exceptions by name, as they can travel to another process.

    Raises:
        ConfigurationError: something that is no exception, or a handler without a process of its own.
    """
    if isinstance(recycle_on, str | type) or not isinstance(recycle_on, Iterable):
        recycle_on = (recycle_on,)
    names = tuple(recycle_on)
    if names and run_in != "process":
        raise ConfigurationError(f'{what}: recycle_on needs a process to replace: say run_in="process" too')
    return tuple(_exception_name(item, what) for item in names)


def _exception_name(item: object, what: str) -> str:
    if isinstance(item, type) and issubclass(item, BaseException):
        return full_name(item)
    if isinstance(item, str) and item.strip():
        return item.strip()
    raise ConfigurationError(f"{what}: recycle_on takes exceptions or their names, not {item!r:.80}")


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def reference_of(function: Callable[..., Any]) -> str | None:
    """`module:name` under which another process finds this very function, or None.

    The name may hold a task made from the function: decorating replaces the one by the other.
    """
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or module not in sys.modules:
        return None
    found = _at(sys.modules[module], name)
    return f"{module}:{name}" if found is not None and plain_function(found) is function else None


def load_function(reference: str) -> Callable[..., Any]:
    """The function behind a reference, imported if need be.

    Raises:
        ConfigurationError: there is no such module or name.
    """
    module, _, name = reference.partition(":")
    try:
        found = _at(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigurationError(f"cannot import {reference!r}: {error}") from error
    if found is None:
        raise ConfigurationError(f"there is no {name!r} in the module {module!r}")
    return plain_function(found)


def plain_function(found: Any) -> Callable[..., Any]:
    """The function itself, taken out of the task that wraps it."""
    function: Callable[..., Any] = getattr(found, "function", found)
    return function


def _at(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found
