"""Leases: extended by heartbeats, and reclaimed when they have expired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.families import concluded
from taskharbor.drivers.family_verbs import reclaim_one
from taskharbor.drivers.messages import Extended, Reclaimed
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.redis.encoding import now_arg, progress_bytes, queue_in, token_bytes
from taskharbor.drivers.redis.family_unit import FamilyUnit
from taskharbor.drivers.redis.keys import Keys, ids_in
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.snapshot import ask_for_job
from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.model.checks import is_id
from taskharbor.model.clock import instant, span_micros
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.job import Lease, Progress

LOST: dict[bytes, type[LeaseLost]] = {b"N": JobNotInflight, b"M": LeaseMismatch, b"E": LeaseExpired}
"""Why a script refused a lease."""


class Leases:
    """The leases of one driver handle."""

    def __init__(self, primary: Primary, keys: Keys, steps: OptimisticStep, orphans: Orphans) -> None:
        self._primary = primary
        self._keys = keys
        self._steps = steps
        self._orphans = orphans

    # ------------------------------------------------------------------ extended

    async def extend(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        answers: dict[int, Extended | LeaseLost] = {
            place: JobNotInflight(lease.job_id)
            for place, lease in enumerate(leases)
            if not is_id(lease.job_id)
        }
        places = [place for place in range(len(leases)) if place not in answers]
        queues = [leases[place].queue for place in places]
        while places:
            unclear = await self._extend(answers, leases, places, queues, lease_for, progress, now)
            places = unclear
            queues = await self._queues_of([leases[place].job_id for place in places])
        return [answers[place] for place in range(len(leases))]

    async def _extend(
        self,
        answers: dict[int, Extended | LeaseLost],
        leases: Sequence[Lease],
        places: Sequence[int],
        queues: Sequence[str | None],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[int]:
        """Extend the leases whose job is in the named queue. Returns the indexes of the others."""
        numbers = {name: place for place, name in enumerate(dict.fromkeys(filter(None, queues)), 1)}
        arguments: list[Any] = []
        for place, queue in zip(places, queues, strict=True):
            lease = leases[place]
            step = progress.get(lease.job_id)
            arguments += (
                numbers[queue] if queue else 0,
                id_bytes(lease.job_id),
                token_bytes(lease.token),
                lease.worker_id or "",
                b"" if step is None else b"p" + progress_bytes(step),
            )
        leases_of = [self._keys.queue(name).leases for name in numbers]
        keys = [self._keys.data, *leases_of, self._keys.look_from]
        reply = await self._primary.run_in_epoch(
            "extend", keys, now_arg(now), span_micros(lease_for), len(numbers), *numbers, *arguments
        )
        at = instant(int(reply[0]))
        unclear = []
        for place, queue, answer in zip(places, queues, reply[1:], strict=True):
            lease = leases[place]
            if answer == b"S":
                unclear.append(place)
            elif isinstance(answer, list):
                fence, cancels, version, worker = answer
                held = Lease(lease.job_id, lease.token, int(fence), at + lease_for, worker.decode(), queue)
                answers[place] = Extended(held, cancels == 1, at, version)
            else:
                answers[place] = LOST[answer](lease.job_id)
        return unclear

    async def _queues_of(self, ids: Sequence[str]) -> list[str | None]:
        if not ids:
            return []
        fields = [b"b" + id_bytes(job_id) for job_id in ids]
        bodies = await self._primary.command("HMGET", self._keys.data, *fields)
        return [None if body is None else queue_in(body) for body in bodies]

    # ------------------------------------------------------------------ expired

    async def reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self.sweep(await self._steps.queue_names(), limit, now)

    async def sweep(self, queues: Sequence[str], limit: int, now: datetime | None) -> list[Reclaimed]:
        """End the oldest expired leases of these queues."""
        found = await self.expired(queues, limit, now)
        return await self.reclaim_these([job_id for _, _, job_id in found[:limit]], now)

    async def expired(
        self, queues: Sequence[str], limit: int, now: datetime | None
    ) -> list[tuple[float, bytes, str]]:
        """Expired leases, oldest first: when, seq, id."""
        if not queues:
            return []
        keys = [self._keys.data]
        for queue in queues:
            own = self._keys.queue(queue)
            keys += (own.leases, own.list)
        reply = await self._primary.run("expired", keys, now_arg(now), limit, writes=False)
        self._orphans.note(ids_in(reply[1]))
        found = zip(reply[2::3], reply[3::3], reply[4::3], strict=True)
        return sorted((float(when), seq, id_text(packed)) for when, seq, packed in found)[:limit]

    async def reclaim_these(self, ids: Sequence[str], now: datetime | None) -> list[Reclaimed]:
        if not ids:
            return []

        def decide(unit: FamilyUnit) -> list[Reclaimed]:
            done = [reclaim_one(unit, job_id) for job_id in ids]
            return concluded(unit, [answer for answer in done if answer is not None])

        asked = [ask_for_job(job_id) for job_id in ids]
        return await self._steps.run(asked, decide, now, seqs=len(ids))
