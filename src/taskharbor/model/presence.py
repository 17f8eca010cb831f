"""Who is at work: what a worker reports about itself, and how durations are folded into averages."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from taskharbor.model.job import NO_TIME

ALPHA = 0.2
"""The weight of the newest sample in every average."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says about itself with each report."""

    worker_id: str
    name: str = ""
    kind: str = "any"
    queues: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    concurrency: int = 0
    running: tuple[str, ...] = ()  # job ids
    host: str = ""
    pid: int = 0
    started_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    is_quiet: bool = False
    """It stays for what it runs and claims nothing more: it was told to, or is about to end."""


class Sample(msgspec.Struct, frozen=True):
    """How long one attempt of a type took; failures count too."""

    type: str
    duration: timedelta


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker as the store knows it. `latency` is None until its first sample."""

    report: WorkerReport
    seen_at: datetime
    expires_at: datetime
    latency: timedelta | None = None
    samples: int = 0


class TypeInfo(msgspec.Struct, frozen=True):
    """How long jobs of a type usually take."""

    type: str
    usual: timedelta
    samples: int


def fold(average: timedelta | None, sample: timedelta) -> timedelta:
    """The exponential average after one more sample; the first is taken as it is."""
    if average is None:
        return max(sample, NO_TIME)
    return average + ALPHA * (max(sample, NO_TIME) - average)


def ranked(workers: list[WorkerInfo]) -> list[WorkerInfo]:
    """Fastest first; those without a sample last, by id."""
    return sorted(workers, key=lambda w: (w.latency is None, w.latency or NO_TIME, w.report.worker_id))


def takes(report: WorkerReport, *, queue: str, lane: str, type_name: str) -> bool:
    """Whether a worker would claim such a job. One that names no queues, or no types, takes them all."""
    return not report.is_quiet and serves(report, queue=queue, lane=lane, type_name=type_name)


def serves(report: WorkerReport, *, queue: str, lane: str, type_name: str) -> bool:
    """The same, whether or not it claims anything at present."""
    return (
        (not report.queues or queue in report.queues)
        and lane in lanes_of(report)
        and (not report.types or type_name in report.types)
    )


def lanes_of(report: WorkerReport) -> tuple[str, ...]:
    """The lanes it says, or those that follow from its kind."""
    return report.lanes or (("any",) if report.kind == "any" else (report.kind, "any"))
