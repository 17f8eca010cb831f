"""Attempts that end and concern no other job: retries for later, and successes after the first try.

`settled` (model/transitions.py) decides about each. What it looks at is read for all together, without
bodies. What it says is written for all together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.sqlite.rows import (
    CODES,
    COMPLETED,
    ClaimRow,
    Flags,
    history_of,
    instant,
    json_array,
    past_of,
)
from taskharbor.drivers.sqlite.step import COPIES, Step
from taskharbor.model.clock import micros
from taskharbor.model.job import NO_TIME, JobRecord
from taskharbor.model.settlement import Ack, Retry, Settlement
from taskharbor.model.state import JobState
from taskharbor.model.transitions import lease_error, settled


class _Claim(NamedTuple):
    """Jobs of one claim that leave it here."""

    row: ClaimRow
    model: JobRecord
    """A job of this claim on its first run, but for what is its own."""
    is_kept: bool
    """Whether a record of completed jobs stays."""
    left: dict[JobState, list[int]]
    """The seqs of those that were decided, by the state they have now."""


def settle_alone(step: Step, asked: Mapping[int, Settlement]) -> list[Settled]:
    """Settle what can be settled here, by seq, and answer for it. The rest is left as it was."""
    if not asked or step.has(COPIES):  # the end of a job ends its copy
        return []
    claims: dict[int, _Claim] = {}
    done: list[Settled] = []
    for seq, no, flags, version, fence, *past in step.fetch_all("settle_read", seqs=json_array(asked)):
        claim = claims.get(no) or claims.setdefault(no, _claim_of(step, seq))
        job = replace(
            claim.model,
            id=asked[seq].lease.job_id,
            seq=seq,
            fence=claim.row.started_at if fence is None else fence,
            version=version + claim.row.extensions,
            **past_of(past),
        )
        after = _decided(step, claim, job, asked[seq], flags)
        if after is not None:
            claim.left.setdefault(after.state, []).append(seq)
            done.append(Settled(after.id, after.state, step.now, after.version))
    for claim in claims.values():
        _leave(step, claim)
    return done


def _claim_of(step: Step, seq: int) -> _Claim:
    row = ClaimRow._make(step.fetch_one("settle_claim", seq=seq))
    started_at = instant(row.started_at)
    model = JobRecord(
        id="",
        seq=0,
        type="",
        queue=row.queue,
        state=JobState.RUNNING,
        payload=b"",
        created_at=started_at,
        updated_at=started_at,
        starts=1,
        token=row.token,
        worker_id=row.worker,
        lease_expires_at=instant(row.expires_at),
        started_at=started_at,
    )
    return _Claim(row, model, step.retention_of(row.queue).completed != NO_TIME, {})


def _decided(
    step: Step, claim: _Claim, job: JobRecord, settlement: Settlement, flags: int
) -> JobRecord | None:
    """What becomes of one job, with its own rows on their way; None if it needs a closer look."""
    if lease_error(job, settlement.lease, step.now) is not None:
        return None
    after = settled(job, settlement, step.now)
    if type(settlement) is Retry:
        if after.state is not JobState.SCHEDULED or after.run_at is None:
            return None  # its place in line depends on its body
        timed = flags | Flags.PAST | Flags.TIMED
        step.add_row("put_waiting", job.queue, "", "", 0, micros(after.run_at), job.seq, timed)
    elif type(settlement) is Ack:
        if not claim.is_kept or flags & Flags.IDEMPOTENT:
            return None
        step.add_row("settle_finished", job.queue, COMPLETED, step.us, job.seq)
        if after.result is not None:
            step.add_row("settle_results", job.seq, after.result)
    step.add_row("put_history", *history_of(after))
    return after


def _leave(step: Step, claim: _Claim) -> None:
    """These jobs no longer run under their claim."""
    row = claim.row
    for state, seqs in claim.left.items():
        step.execute(
            "settle_alone",
            seqs=json_array(seqs),
            state=CODES[state],
            extensions=row.extensions,
            started_at=row.started_at,
            now=step.us,
        )
        step.add_row("claim_leave", row.no, len(seqs))
        step.count_seqs(row.queue, seqs, JobState.RUNNING, -1)
        step.count_seqs(row.queue, seqs, state)
