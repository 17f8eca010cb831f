"""The verbs that change jobs from outside: cancel, requeue, delete, speculate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.messages import CancelAnswer, Deleted, Requeued, Speculated
from taskharbor.drivers.redis.family_unit import FamilyUnit
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.snapshot import ask_for_job, scoped
from taskharbor.errors import ConflictError, JobNotFound
from taskharbor.model.edit import Edit
from taskharbor.model.speculation import HeadStart
from taskharbor.model.transitions import starting_at


class Control:
    """The control verbs of a driver, or of one slot of a cluster."""

    steps: OptimisticStep

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        def decide(unit: FamilyUnit) -> list[CancelAnswer]:
            return families.concluded(unit, [family_verbs.cancel(unit, job_id) for job_id in ids])

        return await self.steps.run(_asked(ids), decide, now)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return await self.steps.run(
            [b"k" + scoped(queue, key)], lambda unit: lifecycle.cancel_waiting(unit, queue, key), now
        )

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        def decide(unit: FamilyUnit) -> list[Requeued | JobNotFound | ConflictError]:
            due = starting_at(run_at, delay, unit.now)
            return [
                family_verbs.requeue(unit, job_id, edit, reset_counts=reset_counts, run_at=due)
                for job_id in ids
            ]

        return await self.steps.run(_asked(ids), decide, now)

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        def decide(unit: FamilyUnit) -> list[Deleted | JobNotFound | ConflictError]:
            return [family_verbs.delete(unit, job_id) for job_id in ids]

        return await self.steps.run(_asked(ids), decide, now)

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        return await self.steps.run(
            _asked([job_id]), lambda unit: family_verbs.speculate(unit, job_id, head_start), now, seqs=1
        )


def _asked(ids: Sequence[str]) -> list[bytes]:
    return list(dict.fromkeys(map(ask_for_job, ids)))
