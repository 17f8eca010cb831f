"""Settings, workers, roles and schedules of one store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers.messages import RoleLease
from taskharbor.drivers.postgres.connections import Handle
from taskharbor.drivers.postgres.rows import span, span_us
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import (
    Sample,
    TypeInfo,
    WorkerInfo,
    WorkerReport,
    learned,
    ranked,
    reported,
)
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings, rules_of
from taskharbor.model.schedule import Schedule, StoredSchedule, stored

_settings = msgspec.json.Decoder(QueueSettings)
_report = msgspec.json.Decoder(WorkerReport)
_schedule = msgspec.json.Decoder(Schedule)


class Registry(Handle):
    """What a store keeps besides its jobs."""

    # ------------------------------------------------------------------ settings

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        async def step(connection: Any) -> QueueRules:
            # One change after the other: limits of the harbor and of a queue count the same jobs.
            await connection.execute(self._sql["lock"], "rule", EVERY_QUEUE, None)
            # Settings change while no claim and no enqueue counts by them.
            for kind in ("claim", "enqueue"):
                await connection.execute(self._sql["lock"], kind, settings.queue, None)
            before = await connection.fetchval(self._sql["settings"], settings.queue)
            merged = settings.on_top_of(None if before is None else _settings.decode(before))
            rules = rules_of(merged)
            await connection.execute(
                self._sql["configure_queue"], settings.queue, _text(merged), *_rule_columns(rules)
            )
            return rules

        return await self._connections.step(step)

    # ------------------------------------------------------------------ workers

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        async def step(connection: Any) -> None:
            await connection.execute(self._sql["lock"], "presence", "" if samples else report.worker_id, None)
            row = await connection.fetchrow(self._sql["worker"], report.worker_id, now)
            latency, count, at = span(row[0]), row[1], row[2]  # empty for a report that has expired
            before = WorkerInfo(
                report=report, seen_at=at, expires_at=at + ttl, latency=latency, samples=count
            )
            info = reported(before, report, samples, ttl, at)
            await connection.execute(
                self._sql["report_worker"],
                *(report.worker_id, _text(report), info.seen_at, info.expires_at),
                *(span_us(info.latency), info.samples),
            )
            await self._learn(connection, samples)

        await self._connections.step(step)

    async def _learn(self, connection: Any, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        known = {info.type: info for info in map(_type_info, await connection.fetch(self._sql["types"]))}
        after = learned(known, samples)
        rows = [(name, span_us(after[name].usual), after[name].samples) for name in sorted(after)]
        await connection.executemany(self._sql["learn_type"], rows)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        rows = await self._connections.rows(self._sql["forget_worker"], worker_id, now)
        return bool(rows) and bool(rows[0][0])

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        rows = await self._connections.rows(self._sql["workers"], now, writes=False)
        return ranked(
            [
                WorkerInfo(
                    report=_report.decode(report),
                    seen_at=seen_at,
                    expires_at=expires_at,
                    latency=span(latency),
                    samples=samples,
                )
                for report, seen_at, expires_at, latency, samples in rows
            ]
        )

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        rows = await self._connections.rows(self._sql["types"], writes=False)
        return [_type_info(row) for row in rows]

    # ------------------------------------------------------------------ roles

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        async def step(connection: Any) -> RoleLease:
            # Under a lock of its own: a statement that waits for a row would answer with what it saw before.
            await connection.execute(self._sql["lock"], "role", role, None)
            row = await connection.fetchrow(self._sql["hold_role"], role, holder, span_us(ttl), now)
            return RoleLease(role, row[0], row[1], row[2], row[3])

        return await self._connections.step(step)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        return bool(await self._connections.rows(self._sql["release_role"], role, holder, now))

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        async def step(connection: Any) -> StoredSchedule:
            await connection.execute(self._sql["lock"], "schedule", schedule.name, None)
            row = await connection.fetchrow(self._sql["schedule"], schedule.name, now)
            before = None if row[1] is None else _stored(row[1:])
            entry = stored(schedule, before, row[0])
            await connection.execute(
                self._sql["put_schedule"],
                *(schedule.name, _text(entry.schedule), entry.paused, entry.last_tick_at),
                *(entry.created_at, entry.updated_at, entry.fired_at, entry.declared_at),
            )
            return entry

        return await self._connections.step(step)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        return bool(await self._connections.rows(self._sql["advance_schedule"], name, tick, now, fired))

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return bool(await self._connections.rows(self._sql["delete_schedule"], name))

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        return [_stored(row) for row in await self._connections.rows(self._sql["schedules"], writes=False)]


def _type_info(row: Sequence[Any]) -> TypeInfo:
    name, usual, samples = row
    return TypeInfo(name, timedelta(microseconds=usual), samples)


def _stored(row: Sequence[Any]) -> StoredSchedule:
    text, paused, last_tick_at, created_at, updated_at, fired_at, declared_at = row
    return StoredSchedule(
        schedule=_schedule.decode(text),
        paused=paused,
        last_tick_at=last_tick_at,
        created_at=created_at,
        updated_at=updated_at,
        fired_at=fired_at,
        declared_at=declared_at,
    )


def _rule_columns(rules: QueueRules) -> Sequence[object]:
    keep = rules.retention
    return (
        *(
            rules.paused,
            rules.max_running,
            *_rate(rules.enqueue_rate),
            *_rate(rules.execute_rate),
            rules.fail_queue,
        ),
        keep is not None,
        *(
            (None, None, None)
            if keep is None
            else map(span_us, (keep.completed, keep.failed, keep.cancelled))
        ),
    )


def _rate(rate: RateLimit | None) -> tuple[int | None, int | None]:
    return (None, None) if rate is None else (rate.count, rate.per_us)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
