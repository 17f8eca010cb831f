"""Leases counted from now on, all of a worker's with a few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from taskharbor.drivers.messages import Extended
from taskharbor.drivers.sqlite.rows import Flags, json_array, progress_text
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.model.clock import micros
from taskharbor.model.job import Lease, Progress

Answer = Extended | LeaseLost


class LeaseRow(NamedTuple):
    """A row of the statement `extend_find`: a job that runs, and its claim."""

    seq: int
    flags: int
    version: int
    fence: int | None
    no: int
    queue: str
    token: str
    worker: str
    started_at: int
    expires_at: int
    extensions: int
    held: int

    def fits(self, lease: Lease) -> bool:
        """True if token and worker match this row."""
        return lease.token == self.token and lease.worker_id in (None, self.worker)


def extend(
    step: Step, named: Sequence[Lease], lease_for: timedelta, progress: Mapping[str, Progress]
) -> list[Answer]:
    """Per lease the new one or why it was refused. A lease that is named twice is extended twice."""
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
    found = map(LeaseRow._make, step.execute("extend_find", seqs=json_array(seq_of.values())))
    rows = {row.seq: row for row in found}
    answers: dict[int, Answer] = {}
    valid: dict[int, list[LeaseRow]] = {}
    expires_at = step.now + lease_for
    for place, lease in named.items():
        row = rows.get(seq_of.get(lease.job_id, 0))
        if row is None:
            answers[place] = JobNotInflight(lease.job_id)
        elif not row.fits(lease):
            answers[place] = LeaseMismatch(lease.job_id)
        elif row.expires_at <= step.us:
            answers[place] = LeaseExpired(lease.job_id)
        else:
            valid.setdefault(row.no, []).append(row)
            answers[place] = _extended(row, lease, expires_at, step.now)
            if (given := progress.get(lease.job_id)) is not None:
                step.execute("extend_progress", seq=row.seq, progress=progress_text(given))
    for mine in valid.values():
        _extend_claim(step, mine, micros(expires_at))
    return answers


def _extended(row: LeaseRow, lease: Lease, expires_at: datetime, now: datetime) -> Extended:
    fence = row.started_at if row.fence is None else row.fence
    again = Lease(lease.job_id, row.token, fence, expires_at, row.worker, row.queue)
    return Extended(again, bool(row.flags & Flags.CANCEL), now, row.version + row.extensions + 1)


def _seqs(step: Step, ids: list[str]) -> dict[str, int]:
    known = step.cache.seq_of
    if all(job_id in known for job_id in ids):
        return {job_id: known[job_id] for job_id in ids}
    return dict(step.fetch_all("get_seqs", ids=json_array(ids)))


def _extend_claim(step: Step, rows: list[LeaseRow], expires_at: int) -> None:
    """All jobs of a claim stay together; a part of them gets a claim of its own."""
    no = rows[0].no
    if len(rows) == rows[0].held:
        step.execute("extend_whole", no=no, expires_at=expires_at, now=step.us)
        return
    seqs = json_array([row.seq for row in rows])
    part = step.execute(
        "extend_part", no=no, expires_at=expires_at, now=step.us, extensions=1, held=len(rows), seqs=seqs
    )
    step.execute("extend_move", no=part.lastrowid, seqs=seqs)
    step.leave_claim(no, len(rows))
