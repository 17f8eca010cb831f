"""Durations as people write them: a timedelta, a number of seconds, `30s`, `1h30m`, or ISO 8601."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from taskharbor.errors import ConfigurationError, InvalidArgument

Duration = timedelta | float | str
"""What every option that takes a span of time accepts; a bare number means seconds."""

_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|m|h|d|w)\s*")
_ISO = re.compile(
    r"P(?:(?P<w>\d+(?:\.\d+)?)W)?(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)
_MAX_TEXT = 64


def duration(value: Duration, what: str = "duration") -> timedelta:
    """The span of time of `value`.

    Raises:
        InvalidArgument: it is none; `what` is named in the message.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unclear(value, what)
    seconds = _seconds(value.strip()) if isinstance(value, str) else float(value)
    if seconds is None or not math.isfinite(seconds):
        raise _unclear(value, what)
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidArgument(f"{what}={value!r} is longer than any calendar") from None


def optional_duration(value: Duration | None, what: str = "duration") -> timedelta | None:
    return None if value is None else duration(value, what)


def check_timedelta(
    value: object, what: str, refusal: type[ConfigurationError | InvalidArgument] = ConfigurationError
) -> None:
    """For objects whose fields are timedeltas and nothing else.

    Raises:
        ConfigurationError: it is none. The message says how to write it, where that is clear.
    """
    if isinstance(value, timedelta):
        return
    try:
        seconds = duration(value, what).total_seconds()  # type: ignore[arg-type]
    except InvalidArgument:
        seconds = 30
    raise refusal(f"{what}={value!r:.80} must be a timedelta, e.g. timedelta(seconds={seconds:g})")


def shown(span: timedelta) -> str:
    """A span in the short form that `duration` reads back: `1h30m`, `250ms`, `0s`."""
    rest = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    sign, rest = ("-", -rest) if rest < 0 else ("", rest)
    parts = []
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    if rest:
        parts.append(f"{rest // 1000}ms" if rest % 1000 == 0 else f"{rest}us")
    return sign + ("".join(parts) or "0s")


def _seconds(text: str) -> float | None:
    if not text or len(text) > _MAX_TEXT:
        return None
    if text[0] in "Pp":
        return _iso_seconds(text.upper())
    try:
        return float(text)
    except ValueError:
        return _short_seconds(text)


def _short_seconds(text: str) -> float | None:
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return total


def _iso_seconds(text: str) -> float | None:
    found = _ISO.fullmatch(text)
    if found is None or text[-1] == "T" or not any(found.groups()):
        return None
    return sum(float(number) * _UNITS[unit] for unit, number in found.groupdict().items() if number)


def _unclear(value: object, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what}={str(value)[:80]!r} is not a duration; examples: 30s, 5m, 1h30m, PT30S, "
        "a number of seconds, or a timedelta"
    )
