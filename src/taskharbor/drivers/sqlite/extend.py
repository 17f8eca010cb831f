"""Leases counted anew, all of a worker's with a few statements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from taskharbor.drivers.messages import Extended
from taskharbor.drivers.sqlite import leases
from taskharbor.drivers.sqlite.leases import Held
from taskharbor.drivers.sqlite.records import json_text, leave_grant
from taskharbor.drivers.sqlite.rows import Flags, progress_text
from taskharbor.drivers.sqlite.runs import lease_alone, runs_of, within
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.model.clock import micros
from taskharbor.model.job import Lease, Progress

Answer = Extended | LeaseLost


def extend(
    step: Step, named: Sequence[Lease], lease_for: timedelta, progress: Mapping[str, Progress]
) -> list[Answer]:
    """Per lease the new one or why it was refused. A lease named twice is counted anew twice."""
    answers: dict[int, Answer] = {}
    left = dict(enumerate(named))
    while left:
        first = {lease.job_id: place for place, lease in reversed(left.items())}
        places = sorted(first.values())
        answers.update(_once(step, {place: left.pop(place) for place in places}, lease_for, progress))
    return [answers[place] for place in range(len(named))]


def _once(
    step: Step, named: dict[int, Lease], lease_for: timedelta, progress: Mapping[str, Progress]
) -> dict[int, Answer]:
    """The same for leases that are all of different jobs."""
    seq_of = _seqs(step, [lease.job_id for lease in named.values()])
    rows = _rows_by_seq(step, seq_of.values())
    answers: dict[int, Answer] = {}
    valid: dict[int, list[int]] = {}
    expires_at = step.now + lease_for
    for place, lease in named.items():
        seq = seq_of.get(lease.job_id)
        row = None if seq is None else rows.get(seq)
        if seq is None or row is None:
            answers[place] = JobNotInflight(lease.job_id)
        elif not row.fits(lease):
            answers[place] = LeaseMismatch(lease.job_id)
        elif row.expires_at <= step.us:
            answers[place] = LeaseExpired(lease.job_id)
        else:
            valid.setdefault(row.no, []).append(seq)
            answers[place] = _extended(row, lease, expires_at, step.now)
    for seqs in valid.values():
        _count_anew(step, rows, sorted(seqs), micros(expires_at))
    for place, lease in named.items():
        said = progress.get(lease.job_id)
        if said is not None and isinstance(answers[place], Extended):
            lease_alone(step, seq_of[lease.job_id])
            step.run("extend_progress", seq=seq_of[lease.job_id], progress=progress_text(said))
    return answers


def _extended(row: Held, lease: Lease, expires_at: datetime, now: datetime) -> Extended:
    counted = Lease(lease.job_id, row.token, row.fence or row.started_at, expires_at, row.worker, row.queue)
    version = (row.past_version or 1) + 1 + row.extensions + row.bumps + 1
    return Extended(counted, bool(row.flags & Flags.CANCEL), now, version)


def _rows_by_seq(step: Step, seqs: Collection[int]) -> dict[int, Held]:
    """Per job that runs the row of leases it stands in."""
    if not seqs:
        return {}
    ordered = sorted(seqs)
    rows = leases.rows_of(step, runs_of(ordered))
    return {seq: row for row in rows for seq in within(ordered, (row.seq, row.last))}


def _seqs(step: Step, ids: list[str]) -> dict[str, int]:
    known = step.kept.seq_of
    if all(job_id in known for job_id in ids):
        return {job_id: known[job_id] for job_id in ids}
    return dict(step.all("get_seq_of", ids=json_text(ids)))


def _count_anew(step: Step, rows: dict[int, Held], seqs: list[int], expires_at: int) -> None:
    """All leases of a grant stay together; a part of them gets a grant of its own."""
    grant = rows[seqs[0]]
    if len(seqs) == grant.held:
        step.run("extend_whole", no=grant.no, expires_at=expires_at, now=step.us)
        return
    runs = json_text(runs_of(seqs))
    part = step.run(
        "extend_split", no=grant.no, expires_at=expires_at, now=step.us, held=len(seqs), runs=runs
    )
    mine = {row.seq: row for row in (rows[seq] for seq in seqs)}
    leases.move(step, list(mine.values()), seqs, part.lastrowid)
    leave_grant(step, grant.no, len(seqs))
