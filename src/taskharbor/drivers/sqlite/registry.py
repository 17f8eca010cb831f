"""Workers, their averages, roles and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from taskharbor.drivers.messages import RoleLease
from taskharbor.drivers.sqlite.handle import Handle
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.clock import instant, micros
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport, fold, ranked
from taskharbor.model.schedule import Schedule, StoredSchedule, advanced, stored

_encoder = msgspec.json.Encoder()
_worker_decoder = msgspec.json.Decoder(WorkerInfo)
_type_decoder = msgspec.json.Decoder(TypeInfo)
_schedule_decoder = msgspec.json.Decoder(StoredSchedule)
T = TypeVar("T")


class Registry(Handle):
    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        await self._write(lambda step: _report_worker(step, report, samples, ttl), now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        def work(step: Step) -> bool:
            row = step.fetch_one("worker_find", id=worker_id)
            step.execute("worker_forget", id=worker_id)
            return row is not None and row[0] > step.us

        return await self._write(work, now)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        def look(step: Step) -> list[WorkerInfo]:
            rows = step.fetch_all("workers", now=step.us)
            return ranked([_worker_decoder.decode(text) for (text,) in rows])

        return await self._read(look, now)

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        return await self._read(
            lambda step: [_type_decoder.decode(text) for (text,) in step.fetch_all("types")], now
        )

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        return await self._write(lambda step: _hold_role(step, role, holder, ttl), now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        return await self._write(lambda step: _release_role(step, role, holder), now)

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        return await self._write(lambda step: _put_schedule(step, schedule), now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        return await self._write(lambda step: _advance_schedule(step, name, tick, fired), now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return await self._write(lambda step: step.execute("schedule_delete", name=name).rowcount > 0, now)

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        return await self._read(
            lambda step: [_schedule_decoder.decode(text) for (text,) in step.fetch_all("schedules")], now
        )


# ------------------------------------------------------------------ workers


def _report_worker(step: Step, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta) -> None:
    row = step.fetch_one("worker_find", id=report.worker_id)
    known = _worker_decoder.decode(row[1]) if row is not None and row[0] > step.us else None
    latency = known.latency if known else None
    by_type: dict[str, list[timedelta]] = {}
    for sample in samples:
        latency = fold(latency, sample.duration)
        by_type.setdefault(sample.type, []).append(sample.duration)
    for name, durations in by_type.items():
        _learn(step, name, durations)
    info = WorkerInfo(
        report=report,
        seen_at=step.now,
        expires_at=step.now + ttl,
        latency=latency,
        samples=(known.samples if known else 0) + len(samples),
    )
    step.execute("worker_put", id=report.worker_id, expires_at=micros(info.expires_at), info=_text(info))


def _learn(step: Step, name: str, durations: list[timedelta]) -> None:
    known = _decoded(_type_decoder, step.fetch_one("type_find", name=name))
    usual = known.usual if known else None
    for duration in durations:
        usual = fold(usual, duration)
    if usual is not None:
        info = TypeInfo(name, usual, (known.samples if known else 0) + len(durations))
        step.execute("type_put", name=name, info=_text(info))


# ------------------------------------------------------------------ roles


def _hold_role(step: Step, role: str, holder: str, ttl: timedelta) -> RoleLease:
    row = step.fetch_one("role_find", name=role)
    is_held = row is not None and row[2] > step.us
    if row is not None and is_held and row[0] != holder:
        return RoleLease(role, row[0], row[1], instant(row[2]), False)
    term = (row[1] if row else 0) + (0 if is_held else 1)
    lease = RoleLease(role, holder, term, step.now + ttl, True)
    step.execute("role_put", name=role, holder=holder, term=term, expires_at=micros(lease.expires_at))
    return lease


def _release_role(step: Step, role: str, holder: str) -> bool:
    row = step.fetch_one("role_find", name=role)
    if row is None or row[0] != holder or row[2] <= step.us:
        return False
    # The term stays known and is never reused.
    step.execute("role_put", name=role, holder=holder, term=row[1], expires_at=step.us)
    return True


# ------------------------------------------------------------------ schedules


def _put_schedule(step: Step, schedule: Schedule) -> StoredSchedule:
    entry = stored(schedule, _schedule(step, schedule.name), step.now)
    step.execute("schedule_put", name=schedule.name, entry=_text(entry))
    return entry


def _advance_schedule(step: Step, name: str, tick: datetime, fired: bool) -> bool:
    entry = _schedule(step, name)
    if entry is None:
        return False
    if tick > entry.last_tick_at:
        after = advanced(entry, tick, step.now, fired=fired)
        step.execute("schedule_put", name=name, entry=_text(after))
    return True


def _schedule(step: Step, name: str) -> StoredSchedule | None:
    return _decoded(_schedule_decoder, step.fetch_one("schedule_find", name=name))


def _decoded(decoder: msgspec.json.Decoder[T], row: tuple[str] | None) -> T | None:
    return None if row is None else decoder.decode(row[0])


def _text(value: Any) -> str:
    return _encoder.encode(value).decode()
