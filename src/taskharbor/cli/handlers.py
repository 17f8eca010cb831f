"""Handlers for trying a store out without an app: `taskharbor worker --handle mail.send=echo`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.model.job import Job
from taskharbor.worker.context import JobContext

Builtin = Callable[[JobContext, Job], Awaitable[Any]]


async def echo(ctx: JobContext, job: Job) -> Any:
    """Return the payload."""
    return _value(job)


async def fail(ctx: JobContext, job: Job) -> None:
    """Fail, with the payload's `message` if it has one."""
    value = _value(job)
    said = value.get("message") if isinstance(value, dict) else None
    raise RuntimeError(str(said or "this handler always fails"))


async def sleep(ctx: JobContext, job: Job) -> None:
    """Sleep for the payload's `seconds`, or one."""
    value = _value(job)
    seconds = value.get("seconds", 1) if isinstance(value, dict) else 1
    await ctx.clock.sleep(float(seconds))


BUILTINS: dict[str, Builtin] = {"echo": echo, "fail": fail, "sleep": sleep}


def builtin_of(pair: str) -> tuple[str, Builtin]:
    """TYPE=echo, TYPE=fail or TYPE=sleep."""
    type_name, sign, name = pair.partition("=")
    if not sign or not type_name or name not in BUILTINS:
        raise ConfigurationError(f"--handle {pair!r} must look like TYPE={'|'.join(BUILTINS)}")
    return type_name, BUILTINS[name]


def _value(job: Job) -> Any:
    return msgspec.json.decode(job.payload) if job.payload else None
