"""The flags of `taskharbor worker` that are options of the worker, made from the fields of WorkerOptions."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import Field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import typer

from taskharbor.cli.exit_codes import UsageError
from taskharbor.cli.parameters import NONE, parse_duration, parse_rate, parse_size
from taskharbor.model.worker_options import WorkerOptions

F = TypeVar("F", bound=Callable[..., Any])

WORKER_FLAGS: dict[str, Field[Any]] = {
    one.name: one for one in fields(WorkerOptions) if "help" in one.metadata
}
_HINTS = typing.get_type_hints(WorkerOptions)
_PARSED: dict[str, dict[str, Any]] = {
    "span": {"parser": parse_duration, "metavar": "DURATION"},
    "rate": {"parser": parse_rate, "metavar": "N/SPAN"},
    "size": {"parser": parse_size, "metavar": "SIZE"},
}


def with_worker_options(function: F) -> F:
    """Give a command one flag per option, in place of its `**options`."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())
    kept = [one for one in own if one.kind is not one.VAR_KEYWORD]
    made = [_parameter(one) for one in WORKER_FLAGS.values()]
    place = next(at for at, one in enumerate(kept) if one.name == "processes")
    function.__signature__ = inspect.Signature([*kept[:place], *made, *kept[place:]])  # type: ignore[attr-defined]
    return function


def chosen_flags(given: dict[str, Any]) -> dict[str, Any]:
    """The values of these flags, checked.

    Raises:
        UsageError: a list without a name.
        ConfigurationError: options that cannot work.
    """
    values = dict(given)
    values["queues"] = _names(
        values["queues"], "--queues names no queue; leave it out for all queues of the app"
    )
    values["lanes"] = _names(values["lanes"], "--lanes names no lane; leave it out for those of --kind")
    values["rate"] = None if values["rate"] == NONE else values["rate"]
    values["unknown_types"] = str(values["unknown_types"])
    options_of(values)
    return values


def options_of(flags: dict[str, Any]) -> WorkerOptions:
    """The options of the worker, from values or from what has become of them as JSON."""
    return WorkerOptions(**{name: msgspec.convert(value, _HINTS[name]) for name, value in flags.items()})


def _names(text: str | None, complaint: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(complaint)
    return names


def _parameter(option: Field[Any]) -> inspect.Parameter:
    name = option.name.replace("_", "-")
    flag = f"--{name}/--no-{name}" if option.default is True else f"--{name}"
    flags = [flag, *filter(None, [option.metadata["short"]])]
    hint, more = _type_of(option)
    if option.metadata["least"] is not None and hint is int and "parser" not in more:
        more["min"] = option.metadata["least"]
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=option.default,
        annotation=Annotated[hint, typer.Option(*flags, help=option.metadata["help"], **more)],
    )


def _type_of(option: Field[Any]) -> tuple[Any, dict[str, Any]]:
    """What typer is to take the flag for, and how its text is read."""
    hint, unit = _HINTS[option.name], option.metadata["unit"]
    if typing.get_origin(hint) is Literal:
        return StrEnum(option.name, [(word.upper(), word) for word in typing.get_args(hint)]), {}
    if unit == "text" or hint == tuple[str, ...] | None:
        return str | None, {}
    if unit == "rate":
        return Any, dict(_PARSED["rate"])
    if timedelta in (hint, *typing.get_args(hint)):
        return hint, dict(_PARSED["span"])
    return hint, dict(_PARSED.get(unit, {}))
