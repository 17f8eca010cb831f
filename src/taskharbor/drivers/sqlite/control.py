"""Cancel, requeue, delete, speculate, configure: what is done to jobs and queues from outside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.messages import CancelAnswer, Deleted, Requeued, Speculated
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.families import FamilyRecords
from taskharbor.drivers.sqlite.step import Handle, Step
from taskharbor.errors import ConflictError, JobNotFound
from taskharbor.model.edit import Edit
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.speculation import HeadStart
from taskharbor.model.transitions import starting_at


class Control(Handle):
    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        def work(step: Step) -> list[CancelAnswer]:
            jobs = FamilyRecords(step)
            answers = [family_verbs.cancel(jobs, job_id) for job_id in ids]
            return families.concluded(jobs, answers) if jobs.has_families else answers

        return await self._write(work, now)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return await self._write(lambda step: lifecycle.cancel_waiting(FamilyRecords(step), queue, key), now)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        def work(step: Step) -> list[Requeued | JobNotFound | ConflictError]:
            due, jobs = starting_at(run_at, delay, step.now), FamilyRecords(step)
            return [
                family_verbs.requeue(jobs, job_id, edit, reset_counts=reset_counts, run_at=due)
                for job_id in ids
            ]

        return await self._write(work, now)

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        def work(step: Step) -> list[Deleted | JobNotFound | ConflictError]:
            jobs = FamilyRecords(step)
            return [family_verbs.delete(jobs, job_id) for job_id in ids]

        return await self._write(work, now)

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        return await self._write(
            lambda step: family_verbs.speculate(FamilyRecords(step), job_id, head_start), now
        )

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        def work(step: Step) -> QueueRules:
            step.notices.queues.update(name for (name,) in step.fetch_all("count_queues"))  # a gate may open
            return gates.configure(step, settings)

        return await self._write(work, now)
