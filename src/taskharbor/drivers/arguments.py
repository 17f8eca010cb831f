"""Checks of batch arguments: ids, leases, settlements, reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import (
    MAX_BATCH,
    check_count,
    check_id,
    check_instant,
    check_labels,
    check_name,
    check_names,
    check_span,
    check_text,
    check_when,
    check_worker_id,
)
from taskharbor.model.job import Lease
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.settlement import Ack, Release, Retry, Settlement

MAX_PID = 2**31 - 1
MAX_REPORT_NAMES = 256 * 1024
"""Characters in all names of queues, lanes and types together: 2,000 queues with long names fit."""


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
    """Every field has a limit: reports are stored, listed and shown to people."""
    check_worker_id(report.worker_id)
    check_text(report.name, "name")
    check_name(report.kind, "kind")
    check_names(report.queues, "queues")
    check_names(report.lanes, "lanes")
    check_names(report.types, "types")
    check_count(report.concurrency, "concurrency")
    check_ids(report.running)
    check_text(report.host, "host")
    check_count(report.pid, "pid", most=MAX_PID)
    if report.started_at is not None:
        check_instant(report.started_at, "started_at")
    check_labels(report.labels)
    size = sum(map(len, (*report.queues, *report.lanes, *report.types)))
    if size > MAX_REPORT_NAMES:
        raise InvalidArgument(f"the names in a report have {size} letters; {MAX_REPORT_NAMES} are allowed")


def check_samples(samples: Sequence[Sample]) -> None:
    if len(samples) > MAX_BATCH:
        raise InvalidArgument(f"{len(samples)} samples in one report; {MAX_BATCH} are allowed")
    for sample in samples:
        check_name(sample.type, "type")
        check_span(sample.duration, "duration")


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
