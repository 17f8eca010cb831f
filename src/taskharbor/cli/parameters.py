"""Parsers for the values of flags: durations, times, rates, sizes, states, name=value."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import typer

from taskharbor.errors import InvalidArgument
from taskharbor.model.duration import duration
from taskharbor.model.limits import RateLimit
from taskharbor.model.state import JobState

NONE = "none"
"""The word that removes a setting."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_MOST_DIGITS = 18
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str | timedelta) -> timedelta:
    """30s, 5m, 1h30m, PT30S or a number of seconds; typer passes defaults unchanged."""
    try:
        return duration(text)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def parse_instant(text: str | datetime) -> datetime:
    """2026-12-01T09:00Z: RFC 3339; without a zone it means UTC."""
    if isinstance(text, datetime):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time; example: 2026-12-01T09:00:00Z") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def parse_rate(text: str | RateLimit) -> RateLimit | str:
    """100/1m: a hundred in any minute; `none` removes the limit."""
    if isinstance(text, RateLimit) or text == NONE:
        return text
    count, slash, per = text.partition("/")
    if not slash or not _is_number(count.strip()):
        raise typer.BadParameter(f"{text!r} is not a rate; example: 100/1m, or none")
    # A bare unit means one of it: 10/s reads like 10/1s.
    return RateLimit(int(count), parse_duration(per if per[:1].isdigit() or per[:1] in "Pp" else f"1{per}"))


def parse_count(text: str | int) -> int | str:
    """A whole number, or `none` to remove the setting."""
    if isinstance(text, int) or text == NONE:
        return text
    if not _is_number(text):
        raise typer.BadParameter(f"{text!r} is not a whole number or none")
    return int(text)


def parse_retention(text: str | timedelta) -> timedelta | str:
    """How long to keep: a duration, 0 for not at all, `none` for forever."""
    return text if text == NONE else parse_duration(text)


def parse_size(text: str | int) -> int:
    """512MiB, 2GiB, or a number of bytes; k and M without the i count in thousands."""
    if isinstance(text, int):
        return text
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; examples: 512MiB, 2GiB, 1048576")
    base = 1024 if found[3] else 1000
    try:
        return int(float(found[1]) * base ** _POWERS[found[2].lower()])
    except OverflowError:
        raise typer.BadParameter("this size is larger than any memory") from None


def _is_number(text: str) -> bool:
    """Digits, but not too many: Python refuses to parse thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def parse_states(text: str) -> tuple[JobState, ...]:
    """failed,cancelled: one or more states."""
    known = {state.value: state for state in JobState}
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise typer.BadParameter(
            f"{', '.join(wrong) or text!r} is not a state; states are {', '.join(known)}"
        )
    return tuple(known[name] for name in names)


def parse_pair(text: str) -> tuple[str, str]:
    """name=value."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} must look like name=value")
    return name, value


def parse_value(text: str) -> Any:
    """A value on the command line: JSON if it is valid JSON, else text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return text
