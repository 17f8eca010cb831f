"""What can be set on a queue, and how the harbor-wide settings fill the gaps."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_count, check_name, check_span
from taskharbor.model.limits import RateLimit, check_rate
from taskharbor.model.state import JobState

EVERY_QUEUE = "*"
"""The name under which the settings of the whole harbor are kept."""

IDEMPOTENCY_WINDOW = timedelta(hours=24)
"""How long an idempotency key outlives the end of its job."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long a finished job is kept: None for ever, zero not at all."""

    completed: timedelta | None = timedelta(hours=1)
    failed: timedelta | None = timedelta(days=14)
    cancelled: timedelta | None = timedelta(days=14)

    def of(self, state: JobState) -> timedelta | None:
        """How long a job that ended in this state is kept."""
        match state:
            case JobState.COMPLETED:
                return self.completed
            case JobState.FAILED:
                return self.failed
            case _:
                return self.cancelled


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one queue, or of the whole harbor under the name `*`.

    A field left out stays as it was; None takes a setting away. Limits of the queue and of the
    harbor both hold; for `retention` and `fail_queue` the queue's own setting wins.
    """

    queue: str
    paused: bool | UnsetType = UNSET
    max_running: int | None | UnsetType = UNSET
    enqueue_rate: RateLimit | None | UnsetType = UNSET
    execute_rate: RateLimit | None | UnsetType = UNSET
    fail_queue: str | None | UnsetType = UNSET
    retention: Retention | None | UnsetType = UNSET

    def on_top_of(self, before: QueueSettings | None) -> QueueSettings:
        """These settings, with what they leave out taken from `before`."""
        if before is None:
            return self
        given = {name: value for name in _FIELDS if (value := getattr(self, name)) is not UNSET}
        return msgspec.structs.replace(before, **given)


_FIELDS = ("paused", "max_running", "enqueue_rate", "execute_rate", "fail_queue", "retention")


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one level, the queue or the harbor, with nothing left open."""

    paused: bool = False
    max_running: int | None = None
    enqueue_rate: RateLimit | None = None
    execute_rate: RateLimit | None = None
    fail_queue: str | None = None
    retention: Retention | None = None


NO_RULES = QueueRules()
DEFAULT_RETENTION = Retention()


def rules_of(settings: QueueSettings | None) -> QueueRules:
    """The stored settings with every gap closed."""
    if settings is None:
        return NO_RULES
    return QueueRules(
        paused=settings.paused is True,
        max_running=_set(settings.max_running),
        enqueue_rate=_set(settings.enqueue_rate),
        execute_rate=_set(settings.execute_rate),
        fail_queue=_set(settings.fail_queue),
        retention=_set(settings.retention),
    )


def retention_of(queue: QueueRules, harbor: QueueRules) -> Retention:
    return queue.retention or harbor.retention or DEFAULT_RETENTION


def fail_queue_of(queue: QueueRules, harbor: QueueRules) -> str | None:
    return queue.fail_queue or harbor.fail_queue


def check_settings(settings: QueueSettings) -> None:
    """Settings that a driver may store; anything else raises InvalidArgument."""
    if settings.queue != EVERY_QUEUE:
        check_name(settings.queue, "queue")
    if settings.paused is not UNSET and not isinstance(settings.paused, bool):
        raise InvalidArgument("paused is True or False")
    if _set(settings.max_running) is not None:
        check_count(settings.max_running, "max_running")
    for name in ("enqueue_rate", "execute_rate"):
        if (rate := _set(getattr(settings, name))) is not None:
            check_rate(rate, name)
    if _set(settings.fail_queue) is not None:
        check_name(settings.fail_queue, "fail_queue")
    if (retention := _set(settings.retention)) is not None:
        if not isinstance(retention, Retention):
            raise InvalidArgument("retention must be a Retention(completed=…, failed=…, cancelled=…)")
        for name in ("completed", "failed", "cancelled"):
            if (span := getattr(retention, name)) is not None:
                check_span(span, f"retention.{name}")


_T = TypeVar("_T")


def _set(value: _T | UnsetType) -> _T | None:
    return None if isinstance(value, UnsetType) else value
