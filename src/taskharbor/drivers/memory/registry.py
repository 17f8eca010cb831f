"""Workers, their averages, roles and schedules of one store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from taskharbor.drivers.messages import RoleLease
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport, fold, ranked
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
        known = before if before is not None and before.expires_at > now else None
        latency = known.latency if known else None
        for sample in samples:
            latency = fold(latency, sample.duration)
            self._learn(sample)
        self._workers[report.worker_id] = WorkerInfo(
            report=report,
            seen_at=now,
            expires_at=now + ttl,
            latency=latency,
            samples=(known.samples if known else 0) + len(samples),
        )

    def forget(self, worker_id: str, now: datetime) -> bool:
        before = self._workers.pop(worker_id, None)
        return before is not None and before.expires_at > now

    def workers(self, now: datetime) -> list[WorkerInfo]:
        self._workers = {name: info for name, info in self._workers.items() if info.expires_at > now}
        return ranked(list(self._workers.values()))

    def types(self) -> list[TypeInfo]:
        return [self._types[name] for name in sorted(self._types)]

    def _learn(self, sample: Sample) -> None:
        known = self._types.get(sample.type)
        usual = fold(known.usual if known else None, sample.duration)
        self._types[sample.type] = TypeInfo(sample.type, usual, (known.samples if known else 0) + 1)

    # ------------------------------------------------------------------ roles

    def hold(self, role: str, holder: str, ttl: timedelta, now: datetime) -> RoleLease:
        before = self._roles.get(role)
        is_held = before is not None and before.expires_at > now
        if before is not None and is_held and before.holder != holder:
            return replace(before, is_mine=False)
        term = (before.term if before else 0) + (0 if is_held else 1)
        self._roles[role] = RoleLease(role, holder, term, now + ttl, True)
        return self._roles[role]

    def release(self, role: str, holder: str, now: datetime) -> bool:
        before = self._roles.get(role)
        if before is None or before.holder != holder or before.expires_at <= now:
            return False
        self._roles[role] = replace(before, expires_at=now)  # the term stays known and is never reused
        return True

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
