"""Queue settings, workers, roles and schedules: small records in hashes, written only if unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.optimistic import MOST_TRIES, OptimisticStep, too_busy
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.settings_codec import parts_in, rules_bytes, rules_in
from taskharbor.model.clock import instant
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
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule, advanced, stored

_T = TypeVar("_T")
_encode = msgspec.msgpack.encode
_SETTINGS = ("paused", "max_running", "enqueue_rate", "execute_rate", "fail_queue", "retention")

Field = tuple[str, str]  # a key and one of its fields


class Registry:
    """The verbs about everything but jobs, of a driver or of one slot of a cluster."""

    primary: Primary
    keys: Keys
    steps: OptimisticStep

    # ------------------------------------------------------------------ settings

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        keys, name = self.keys, settings.queue
        own = keys.queue(name)
        is_harbor = name == EVERY_QUEUE
        queues = await self.steps.queue_names() if is_harbor else [name]

        def decide(values: Sequence[bytes | None], _: datetime) -> tuple[QueueRules, list[Any]]:
            rules = _with(rules_in(values[0]), settings)
            writes: list[Any] = [("HSET", keys.data, f"R{name}", rules_bytes(rules, parts_in(values[0])))]
            writes.append(("SADD", keys.configured, name))
            if rules.enqueue_rate is None:  # without a rate, no usage is kept
                writes.append(("DEL", keys.enqueue_rate if is_harbor else own.enqueue_rate))
            if rules.execute_rate is None:
                writes.append(("DEL", keys.execute_rate if is_harbor else own.execute_rate))
            writes += [("WAKE", keys.queue(queue).wake) for queue in queues]  # a limit may have been raised
            return rules, writes

        rules = await self._change([(keys.data, f"R{name}")], decide, None)
        self.steps.forget_rules()
        return rules

    # ------------------------------------------------------------------ workers

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        types = sorted({sample.type for sample in samples})
        fields = [(self.keys.workers, report.worker_id), *((self.keys.types, name) for name in types)]

        def decide(values: Sequence[bytes | None], at: datetime) -> tuple[None, list[Any]]:
            info = reported(_decoded(values[0], WorkerInfo), report, samples, ttl, at)
            found = (_decoded(packed, TypeInfo) for packed in values[1:])
            known = {usual.type: usual for usual in found if usual is not None}
            writes: list[Any] = [("HSET", self.keys.workers, report.worker_id, _encode(info))]
            for name, usual in learned(known, samples).items():
                writes.append(("HSET", self.keys.types, name, _encode(usual)))
            return None, writes

        await self._change(fields, decide, now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        return await self._forget(worker_id, now, only_lapsed=False)

    async def _forget(self, worker_id: str, now: datetime | None, *, only_lapsed: bool) -> bool:
        """True if the worker's report had not expired. `only_lapsed`: keep one that has reported again."""

        def decide(values: Sequence[bytes | None], at: datetime) -> tuple[bool, list[Any]]:
            if values[0] is None:
                return False, []
            lives = msgspec.msgpack.decode(values[0], type=WorkerInfo).expires_at > at
            stays = lives and only_lapsed
            return lives, [] if stays else [("HDEL", self.keys.workers, worker_id)]

        return await self._change([(self.keys.workers, worker_id)], decide, now)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        at, packed = await self._all(self.keys.workers, now)
        infos = [msgspec.msgpack.decode(value, type=WorkerInfo) for value in packed]
        for lapsed in (info for info in infos if info.expires_at <= at):
            await self._forget(lapsed.report.worker_id, now, only_lapsed=True)
        return ranked([info for info in infos if info.expires_at > at])

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        _, packed = await self._all(self.keys.types, None)
        infos = [msgspec.msgpack.decode(value, type=TypeInfo) for value in packed]
        return sorted(infos, key=lambda info: info.type)

    # ------------------------------------------------------------------ roles

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        def decide(values: Sequence[bytes | None], at: datetime) -> tuple[RoleLease, list[Any]]:
            lease = role_after(_decoded(values[0], RoleLease), role, holder, ttl, at)
            return lease, [("HSET", self.keys.roles, role, _encode(lease))] if lease.is_mine else []

        return await self._change([(self.keys.roles, role)], decide, now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        def decide(values: Sequence[bytes | None], at: datetime) -> tuple[bool, list[Any]]:
            lease = role_released(_decoded(values[0], RoleLease), holder, at)
            return lease is not None, [("HSET", self.keys.roles, role, _encode(lease))] if lease else []

        return await self._change([(self.keys.roles, role)], decide, now)

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        def decide(values: Sequence[bytes | None], at: datetime) -> tuple[StoredSchedule, list[Any]]:
            entry = stored(schedule, _decoded(values[0], StoredSchedule), at)
            return entry, [("HSET", self.keys.schedules, schedule.name, _encode(entry))]

        return await self._change([(self.keys.schedules, schedule.name)], decide, now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        def decide(values: Sequence[bytes | None], at: datetime) -> tuple[bool, list[Any]]:
            entry = _decoded(values[0], StoredSchedule)
            if entry is None or tick <= entry.last_tick_at:
                return entry is not None, []
            after = advanced(entry, tick, at, fired=fired)
            return True, [("HSET", self.keys.schedules, name, _encode(after))]

        return await self._change([(self.keys.schedules, name)], decide, now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return bool(await self.primary.command("HDEL", self.keys.schedules, name, writes=True))

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        _, packed = await self._all(self.keys.schedules, None)
        entries = [msgspec.msgpack.decode(value, type=StoredSchedule) for value in packed]
        return sorted(entries, key=lambda entry: entry.schedule.name)

    # ------------------------------------------------------------------ read, decide, write if unchanged

    async def _change(
        self,
        fields: Sequence[Field],
        decide: Callable[[Sequence[bytes | None], datetime], tuple[_T, list[Any]]],
        now: datetime | None,
    ) -> _T:
        for _ in range(MOST_TRIES):
            values, at = await self._read(fields, now)
            answer, writes = decide(values, at)
            if not writes:
                return answer
            numbers: dict[str, int] = {self.keys.data: 1}

            def number(key: str, numbers: dict[str, int] = numbers) -> int:
                return numbers.setdefault(key, len(numbers) + 1)

            arguments: list[Any] = [len(fields)]
            for (key, field), value in zip(fields, values, strict=True):
                arguments += [number(key), field, b"" if value is None else b"v" + value]
            arguments.append(0)
            for command, key, *parts in writes:
                arguments += [2 + len(parts), command, number(key), *parts]
            if await self.primary.run_in_epoch("commit", list(numbers), now_arg(now), *arguments) == b"done":
                return answer
        raise too_busy()

    async def _read(
        self, fields: Sequence[Field], now: datetime | None
    ) -> tuple[list[bytes | None], datetime]:
        commands: list[tuple[str, ...]] = [("TIME",)]
        commands += [("HGET", key, field) for key, field in fields]
        time, *values = await self.primary.together(commands)
        return values, now or _instant_of(time)

    async def _all(self, key: str, now: datetime | None) -> tuple[datetime, list[bytes]]:
        time, values = await self.primary.together([("TIME",), ("HVALS", key)])
        return now or _instant_of(time), values


def _instant_of(time: Sequence[bytes]) -> datetime:
    return instant(int(time[0]) * 1_000_000 + int(time[1]))


def _with(rules: QueueRules, settings: QueueSettings) -> QueueRules:
    given = {name: value for name in _SETTINGS if (value := getattr(settings, name)) is not msgspec.UNSET}
    return replace(rules, **given)


def _decoded(packed: bytes | None, type_: type[_T]) -> _T | None:
    return None if packed is None else msgspec.msgpack.decode(packed, type=type_)
