"""How large the body of each verb of the driver may be: only those that bring jobs may be large."""

from __future__ import annotations

from taskharbor.drivers.contract import Driver
from taskharbor.web.config import ServerConfig

_KIB = 1024
_SMALL = 64 * _KIB
_IDS = 512 * _KIB  # ten thousand of them
_SIZES = {
    "get": _IDS,
    "cancel": _IDS,
    "delete": _IDS,
    "extend_leases": 4096 * _KIB,  # ten thousand leases, with progress
    "report_worker": 1024 * _KIB,
    "reserve": 1024 * _KIB,  # thousands of queues
    "wakeups": 1024 * _KIB,
    "count": 1024 * _KIB,
}
_ONE_JOB = ("put_schedule", "requeue")
_MANY_JOBS = ("enqueue", "settle", "exchange")


def largest_body(verb: str, config: ServerConfig, driver: Driver) -> int:
    """The most bytes of a call of this verb."""
    if verb in _MANY_JOBS:
        return config.max_batch_bytes
    if verb in _ONE_JOB:  # its payload travels as base64, and ids may stand beside it
        return min(driver.max_payload * 4 // 3 + _IDS + _SMALL, config.max_batch_bytes)
    return min(_SIZES.get(verb, _SMALL), config.max_batch_bytes)
