"""Attempts end: first-try successes many at once, everything else one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.sqlite import gates, leases
from taskharbor.drivers.sqlite.ends import Ends
from taskharbor.drivers.sqlite.leases import Held
from taskharbor.drivers.sqlite.records import Records, json_text, leave_grant
from taskharbor.drivers.sqlite.runs import Run, runs_of, within
from taskharbor.drivers.sqlite.statements import SIZES
from taskharbor.drivers.sqlite.step import Step, blocks_of
from taskharbor.errors import LeaseLost
from taskharbor.model.job import NO_TIME
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.state import JobState

Answers = list[Settled | LeaseLost]


def settle(step: Step, settlements: Sequence[Settlement]) -> Answers:
    """Per settlement the stored state or why it was refused; one never affects another."""
    if not settlements:
        return []
    acks = _acks(step, settlements)
    versions = _complete(step, acks) if acks else {}
    completed, now = JobState.COMPLETED, step.now
    done: Answers = [
        Settled(ack.lease.job_id, completed, now, versions[seq])
        for seq, ack in acks.items()
        if seq in versions
    ]
    return done if len(done) == len(settlements) else _rest(step, settlements, done)


def _rest(step: Step, settlements: Sequence[Settlement], done: Answers) -> Answers:
    """The answers to all, after those that could be given at once."""
    ends = Ends(step, Records(step))
    known = {answer.id: answer for answer in done if isinstance(answer, Settled)}
    return [known.get(item.lease.job_id) or ends.settle(item) for item in settlements]


def _acks(step: Step, settlements: Sequence[Settlement]) -> dict[int, Ack]:
    """The successes by seq, less those of jobs that are settled twice here: there the order decides."""
    forget = step.kept.seq_of.pop  # whatever comes of it, the job is not held here any more
    acks: dict[int, Ack] = {}
    for settlement in settlements:
        seq = forget(settlement.lease.job_id, None)
        if seq is None:
            return _acks_unknown(step, settlements)
        if type(settlement) is Ack:
            acks[seq] = settlement
    return acks


def _acks_unknown(step: Step, settlements: Sequence[Settlement]) -> dict[int, Ack]:
    """The same for jobs that were handed out elsewhere, or are settled twice."""
    named = Counter(settlement.lease.job_id for settlement in settlements)
    seq_of: dict[str, int] = dict(step.all("get_seq_of", ids=json_text(named)))
    return {
        seq_of[job_id]: settlement
        for settlement in settlements
        if type(settlement) is Ack and (job_id := settlement.lease.job_id) in seq_of and named[job_id] == 1
    }


# ------------------------------------------------------------------ at once


def _complete(step: Step, acks: dict[int, Ack]) -> dict[int, int]:
    """Complete what valid leases cover that need no closer look → the versions of those records, by seq."""
    ordered = sorted(acks)
    grants: dict[int, list[Held]] = {}
    ended: dict[int, list[int]] = {}
    for row in leases.rows_of(step, runs_of(ordered)):
        is_plain = row.flags == 0 and row.expires_at > step.us
        if is_plain and (seqs := _proven(row, within(ordered, (row.seq, row.last)), acks)):
            grants.setdefault(row.no, []).append(row)
            ended.setdefault(row.no, []).extend(seqs)
    versions: dict[int, int] = {}
    for no, rows in grants.items():
        version = _end(step, rows, ended[no], acks)
        versions.update(dict.fromkeys(ended[no], version))
    return versions


def _proven(row: Held, seqs: list[int], acks: dict[int, Ack]) -> list[int]:
    """Those of these seqs whose leases this row bears out: `row.fits`, written out for many."""
    token, workers = row.token, (None, row.worker)
    return [seq for seq in seqs if (lease := acks[seq].lease).token == token and lease.worker_id in workers]


def _end(step: Step, rows: list[Held], seqs: list[int], acks: dict[int, Ack]) -> int:
    """End leases of one grant, all of them first-try successes: answers the version of their records."""
    grant = rows[0]
    leases.end(step, rows, seqs)
    leave_grant(step, grant.no, len(seqs), grant.held)
    is_kept = gates.retention(step, grant.queue).completed != NO_TIME
    for block, count in blocks_of(seqs).items():
        step.count_block(grant.queue, block, JobState.RUNNING, -count)
        if is_kept:
            step.count_block(grant.queue, block, JobState.COMPLETED, +count)
    runs = runs_of(seqs)
    if is_kept:
        _keep(step, grant, runs, seqs, acks)
    else:
        _drop(step, runs, seqs)
    return 3 + grant.extensions


def _keep(step: Step, grant: Held, runs: list[Run], seqs: list[int], acks: dict[int, Ack]) -> None:
    """The records of completed jobs stay for their retention."""
    step.run(
        "settle_completed",
        queue=grant.queue,
        finished_at=step.us,
        version=3 + grant.extensions,
        started_at=grant.started_at,
        token=grant.token,
        runs=json_text(runs),
    )
    results: list[Any] = [
        value for seq in seqs if (result := acks[seq].result) is not None for value in (seq, result)
    ]
    start, end = 0, len(results)
    for size in SIZES:
        while end - start >= 2 * size:
            step.listed("settle_result", size, results[start : start + 2 * size])
            start += 2 * size


def _drop(step: Step, runs: list[Run], seqs: list[int]) -> None:
    """A retention of zero: no record stays."""
    if len(runs) == 1:
        step.run("drop_body_run", first=runs[0][0], last=runs[0][1])
    else:
        step.run("drop_body", seqs=json_text(seqs))
