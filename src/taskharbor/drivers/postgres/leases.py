"""What time does: leases are extended and expire, due jobs are promoted, old ones pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.messages import Extended, Promoted, Reclaimed, ReclaimResult
from taskharbor.drivers.postgres.families import Families
from taskharbor.drivers.postgres.family_step import FamilyStep
from taskharbor.drivers.postgres.rows import MARK, progress_text, span_us
from taskharbor.drivers.postgres.settlements import batch_of
from taskharbor.drivers.postgres.unit_of_work import HasFamily, UnitOfWork
from taskharbor.errors import JobNotInflight, LeaseLost
from taskharbor.model.checks import is_id
from taskharbor.model.job import JobRecord, Lease, Progress
from taskharbor.model.state import JobState
from taskharbor.model.transitions import lease_error

RESULTS = {
    1: ReclaimResult.REQUEUED,
    2: ReclaimResult.MERGED,
    5: ReclaimResult.FAILED,
    6: ReclaimResult.CANCELLED,
}
"""The results of the function sweep."""
CAREFUL, LOST = 8, 9  # two more of them: reclaim it one by one; its record is gone


class Leases(Families):
    """The leases of a driver handle."""

    # ------------------------------------------------------------------ heartbeats

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        answers: dict[int, Extended | LeaseLost] = {}
        batch = batch_of(leases)
        if batch.ids:
            texts = [progress_text(progress.get(job_id)) for job_id in batch.ids] if progress else []
            rows = await self._connections.rows(
                self._sql["extend"],
                *(now, *batch.arguments, texts if any(texts) else None, span_us(lease_for)),
                urgent=True,  # a lease ends while it waits
            )
            for ord_, fence, worker, queue, is_cancelled, version, expires_at, at in rows:
                place = batch.places[ord_ - 1]
                lease = Lease(leases[place].job_id, leases[place].token, fence, expires_at, worker, queue)
                answers[place] = Extended(lease, is_cancelled, at, version)
        seen: set[str] = set()
        again = [p for p, lease in enumerate(leases) if lease.job_id in seen or seen.add(lease.job_id)]  # type: ignore[func-returns-value]
        if again:  # the same job twice in one call: one after the other
            more = await self.do_extend_leases([leases[place] for place in again], lease_for, progress, now)
            answers |= zip(again, more, strict=True)
        lost = [place for place in range(len(leases)) if place not in answers]
        if lost:
            answers |= zip(lost, await self._why_lost([leases[place] for place in lost], now), strict=True)
        return [answers[place] for place in range(len(leases))]

    async def _why_lost(self, leases: Sequence[Lease], now: datetime | None) -> list[LeaseLost]:
        ids = [lease.job_id for lease in leases if is_id(lease.job_id)]
        rows = await self._connections.rows(self._sql["read_leases"], ids, now, writes=False)
        seen = {row[0]: row for row in rows}
        return [_lease_error(seen.get(lease.job_id), lease) for lease in leases]

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        rows = await self._connections.rows(self._sql["sweep"], now, None, limit)
        self.orphans.note([row[1] for row in rows if row[2] == LOST])
        answers = {
            ord_: Reclaimed(job_id, queue, type_, RESULTS[result], stalls, at, version)
            for ord_, job_id, result, version, at, queue, type_, stalls in rows
            if result in RESULTS
        }
        left = {row[1]: row[0] for row in rows if row[2] == CAREFUL}
        for answer in await self._reclaim_one_by_one(list(left), now):
            answers[left[answer.id]] = answer
        await self._look_for_others(now)
        return self._with_ends([answers[ord_] for ord_ in sorted(answers)])

    async def _reclaim_one_by_one(self, ids: Sequence[str], now: datetime | None) -> list[Reclaimed]:
        """Reclaim jobs that have a copy or get a failure job, one record after the other."""
        if not ids:
            return []

        async def reclaim(connection: Any) -> list[Reclaimed]:
            jobs = UnitOfWork(connection, self._sql)
            await jobs.lock(ids, now)
            answers = [answer for job_id in ids if (answer := lifecycle.reclaim_one(jobs, job_id))]
            await jobs.write()
            return answers

        try:
            return await self._connections.step(reclaim)
        except HasFamily:
            return await self._family_step(ids, now, lambda jobs: _reclaim(jobs, ids))

    async def do_promote(self, limit: int, now: datetime | None) -> Promoted:
        promoted, is_owed = await self._number("promote", now, limit)
        carried_out = await self._sweep_families(now, limit) if is_owed else 0
        return Promoted(promoted + carried_out, self._take_unreported())

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        pruned, has_families = await self._number("prune", now, limit)
        return pruned + (
            await self._prune_families(limit - pruned, now) if has_families and pruned < limit else 0
        )

    async def _number(self, name: str, *arguments: object) -> tuple[int, bool]:
        """What a call has done, and whether there is more of it to do for families."""
        [row] = await self._connections.rows(self._sql[name], *arguments)
        return int(row[0]), row[1]


def _reclaim(jobs: FamilyStep, ids: Sequence[str]) -> list[Reclaimed]:
    answers = [answer for job_id in ids if (answer := family_verbs.reclaim_one(jobs, job_id))]
    return families.concluded(jobs, answers)


def _lease_error(row: Sequence[Any] | None, lease: Lease) -> LeaseLost:
    """Why a lease was refused, in the order that every driver keeps."""
    if row is None or row[1] is None:
        return JobNotInflight(lease.job_id)
    _, token, is_keyed, worker, expires_at, at = row
    record = JobRecord(
        id=lease.job_id,
        seq=0,
        type="",
        queue="",
        state=JobState.RUNNING,
        payload=b"",
        created_at=at,
        updated_at=at,
        token=token.replace("-", "") + (MARK if is_keyed else ""),
        worker_id=worker,
        lease_expires_at=expires_at,
    )
    # A lease that holds again by now was refused a moment ago: it ran out in between.
    return lease_error(record, lease, at) or JobNotInflight(lease.job_id)
