"""Workers, their averages, roles and schedules of one store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

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


class Registry:
    """What a store knows besides jobs."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerInfo] = {}
        self._types: dict[str, TypeInfo] = {}
        self._roles: dict[str, RoleLease] = {}
        self._schedules: dict[str, StoredSchedule] = {}

    # ------------------------------------------------------------------ workers

    def report(self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime) -> None:
        before = self._workers.get(report.worker_id)
        self._workers[report.worker_id] = reported(before, report, samples, ttl, now)
        self._types |= learned(self._types, samples)

    def forget(self, worker_id: str, now: datetime) -> bool:
        before = self._workers.pop(worker_id, None)
        return before is not None and before.expires_at > now

    def workers(self, now: datetime) -> list[WorkerInfo]:
        self._workers = {name: info for name, info in self._workers.items() if info.expires_at > now}
        return ranked(list(self._workers.values()))

    def types(self) -> list[TypeInfo]:
        return [self._types[name] for name in sorted(self._types)]

    # ------------------------------------------------------------------ roles

    def hold(self, role: str, holder: str, ttl: timedelta, now: datetime) -> RoleLease:
        lease = role_after(self._roles.get(role), role, holder, ttl, now)
        if lease.is_mine:
            self._roles[role] = lease
        return lease

    def release(self, role: str, holder: str, now: datetime) -> bool:
        lease = role_released(self._roles.get(role), holder, now)
        if lease is not None:
            self._roles[role] = lease
        return lease is not None

    # ------------------------------------------------------------------ schedules

    def put(self, schedule: Schedule, now: datetime) -> StoredSchedule:
        self._schedules[schedule.name] = stored(schedule, self._schedules.get(schedule.name), now)
        return self._schedules[schedule.name]

    def advance(self, name: str, tick: datetime, fired: bool, now: datetime) -> bool:
        entry = self._schedules.get(name)
        if entry is None:
            return False
        self._schedules[name] = advanced(entry, tick, now, fired=fired)
        return True

    def delete(self, name: str) -> bool:
        return self._schedules.pop(name, None) is not None

    def schedules(self) -> list[StoredSchedule]:
        return [self._schedules[name] for name in sorted(self._schedules)]
