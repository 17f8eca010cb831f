"""Leases that ran out: each dealt with once, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskharbor.drivers.messages import Reclaimed, reclaimed
from taskharbor.drivers.sqlite.ends import Ends
from taskharbor.drivers.sqlite.orphans import drop_lease
from taskharbor.drivers.sqlite.records import Records
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.state import JobState
from taskharbor.model.transitions import stalled


def reclaim(step: Step, queues: Sequence[str] | None, limit: int) -> list[Reclaimed]:
    """Up to `limit` expired leases of these queues, or of all."""
    grants = _expired(step, queues, limit)
    if not grants:
        return []
    leases = sorted(
        (expires_at, seq)
        for no, expires_at, runs in grants
        for first, last in step.all("reclaim_leases", no=no, runs=runs)
        for seq in range(first, last + 1)
    )
    records = Records(step)
    ends = Ends(step, records)
    answers = [_reclaimed(step, records, ends, seq) for _, seq in leases[:limit]]
    return [answer for answer in answers if answer is not None]


def _expired(step: Step, queues: Sequence[str] | None, limit: int) -> list[Any]:
    if queues is None:
        return step.all("reclaim_grants_anywhere", now=step.us, limit=limit)
    return [
        grant
        for queue in queues
        for grant in step.all("reclaim_grants", queue=queue, now=step.us, limit=limit)
    ]


def _reclaimed(step: Step, records: Records, ends: Ends, seq: int) -> Reclaimed | None:
    """What became of one expired lease; None when it went with another one: a copy with its original."""
    job = records.at(seq)
    if job is None:
        drop_lease(step, seq)
        return None
    if job.state is not JobState.RUNNING:
        return None
    had_blocked = records.blocked_behind(job) is not None
    after = ends.leave(job, stalled(job, "", step.now))
    if after.state.is_terminal:
        ends.drop_copy_of(after)
    return reclaimed(after, step.now, had_blocked=had_blocked)
