"""Schedules: when a tick is due, and what to do about the ones that were missed.

A schedule is stored by name. The leader asks `due_ticks` what to fire between the last tick it
knows of and now, and enqueues each with the idempotency key of that tick, so that a tick makes
exactly one job whatever leaders and clocks do. What an expression means is cron.py's business, which
is loaded when the first schedule is looked at: most programs never have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_headers, check_name, check_new_job, check_span
from taskharbor.model.clock import EPOCH, micros, span_micros
from taskharbor.model.job import NewJob

Misfire = Literal["latest", "skip", "all"]
MAX_CATCH_UP = 100
"""How many missed ticks `all` makes up for; older ones are dropped."""
SKIP_AFTER = timedelta(seconds=60)
"""With `skip`, a tick that is older than this when the leader sees it is dropped."""

UNDECLARED_AFTER = timedelta(hours=1)
"""How long a schedule of the code outlives the last program that declares it, at the least."""
RENEW_EVERY = timedelta(minutes=15)
"""How often a running program declares its schedules again."""

SCHEDULE_HEADER = "taskharbor-schedule"
"""The header by which a job names the schedule that made it."""

RULE_HEADER = "taskharbor-schedule-rule"
"""The header that holds the `Rule` of that schedule as JSON."""

_PLACEHOLDER_ID = "00000000-0000-7000-8000-000000000000"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A named rule that makes jobs: a cron expression or an interval, and the job to make.

    `template.id` is ignored; each tick gets its own. `paused` left out keeps what is stored.

    `declared`: it is in the code of a program, which owns it and declares it again and again. A schedule that
    no program has declared for long makes no more jobs (`is_undeclared`). `renews`: declare it again and
    change nothing. A rule that is stored under the name stays as it is, so old and new code may run side by
    side.
    """

    name: str
    template: NewJob
    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    misfire: Misfire = "latest"
    paused: bool | UnsetType = UNSET
    declared: bool = False
    renews: bool = False


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the store keeps it, with the last tick that was dealt with.

    `fired_at` is the last tick that made a job. `declared_at` is when a program last
    declared it; None for one that was made by hand, which stays until it is deleted.
    """

    schedule: Schedule
    paused: bool
    last_tick_at: datetime
    created_at: datetime
    updated_at: datetime
    fired_at: datetime | None = None
    declared_at: datetime | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule fires, as its jobs carry it, for monitors that expect them."""

    cron: str | None = None
    every_seconds: float | None = None
    timezone: str = "UTC"


def made_by(schedule: Schedule) -> dict[str, str]:
    """The headers of its jobs: those of the template, its name, and its rule if there is room for it."""
    headers = {**schedule.template.headers, SCHEDULE_HEADER: schedule.name}
    every = None if schedule.every is None else schedule.every.total_seconds()
    rule = Rule(cron=schedule.cron, every_seconds=every, timezone=schedule.timezone)
    with_rule = {**headers, RULE_HEADER: msgspec.json.encode(rule).decode()}
    try:
        check_headers(with_rule)
    except InvalidArgument:
        return headers
    return with_rule


def stored(schedule: Schedule, before: StoredSchedule | None, now: datetime) -> StoredSchedule:
    """What put_schedule keeps: a new, changed or resumed rule starts from now, others where they were."""
    if before is not None and schedule.renews:
        is_owned = before.declared_at is not None
        return msgspec.structs.replace(before, declared_at=now) if is_owned else before
    schedule = msgspec.structs.replace(schedule, renews=False)
    declared_at = now if schedule.declared else None
    if before is None:
        return StoredSchedule(
            schedule=schedule,
            paused=schedule.paused is True,
            last_tick_at=now,
            created_at=now,
            updated_at=now,
            declared_at=declared_at,
        )
    paused = before.paused if schedule.paused is UNSET else schedule.paused is True
    goes_on = _rule(before.schedule) == _rule(schedule) and not (before.paused and not paused)
    return StoredSchedule(
        schedule=schedule,
        paused=paused,
        # Another rule has other ticks, and a pause has none: those of the past were never promised.
        last_tick_at=before.last_tick_at if goes_on else max(now, before.last_tick_at),
        created_at=before.created_at,
        updated_at=now,
        fired_at=before.fired_at,
        declared_at=declared_at,
    )


def advanced(entry: StoredSchedule, tick: datetime, now: datetime, *, fired: bool) -> StoredSchedule:
    """What advance_schedule keeps: every tick up to this one was dealt with. Never goes back."""
    if tick <= entry.last_tick_at:
        return entry
    fired_at = tick if fired else entry.fired_at
    return msgspec.structs.replace(entry, last_tick_at=tick, fired_at=fired_at, updated_at=now)


def is_undeclared(entry: StoredSchedule, now: datetime) -> bool:
    """Whether the code that owned a schedule is gone: not declared for an hour and two of its ticks.

    The ticks are for programs that run only when there is work: a weekly job that starts its own workers
    is declared once a week.
    """
    declared_at = entry.declared_at
    if declared_at is None or now - declared_at < UNDECLARED_AFTER:
        return False
    try:
        second = next(islice(ticks(entry.schedule, declared_at), 1, None), None)
    except InvalidArgument:  # a zone that is not known here: it cannot fire here
        return False
    return second is None or second <= now


def tick_key(name: str, tick: datetime) -> bytes:
    """The idempotency key of one tick."""
    return f"schedule/{name}/{tick.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}".encode()


def due_ticks(entry: StoredSchedule, now: datetime) -> list[datetime]:
    """The ticks to fire now, oldest first, by the schedule's misfire policy. Paused: none."""
    missed = [] if entry.paused else list(_missed(entry, now))
    match entry.schedule.misfire:
        case "all":
            return missed
        case "skip":
            return [tick for tick in missed[-1:] if now - tick <= SKIP_AFTER]
        case _:
            return missed[-1:]


def last_tick(entry: StoredSchedule, now: datetime) -> datetime | None:
    """The newest tick that has come since the last one dealt with, fired or not; None when there is none."""
    missed = _missed(entry, now)
    return missed[-1] if missed else None


def _missed(entry: StoredSchedule, now: datetime) -> deque[datetime]:
    """The ticks since the last one dealt with; of very many the newest ones."""
    after, every = entry.last_tick_at, entry.schedule.every
    if every is not None:  # years of seconds need not be walked
        after = max(after, now - every * (MAX_CATCH_UP + 1))
    come = takewhile(lambda tick: tick <= now, ticks(entry.schedule, after))
    return deque(come, maxlen=MAX_CATCH_UP)


def ticks(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """The instants of a schedule after `after`, in UTC."""
    if schedule.every is not None:
        step = span_micros(schedule.every)
        number = micros(after) // step
        while True:
            number += 1
            yield EPOCH + number * schedule.every
    else:
        from taskharbor.model.cron import cron, zone

        for tick in cron(schedule.cron or "", after.astimezone(zone(schedule.timezone))):
            yield tick.astimezone(UTC)


def check_schedule(schedule: Schedule, now: datetime) -> None:
    """A schedule that can fire, or InvalidArgument with what is wrong with it."""
    from taskharbor.model.cron import check_cron, zone

    check_name(schedule.name, "schedule name")
    if (schedule.cron is None) == (schedule.every is None):
        raise InvalidArgument("a schedule needs cron or every, one of them")
    if schedule.misfire not in ("latest", "skip", "all"):
        raise InvalidArgument(f"misfire={schedule.misfire!r} must be latest, skip or all")
    check_new_job(msgspec.structs.replace(schedule.template, id=_PLACEHOLDER_ID), now)
    if schedule.template.bonds is not None:
        raise InvalidArgument("the job of a schedule has no bonds; let its handler make the others")
    its_zone = zone(schedule.timezone)
    if schedule.every is not None:
        check_span(schedule.every, "every", least=timedelta(seconds=1))
    elif schedule.cron is not None:
        check_cron(schedule.cron, now.astimezone(its_zone))


def _rule(schedule: Schedule) -> tuple[str | None, timedelta | None, str]:
    return schedule.cron, schedule.every, schedule.timezone
