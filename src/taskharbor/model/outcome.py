"""What a handler may ask for, and how an attempt ended."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from taskharbor.errors import InvalidArgument
from taskharbor.model.duration import check_timedelta
from taskharbor.model.job import FailureKind, Note


class Snooze(msgspec.Struct, frozen=True):
    """Return it from a handler: run me again after `delay`, and count nothing."""

    delay: timedelta

    def __post_init__(self) -> None:
        check_timedelta(self.delay, "delay", InvalidArgument)


class Cancel(msgspec.Struct, frozen=True):
    """Return it from a handler: this job is not needed any more."""

    reason: str = ""


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned; `result` is its encoded value, if it gave one."""

    result: bytes | None = None


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed. `reason` is one line; `trace` is for the history."""

    reason: str
    failure_kind: str = FailureKind.ERROR
    trace: str | None = None
    retry_after: timedelta | None = None  # the error itself asked for at least this long
    errors: tuple[str, ...] = ()  # its class, then those it inherits from; each without and with its module

    @property
    def error_class(self) -> str | None:
        """`module.qualname` of the exception; None if there was none."""
        return self.errors[1] if len(self.errors) > 1 else None

    @property
    def is_final(self) -> bool:
        """Whether another try is pointless whatever the attempts left."""
        return self.failure_kind in _FINAL


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run later."""

    delay: timedelta


class WasCancelled(msgspec.Struct, frozen=True):
    """The job was cancelled, from outside or by its handler."""

    reason: str = ""


class Released(msgspec.Struct, frozen=True):
    """The worker is shutting down, or has no handler for it, and hands the job back untouched."""

    delay: timedelta | None = None


class Died(msgspec.Struct, frozen=True):
    """The process that ran it died; `reason` is the cause of death."""

    reason: str


class WasParked(msgspec.Struct, frozen=True):
    """The handler waits, without a slot, for children of its job or for `delay`; it runs again after that."""

    after: tuple[str, ...] = ()
    delay: timedelta | None = None
    notes: tuple[Note, ...] = ()


Outcome = Succeeded | Failed | Snoozed | WasCancelled | Released | Died | WasParked

_FINAL = frozenset(
    {
        FailureKind.UNRECOVERABLE,
        FailureKind.NO_HANDLER,
        FailureKind.INVALID_PAYLOAD,
        FailureKind.CHILD_FAILED,
    }
)
