"""Places without a body: taken out of the line, or out of the leases, by the step that meets them."""

from __future__ import annotations

from taskharbor.drivers.sqlite.records import json_text, leave_grant
from taskharbor.drivers.sqlite.rows import Flags
from taskharbor.drivers.sqlite.runs import lease_alone, runs_of
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.state import JobState


def drop_from_line(step: Step, queue: str, lane: str) -> bool:
    """Take every seq without a body out of the ready ones of one lane; was there one?"""
    rows = step.all("orphans_ready", queue=queue, lane=lane)
    for rank, eligible_at, first, last, timed, flags, type_, avoid in rows:
        place = {"queue": queue, "lane": lane, "rank": rank, "eligible_at": eligible_at}
        step.run("reserve_used_up", seq=first, **place)
        there = [seq for (seq,) in step.all("orphans_there", first=first, last=last)]
        for start, end in runs_of(there) if there else ():
            step.run(
                "put_ready", seq=start, last=end, timed=timed, flags=flags, type=type_, avoid=avoid, **place
            )
        for seq in sorted(set(range(first, last + 1)) - set(there)):
            _dropped(step, queue, seq, JobState.READY, flags)
    return bool(rows)


def drop_lease(step: Step, seq: int) -> None:
    """End the lease of a job that is not there."""
    row = step.one("lease_row", seq=seq)
    flags, grant_no, queue = row[2], row[6], row[7]
    lease_alone(step, seq)
    step.run("leave_lease", seq=seq)
    leave_grant(step, grant_no, 1)
    _dropped(step, queue, seq, JobState.RUNNING, flags)


def _dropped(step: Step, queue: str, seq: int, state: JobState, flags: int) -> None:
    if not flags & Flags.COPY:  # copies are not counted
        step.count(queue, seq, state, -1)
    step.run("drop_past", seqs=json_text([seq]))
    step.hints.orphans.append(f"seq {seq} of queue {queue}")
