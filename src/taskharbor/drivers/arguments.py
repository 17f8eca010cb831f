"""Whole batches as arguments: ids, leases, settlements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import (
    MAX_BATCH,
    check_count,
    check_id,
    check_span,
    check_when,
    check_worker_id,
)
from taskharbor.model.job import Lease
from taskharbor.model.presence import WorkerReport
from taskharbor.model.settlement import Ack, Release, Retry, Settlement

MAX_PID = 2**31 - 1


def check_ids(ids: Sequence[str]) -> None:
    if len(ids) > MAX_BATCH:
        raise InvalidArgument(f"{len(ids)} ids in one call; {MAX_BATCH} are allowed, send them in parts")
    for job_id in ids:
        check_id(job_id)


def check_leases(leases: Sequence[Lease]) -> None:
    if len(leases) > MAX_BATCH:
        raise InvalidArgument(
            f"{len(leases)} leases in one call; {MAX_BATCH} are allowed, send them in parts"
        )


def check_report(report: WorkerReport) -> None:
    """Numbers that a store can keep; the rest of a report is text, and means nothing to it."""
    check_worker_id(report.worker_id)
    check_count(report.concurrency, "concurrency")
    check_count(report.pid, "pid", most=MAX_PID)


def check_settlements(settlements: Sequence[Settlement], now: datetime, max_payload: int) -> None:
    if len(settlements) > MAX_BATCH:
        raise InvalidArgument(f"{len(settlements)} settlements in one call; {MAX_BATCH} are allowed")
    for item in settlements:
        if isinstance(item, Ack):
            if item.result is not None and len(item.result) > max_payload:
                raise InvalidArgument(
                    f"a result of {len(item.result)} bytes is over the limit of {max_payload}; "
                    "keep large results elsewhere and return a reference"
                )
        elif isinstance(item, Retry):
            check_when(item.run_at, item.delay, now)
            if item.attempts is not None:
                check_count(item.attempts, "attempts")
        elif isinstance(item, Release) and item.delay is not None:
            check_span(item.delay, "delay")
