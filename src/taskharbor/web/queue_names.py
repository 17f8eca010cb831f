"""Where a call names queues: found by the types of its arguments, so that no inner name is forgotten.

A field called `queue` or `queues`, or whose name ends so (`fail_queue`), names queues, however deep it
stands: in the template of a schedule, in the settings of a queue, in a claim, in the lease of a settlement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args

import msgspec


class _Places(NamedTuple):
    named: tuple[str, ...]
    """Fields that hold a name, or several."""
    within: tuple[str, ...]
    """Fields that hold something with names in it."""


def queues_named(request: type[msgspec.Struct], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Every queue that the arguments of a verb name."""
    places = _places(request)
    for field in places.named:
        yield from _names(arguments[field])
    for field in places.within:
        yield from _inside(arguments[field])


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        places = _places(type(value))
        for field in places.named:
            yield from _names(getattr(value, field))
        for field in places.within:
            yield from _inside(getattr(value, field))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _inside(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _inside(item)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from value


@cache
def _places(kind: type[msgspec.Struct]) -> _Places:
    named, within = list[str](), list[str]()
    for field in msgspec.structs.fields(kind):
        if field.name.endswith(("queue", "queues")):
            named.append(field.name)
        elif any(map(_has_names, _structs_in(field.type))):
            within.append(field.name)
    return _Places(tuple(named), tuple(within))


def _has_names(kind: type[msgspec.Struct]) -> bool:
    return any(_places(kind))


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs_in(part)
