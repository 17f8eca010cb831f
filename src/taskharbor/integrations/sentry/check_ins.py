"""Check-ins: a job that a schedule made reports to the cron monitor of that schedule."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from sentry_sdk.crons import MonitorStatus, capture_checkin
from sentry_sdk.utils import capture_internal_exceptions

from taskharbor.model.cron import five_fields
from taskharbor.model.job import Job
from taskharbor.model.schedule import RULE_HEADER, Rule

_MAX_SLUG = 50
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))
# What cronsim and Sentry read alike: no names, no L, no #, no ranges that go backwards.
_FIELD_ITEM = re.compile(r"\*(?:/\d+)?|(\d+)(?:-(\d+)(?:/\d+)?)?")


class CheckIn:
    """The check-in of one job: all attempts share it, on whichever worker they run."""

    def __init__(self, job: Job, schedule: str) -> None:
        self._id = job.id.replace("-", "")
        self._slug = re.sub(r"[^a-z0-9_-]+", "-", schedule.lower()).strip("-")[:_MAX_SLUG]
        self._config: Any = monitor_config(job.headers.get(RULE_HEADER))
        if job.starts == 1:
            self._send(MonitorStatus.IN_PROGRESS)

    def end(self, outcome: str) -> None:
        """Nothing while the job goes on: retried, snoozed, released or lost to another worker."""
        if outcome in ("completed", "cancelled"):
            self._send(MonitorStatus.OK)
        elif outcome == "failed":
            self._send(MonitorStatus.ERROR)

    def _send(self, status: str) -> None:
        with capture_internal_exceptions():
            capture_checkin(
                monitor_slug=self._slug, check_in_id=self._id, status=status, monitor_config=self._config
            )


class NoCheckIn:
    """For a job without a monitor."""

    def end(self, outcome: str) -> None: ...


def monitor_config(header: str | None) -> dict[str, Any] | None:
    """When Sentry expects a check-in, from the rule that the job carries; None for rules it does not have.

    Without it a monitor that exists gets the check-in all the same.
    """
    if header is None:
        return None
    try:
        rule = msgspec.json.decode(header, type=Rule)
    except msgspec.DecodeError:
        return None
    schedule = _interval(rule.every_seconds) if rule.cron is None else _crontab(rule.cron)
    return None if schedule is None else {"schedule": schedule, "timezone": rule.timezone}


def _interval(seconds: float | None) -> dict[str, Any] | None:
    for unit, length in _UNITS:
        if seconds and seconds % length == 0:
            return {"type": "interval", "value": int(seconds // length), "unit": unit}
    return None


def _crontab(cron: str) -> dict[str, Any] | None:
    fields = five_fields(cron).split()
    # With both days given, some readers want both of them and some want either.
    is_shared = len(fields) == 5 and all(map(_is_shared, fields)) and "*" in (fields[2], fields[4])
    return {"type": "crontab", "value": " ".join(fields)} if is_shared else None


def _is_shared(field: str) -> bool:
    items = [_FIELD_ITEM.fullmatch(item) for item in field.split(",")]
    return all(item is not None and (item[2] is None or int(item[1]) < int(item[2])) for item in items)
