"""Our errors as data and back, so that a client raises what the server raised."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from taskharbor import errors


class Failure(msgspec.Struct, frozen=True, tag=True):
    """One of our errors as data."""

    error: str
    message: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)


def failure_of(error: errors.TaskHarborError) -> Failure:
    """Encode an error: the name of its class, its message, its attributes."""
    data = {name: getattr(error, name) for name in _CARRIED.get(type(error), ())}
    return Failure(type(error).__name__, str(error), msgspec.to_builtins(data))


def error_of(failure: Failure) -> errors.TaskHarborError:
    """Decode an error; an unknown name becomes DriverMisbehaved."""
    build = _BUILDERS.get(failure.error)
    if build is None:
        return errors.DriverMisbehaved(f"the server answered {failure.error}: {failure.message}")
    try:
        return build(failure)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        return errors.DriverMisbehaved(f"the server answered a malformed {failure.error}: {failure.message}")


_CARRIED: dict[type[errors.TaskHarborError], tuple[str, ...]] = {
    errors.JobNotFound: ("job_id",),
    errors.JobNotInflight: ("job_id", "owner", "state"),
    errors.LeaseMismatch: ("job_id", "owner", "state"),
    errors.LeaseExpired: ("job_id", "owner", "state"),
    errors.ParkRefused: ("job_id", "why", "owner", "state"),
    errors.LeaseLost: ("job_id", "owner", "state"),
    errors.DuplicateJob: ("job_id", "existing_id"),
    errors.NotAllowedInState: ("job_id", "verb", "state"),
    errors.BrokenBond: ("job_id", "reason"),
    errors.WrongQueue: ("job_id", "queue", "wanted"),
    errors.RateLimited: ("queue", "retry_after"),
    errors.InvalidLeaseDuration: ("lease_for",),
    errors.DriverUnavailable: ("done",),
    errors.StoreFull: ("done",),
    errors.SchemaOutOfDate: ("pending",),
}


def _span(value: Any) -> timedelta:
    return msgspec.convert(value, timedelta)


def _of_job(kind: Callable[[str], errors.TaskHarborError]) -> Callable[[Failure], errors.TaskHarborError]:
    return lambda failure: kind(failure.data["job_id"])


def _of_lease(kind: type[errors.LeaseLost]) -> Callable[[Failure], errors.TaskHarborError]:
    return lambda failure: kind(
        failure.data["job_id"], owner=failure.data.get("owner"), state=failure.data.get("state")
    )


def _of_text(kind: Callable[[str], errors.TaskHarborError]) -> Callable[[Failure], errors.TaskHarborError]:
    return lambda failure: kind(failure.message)


_BUILDERS: dict[str, Callable[[Failure], errors.TaskHarborError]] = {
    "JobNotFound": _of_job(errors.JobNotFound),
    "LeaseLost": _of_lease(errors.LeaseLost),
    "JobNotInflight": _of_lease(errors.JobNotInflight),
    "LeaseMismatch": _of_lease(errors.LeaseMismatch),
    "LeaseExpired": _of_lease(errors.LeaseExpired),
    "ParkRefused": lambda f: errors.ParkRefused(
        f.data["job_id"], f.data["why"], owner=f.data.get("owner"), state=f.data.get("state")
    ),
    "DuplicateJob": lambda f: errors.DuplicateJob(f.data["job_id"], f.data["existing_id"]),
    "NotAllowedInState": lambda f: errors.NotAllowedInState(
        f.data["job_id"], verb=f.data["verb"], state=f.data["state"]
    ),
    "BrokenBond": lambda f: errors.BrokenBond(f.data["job_id"], f.data["reason"]),
    "WrongQueue": lambda f: errors.WrongQueue(f.data["job_id"], f.data["queue"], f.data["wanted"]),
    "RateLimited": lambda f: errors.RateLimited(f.data["queue"], _span(f.data["retry_after"])),
    "InvalidLeaseDuration": lambda f: errors.InvalidLeaseDuration(_span(f.data["lease_for"])),
    "InvalidArgument": _of_text(errors.InvalidArgument),
    "DriverClosed": _of_text(errors.DriverClosed),
    "DriverUnavailable": lambda f: errors.DriverUnavailable(f.message, done=f.data.get("done")),
    "StoreFull": lambda f: errors.StoreFull(f.message, done=f.data.get("done")),
    "StoreRefused": _of_text(errors.StoreRefused),
    "Forbidden": _of_text(errors.Forbidden),
    "DriverMisbehaved": _of_text(errors.DriverMisbehaved),
    "SchemaOutOfDate": lambda f: errors.SchemaOutOfDate(f.message, tuple(f.data.get("pending", ()))),
}
