"""Jobs out: reclaim, promote, ask the gates, pick in order, lease. One step."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.messages import Claim, Claimed, Reclaimed, given_up_in
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.hand import Hand
from taskharbor.drivers.sqlite.reclaim import reclaim
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

RECLAIMED_PER_CLAIM = 100
PROMOTED_PER_CLAIM = 10_000
"""Each due job moves once, so a claim pays for more than its own only after a long silence."""


def reserve(step: Step, claim: Claim, token: str) -> Claimed:
    """Up to `claim.limit` jobs, each under a fresh lease, and the expired ones that were given up."""
    swept, due = _see_to_expired(step, claim.queues)
    taken: list[JobRecord] = []
    for queue in claim.queues:
        if queue in due:
            promote(step, queue, PROMOTED_PER_CLAIM)
        most = min(gates.room(step, queue, claim), claim.limit - len(taken))
        if most > 0:
            jobs = Hand(step, claim, queue, token).take(most)
            gates.spend(step, queue, claim, len(jobs))
            taken += jobs
    return Claimed(taken, given_up_in(swept))


def _see_to_expired(step: Step, queues: Sequence[str]) -> tuple[list[Reclaimed], set[str]]:
    """Reclaim what ran out in these queues; with the answers, the queues in which jobs are due."""
    looks = {queue: step.look(queue) for queue in queues}
    is_expired = any(is_expired for is_expired, _ in looks.values())
    swept = reclaim(step, queues, RECLAIMED_PER_CLAIM) if is_expired else []
    return swept, {queue for queue, (_, is_due) in looks.items() if is_due}


def promote(step: Step, queue: str, limit: int) -> int:
    """Line up due jobs of one queue; answers how many of them are listed.

    Nothing that can be read changes: a due job already reads ready.
    """
    last = step.one("promote_bound", queue=queue, now=step.us, limit=limit)
    if last is None:
        return 0
    bound = {"queue": queue, "run_at": last[0], "seq": last[1]}
    moved = 0
    for block, listed in step.all("promote_count", **bound):
        step.count_block(queue, block, JobState.SCHEDULED, -listed)
        step.count_block(queue, block, JobState.READY, +listed)
        moved += listed
    step.run("promote_ready", **bound)
    step.run("promote_unlater", **bound)
    step.hints.queues.add(queue)
    step.has_timed = True
    return moved
