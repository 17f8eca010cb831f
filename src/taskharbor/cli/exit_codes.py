"""Exit codes, and which error has which."""

from __future__ import annotations

from taskharbor.errors import (
    ConfigurationError,
    ConflictError,
    DriverUnavailable,
    InvalidArgument,
    JobFailed,
    JobNotFound,
    PayloadError,
    SchemaOutOfDate,
    StoreFull,
    StoreRefused,
    TaskHarborError,
)

DONE = 0
ERROR = 1
USAGE = 2
NOT_FOUND = 3
NOT_ALLOWED = 4
CONFLICT = 5
UNREACHABLE = 6
JOB_FAILED = 7
TIMED_OUT = 124
INTERRUPTED = 130


class UsageError(TaskHarborError):
    """Wrong usage; the message says what to change."""


class NotFoundError(TaskHarborError, LookupError):
    """No job, queue, schedule or token has that name."""


class NoStore(TaskHarborError):
    """There is no store at the given address."""


def code_of(error: BaseException) -> int:
    """The exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ERROR)


# The first match counts: subclasses before their parents.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, USAGE),
    (NotFoundError, NOT_FOUND),
    (NoStore, UNREACHABLE),
    (JobNotFound, NOT_FOUND),
    (SchemaOutOfDate, ERROR),
    (InvalidArgument, USAGE),
    (ConfigurationError, USAGE),
    (PayloadError, USAGE),
    (ConflictError, CONFLICT),
    (JobFailed, JOB_FAILED),
    (StoreRefused, NOT_ALLOWED),
    (StoreFull, ERROR),
    (DriverUnavailable, UNREACHABLE),
    (TimeoutError, TIMED_OUT),
    (KeyboardInterrupt, INTERRUPTED),
)


def worst(codes: list[int]) -> int:
    """One exit code for many items: 0 only if all are; not found before conflict."""
    for code in (ERROR, UNREACHABLE, NOT_FOUND, CONFLICT, JOB_FAILED, TIMED_OUT):
        if code in codes:
            return code
    return DONE
