"""Workers, their averages, roles and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from taskharbor.drivers.sqlite.step import Handle, Step
from taskharbor.model.clock import instant, micros
from taskharbor.model.presence import (
    RoleLease,
    Sample,
    TypeInfo,
    WorkerInfo,
    WorkerReport,
    learned,
    ranked,
    reported,
    role_after,
    role_released,
)
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
    before = None if row is None else _worker_decoder.decode(row[1])
    info = reported(before, report, samples, ttl, step.now)
    step.execute("worker_put", id=report.worker_id, expires_at=micros(info.expires_at), info=_text(info))
    found = (
        _decoded(_type_decoder, step.fetch_one("type_find", name=name))
        for name in {sample.type for sample in samples}
    )
    known = {usual.type: usual for usual in found if usual is not None}
    for name, usual in learned(known, samples).items():
        step.execute("type_put", name=name, info=_text(usual))


# ------------------------------------------------------------------ roles


def _hold_role(step: Step, role: str, holder: str, ttl: timedelta) -> RoleLease:
    lease = role_after(_role(step, role), role, holder, ttl, step.now)
    if lease.is_mine:
        _put_role(step, lease)
    return lease


def _release_role(step: Step, role: str, holder: str) -> bool:
    lease = role_released(_role(step, role), holder, step.now)
    if lease is not None:
        _put_role(step, lease)
    return lease is not None


def _role(step: Step, name: str) -> RoleLease | None:
    row = step.fetch_one("role_find", name=name)
    return None if row is None else RoleLease(name, row[0], row[1], instant(row[2]), True)


def _put_role(step: Step, lease: RoleLease) -> None:
    step.execute(
        "role_put",
        name=lease.role,
        holder=lease.holder,
        term=lease.term,
        expires_at=micros(lease.expires_at),
    )


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
