"""Who is at work, who holds a role, and how durations become averages. Stores keep what these return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import (
    MAX_BATCH,
    check_count,
    check_id,
    check_ids,
    check_instant,
    check_labels,
    check_name,
    check_names,
    check_span,
    check_text,
    check_worker_id,
)
from taskharbor.model.job import NO_TIME
from taskharbor.model.workflow import BUILT_IN

ALPHA = 0.2
"""The weight of the newest sample in every average."""

MAX_PID = 2**31 - 1
_MAX_BYTES = 2**60
MAX_REPORT_NAMES = 256 * 1024
"""Characters in all names of queues, lanes and types together: 2,000 queues with long names fit."""


MAX_GPUS = 64


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a worker. None: not known there."""

    cores: int | None = None
    """Processors that the worker may use."""
    load: float | None = None
    """Runnable processes of the whole machine, averaged over a minute."""
    memory: int | None = None
    """In bytes, like `memory_used`."""
    memory_used: int | None = None
    store_s: float | None = None
    """How long the store took to answer the last report."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a worker, now. None: not known."""

    id: str
    name: str | None = None
    memory: int | None = None
    memory_used: int | None = None
    use: float | None = None
    """The share of the last moments in which it worked, from 0 to 1."""
    celsius: float | None = None
    job: str | None = None
    """The job that has it."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports about itself."""

    worker_id: str
    name: str = ""
    kind: str = "any"
    queues: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    """Of a worker that claims all types: those that it met and has no handler for."""
    concurrency: int = 0
    running: tuple[str, ...] = ()  # job ids
    host: str = ""
    pid: int = 0
    started_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    is_quiet: bool = False
    """It stays for what it runs and claims nothing more: it was asked to, or is about to end."""
    release: str = ""
    """What it runs: its label of that name, else TASKHARBOR_RELEASE."""
    machine: Machine | None = None
    gpus: tuple[GpuUse, ...] = ()


class Sample(msgspec.Struct, frozen=True):
    """How long one attempt of a type took; failures count too."""

    type: str
    duration: timedelta


def check_report(report: WorkerReport) -> None:
    """Every field has a limit: reports are stored, listed and shown to people."""
    check_worker_id(report.worker_id)
    check_text(report.name, "name")
    check_name(report.kind, "kind")
    check_names(report.queues, "queues")
    check_names(report.lanes, "lanes")
    check_names(report.types, "types")
    check_names(report.unresolved, "unresolved")
    check_count(report.concurrency, "concurrency")
    check_ids(report.running)
    check_text(report.host, "host")
    check_count(report.pid, "pid", most=MAX_PID)
    if report.started_at is not None:
        check_instant(report.started_at, "started_at")
    check_labels(report.labels)
    check_text(report.release, "release")
    _check_machine(report.machine)
    _check_gpus(report.gpus)
    size = sum(map(len, (*report.queues, *report.lanes, *report.types, *report.unresolved)))
    if size > MAX_REPORT_NAMES:
        raise InvalidArgument(f"the names in a report have {size} letters; {MAX_REPORT_NAMES} are allowed")


def _check_machine(machine: Machine | None) -> None:
    if machine is None:
        return
    for name in ("cores", "memory", "memory_used"):
        if getattr(machine, name) is not None:
            check_count(getattr(machine, name), name, most=_MAX_BYTES)
    _check_number(machine.load, "load")
    _check_number(machine.store_s, "store_s")


def _check_gpus(gpus: Sequence[GpuUse]) -> None:
    if len(gpus) > MAX_GPUS:
        raise InvalidArgument(f"{len(gpus)} gpus in a report; {MAX_GPUS} are allowed")
    for gpu in gpus:
        check_text(gpu.id, "id of a gpu")
        check_text(gpu.name or "", "name of a gpu")
        for name in ("memory", "memory_used"):
            if getattr(gpu, name) is not None:
                check_count(getattr(gpu, name), name, most=_MAX_BYTES)
        _check_number(gpu.use, "use")
        _check_number(gpu.celsius, "celsius")
        if gpu.job is not None:
            check_id(gpu.job)


def _check_number(value: object, what: str) -> None:
    if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
        raise InvalidArgument(f"{what} must be a number")


def check_samples(samples: Sequence[Sample]) -> None:
    if len(samples) > MAX_BATCH:
        raise InvalidArgument(f"{len(samples)} samples in one report; {MAX_BATCH} are allowed")
    for sample in samples:
        check_name(sample.type, "type")
        check_span(sample.duration, "duration")


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


class RoleLease(msgspec.Struct, frozen=True):
    """Who holds a role, and for how long. `term` rises each time the role changes hands."""

    role: str
    holder: str
    term: int
    expires_at: datetime
    is_mine: bool


def reported(
    before: WorkerInfo | None, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime
) -> WorkerInfo:
    """What `report_worker` keeps. A worker whose last report has expired starts its average again."""
    known = before if before is not None and before.expires_at > now else None
    latency = known.latency if known else None
    for sample in samples:
        latency = fold(latency, sample.duration)
    count = (known.samples if known else 0) + len(samples)
    return WorkerInfo(report=report, seen_at=now, expires_at=now + ttl, latency=latency, samples=count)


def learned(known: Mapping[str, TypeInfo], samples: Sequence[Sample]) -> dict[str, TypeInfo]:
    """The averages of the types in these samples, from those known before."""
    after: dict[str, TypeInfo] = {}
    for sample in samples:
        before = after.get(sample.type) or known.get(sample.type)
        usual = fold(before.usual if before else None, sample.duration)
        after[sample.type] = TypeInfo(sample.type, usual, (before.samples if before else 0) + 1)
    return after


def role_after(before: RoleLease | None, role: str, holder: str, ttl: timedelta, now: datetime) -> RoleLease:
    """What `hold_role` answers; it is stored only if `is_mine`: otherwise another holder has the role."""
    is_held = before is not None and before.expires_at > now
    if before is not None and is_held and before.holder != holder:
        return replace(before, is_mine=False)
    term = (before.term if before else 0) + (0 if is_held else 1)
    return RoleLease(role, holder, term, now + ttl, True)


def role_released(before: RoleLease | None, holder: str, now: datetime) -> RoleLease | None:
    """The role free again; None when this holder does not have it. The term is kept and never reused."""
    if before is None or before.holder != holder or before.expires_at <= now:
        return None
    return replace(before, expires_at=now)


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
        and (not report.types or type_name in report.types or type_name in BUILT_IN)
        and type_name not in report.unresolved
    )


def takes_queue(report: WorkerReport, queue: str) -> bool:
    """Whether a worker claims jobs of this queue, of one kind or another."""
    return not report.is_quiet and (not report.queues or queue in report.queues)


def lanes_of(report: WorkerReport) -> tuple[str, ...]:
    """Its own lanes, or those that follow from its kind."""
    return report.lanes or (("any",) if report.kind == "any" else (report.kind, "any"))
