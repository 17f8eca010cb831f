"""Parse texts and TOML values into the types of settings. A ValueError says what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NewType

from taskharbor.errors import InvalidArgument
from taskharbor.model.duration import duration

Size = NewType("Size", int)
"""A number of bytes; written like 512MiB."""
Secret = NewType("Secret", str)
"""A text that is never shown."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off", ""})


def parsed(value: Any, hint: Any) -> Any:
    """The value as the type of the setting; strings come from the environment, the rest from TOML."""
    parser: Callable[[Any], Any] = _PARSERS.get(hint, _text)
    return parser(value)


def size(value: Any) -> Size:
    """With an i, as in 512MiB, a power of 1024; without it, 512MB, of 1000; a bare number counts bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Size(value)
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("a size like 512MiB, or a number of bytes")
    unit = found[2].lower()
    base = 1024 if "i" in unit else 1000
    try:
        return Size(int(float(found[1]) * base ** _POWERS[unit.rstrip("b").rstrip("i")]))
    except OverflowError:
        raise ValueError("a size that fits into memory") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _whole(value: Any) -> int:
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("a whole number") from None


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _YES | _NO:
        return value.strip().lower() in _YES
    raise ValueError("true or false")


def _span(value: Any) -> timedelta:
    try:
        return duration(value)
    except InvalidArgument:
        raise ValueError("a duration like 30s, 5m or 1h30m") from None


def _names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError('a list of texts, ["mail", "default"] or mail,default')
    return tuple(part.strip() for part in parts if part.strip())


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    int: _whole,
    bool: _flag,
    timedelta: _span,
    tuple[str, ...]: _names,
    Size: size,
}
