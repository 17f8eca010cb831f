"""Cron expressions and time zones, and what to say about one that is wrong.

The rules for the two clock changes of a year are cronsim's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from taskharbor.errors import InvalidArgument
from taskharbor.model.clock import EPOCH

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_VALUES = {
    "second": "0-59, *, */5, lists and ranges",
    "minute": "0-59, *, */5, lists and ranges",
    "hour": "0-23, *, */6, lists and ranges",
    "day-of-month": "1-31, *, */2, lists and ranges, or L for the last day",
    "month": "1-12 or JAN-DEC, *, lists and ranges",
    "day-of-week": "0-7 (0 and 7 are Sunday) or SUN-SAT, *, lists and ranges, 1#2 for the second Monday",
}
_MAX_EXPRESSION = 256


def cron(expression: str, after: datetime) -> CronSim:
    """The instants of an expression after `after`, in its zone; InvalidArgument when it is no expression."""
    if len(expression) > _MAX_EXPRESSION:
        raise InvalidArgument(
            f"a cron expression of {len(expression)} characters; {_MAX_EXPRESSION} are allowed"
        )
    plain = five_fields(expression)
    try:
        return CronSim(plain, after)
    except CronSimError as error:
        raise InvalidArgument(f"cron {expression!r} {_complaint(plain, str(error))}") from None


def five_fields(expression: str) -> str:
    """The expression without an alias such as @daily."""
    return _ALIASES.get(expression.strip().lower(), expression)


def check_cron(expression: str, after: datetime) -> None:
    """An expression that fires at least once after `after`, or InvalidArgument."""
    try:
        next(cron(expression, after))
    except StopIteration:
        raise InvalidArgument(f"cron {expression!r} never fires: no such day exists") from None


def _complaint(expression: str, error: str) -> str:
    """What is wrong with an expression, and what would be right."""
    fields = expression.split()
    if expression.lstrip().startswith("@"):
        return f"is no alias that is known; there are {', '.join(_ALIASES)}"
    if len(fields) not in (5, 6):
        return f"has {len(fields)} fields; five are needed: minute hour day month weekday, as in 0 3 * * *"
    name = error.removeprefix("Bad ")
    if name == "day-of-month" and _is_a_day_of_some_month(fields):
        return f"never fires: day {fields[-3]} does not come in month {fields[-2]}"
    return f"is not understood: {name} takes {_VALUES.get(name, 'something else')}"


def _is_a_day_of_some_month(fields: list[str]) -> bool:
    try:
        CronSim(" ".join([*fields[:-2], "*", fields[-1]]), EPOCH)
    except CronSimError:
        return False
    return True


_LONGEST_ZONE = 255


def zone(name: str) -> ZoneInfo:
    try:
        # zoneinfo looks for a package of that name, which takes Python 3.15 the square of the number of dots.
        if len(name) > _LONGEST_ZONE:
            raise ZoneInfoNotFoundError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        shown = name if len(name) <= _LONGEST_ZONE else f"{name[:40]}…"
        raise InvalidArgument(f"time zone {shown!r} is not known; use a name like Europe/Berlin") from None


# ------------------------------------------------------------------ changes of the clock

_DAYS_AHEAD = 400
_MOST_CHANGES = 4


def clock_changes(expression: str, zone_name: str, after: datetime) -> list[str]:
    """What the next changes of the clock do to the times of an expression, within about a year."""
    its_zone, found = zone(zone_name), list[str]()
    day = after.astimezone(its_zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    for _ in range(_DAYS_AHEAD):
        following = day + timedelta(days=1)
        if day.utcoffset() != following.utcoffset() and len(found) < _MOST_CHANGES:
            found += _change(
                expression, _transition(day.astimezone(UTC), following.astimezone(UTC), its_zone)
            )
        day = following
    return found


def _transition(low: datetime, high: datetime, its_zone: ZoneInfo) -> datetime:
    """The instant between two others at which the offset of a zone changes, in its zone."""
    before = low.astimezone(its_zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(its_zone).utcoffset() == before else (low, middle)
    return high.replace(microsecond=0).astimezone(its_zone)


def _change(expression: str, at: datetime) -> list[str]:
    """What one change of the clock does: the times that do not exist, or come twice, and when they fire."""
    just_before = (at.astimezone(UTC) - timedelta(seconds=1)).astimezone(at.tzinfo)
    old = just_before.replace(tzinfo=None) + timedelta(seconds=1)
    new = at.replace(tzinfo=None)
    low, high = min(old, new), max(old, new)
    meant = [
        tick.replace(tzinfo=None)
        for tick in _between(expression, low.replace(tzinfo=UTC), high.replace(tzinfo=UTC))
    ]
    if not meant:
        return []
    times = f"{meant[0]:%Y-%m-%d}: {meant[0]:%H:%M}" + (f" to {meant[-1]:%H:%M}" if len(meant) > 1 else "")
    span = high - low
    if new > old:
        first = next(_from(expression, at), None)
        moved = first is not None and first.date() == at.date()
        return [
            f"{times} does not exist; " + (f"fires at {first:%H:%M} instead" if moved else "does not fire")
        ]
    fired = [
        tick
        for tick in takewhile(
            lambda tick: tick.astimezone(UTC) < at.astimezone(UTC) + span, _from(expression, at - span)
        )
        if low <= tick.replace(tzinfo=None) < high
    ]
    return [f"{times} comes twice; fires " + ("both times" if len(fired) > len(meant) else "once")]


def _from(expression: str, at: datetime) -> CronSim:
    """The ticks from an instant on, that one included, in its zone."""
    return cron(expression, (at.astimezone(UTC) - timedelta(seconds=1)).astimezone(at.tzinfo))


def _between(expression: str, low: datetime, high: datetime) -> list[datetime]:
    return list(takewhile(lambda tick: tick < high, _from(expression, low)))
