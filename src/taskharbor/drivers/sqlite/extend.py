"""Leases counted anew, all of a worker's with a few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec

from taskharbor.drivers.messages import Extended
from taskharbor.drivers.sqlite.records import json_text, leave_grant
from taskharbor.drivers.sqlite.rows import Flags, progress_text
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.model.clock import micros
from taskharbor.model.job import Lease, Progress

Answer = Extended | LeaseLost
# seq, grant_no, flags, bumps, fence, version of the past
_held_decoder = msgspec.json.Decoder(list[tuple[int, int, int, int, int | None, int | None]])


class _Grant(NamedTuple):
    no: int
    queue: str
    token: str
    worker: str
    started_at: int
    expires_at: int
    extensions: int
    held: int


def extend(
    step: Step, leases: Sequence[Lease], lease_for: timedelta, progress: Mapping[str, Progress]
) -> list[Answer]:
    """Per lease the new one or why it was refused. A lease named twice is counted anew twice."""
    answers: dict[int, Answer] = {}
    left = dict(enumerate(leases))
    while left:
        first = {lease.job_id: place for place, lease in reversed(left.items())}
        places = sorted(first.values())
        answers.update(_once(step, {place: left.pop(place) for place in places}, lease_for, progress))
    return [answers[place] for place in range(len(leases))]


def _once(
    step: Step, leases: dict[int, Lease], lease_for: timedelta, progress: Mapping[str, Progress]
) -> dict[int, Answer]:
    """The same for leases that are all of different jobs."""
    seq_of = _seqs(step, [lease.job_id for lease in leases.values()])
    (text,) = step.one("extend_look", seqs=json_text(seq_of.values()))
    held = {row[0]: row[1:] for row in _held_decoder.decode(text)}
    nos = json_text({row[0] for row in held.values()})
    grants = {row[0]: _Grant(*row) for row in step.all("extend_grants", nos=nos)}
    answers: dict[int, Answer] = {}
    valid: dict[int, list[int]] = {}
    expires_at = step.now + lease_for
    for place, lease in leases.items():
        seq = seq_of.get(lease.job_id)
        if seq is None or seq not in held:
            answers[place] = JobNotInflight(lease.job_id)
            continue
        grant_no, flags, bumps, fence, version = held[seq]
        grant = grants[grant_no]
        error = _refusal(grant, lease, step.us)
        if error is not None:
            answers[place] = error
            continue
        valid.setdefault(grant_no, []).append(seq)
        if (said := progress.get(lease.job_id)) is not None:
            step.run("extend_progress", seq=seq, progress=progress_text(said))
        answers[place] = Extended(
            Lease(
                lease.job_id, grant.token, fence or grant.started_at, expires_at, grant.worker, grant.queue
            ),
            bool(flags & Flags.CANCEL),
            step.now,
            (version or 1) + 1 + grant.extensions + bumps + 1,
        )
    for grant_no, seqs in valid.items():
        _count_anew(step, grants[grant_no], seqs, micros(expires_at))
    return answers


def _seqs(step: Step, ids: list[str]) -> dict[str, int]:
    known = step.kept.seq_of
    if all(job_id in known for job_id in ids):
        return {job_id: known[job_id] for job_id in ids}
    return dict(step.all("get_seq_of", ids=json_text(ids)))


def _refusal(grant: _Grant, lease: Lease, now_us: int) -> LeaseLost | None:
    if grant.token != lease.token or lease.claimed_by not in (None, grant.worker):
        return LeaseMismatch(lease.job_id)
    return LeaseExpired(lease.job_id) if grant.expires_at <= now_us else None


def _count_anew(step: Step, grant: _Grant, seqs: list[int], expires_at: int) -> None:
    """All leases of a grant stay together; a part of them gets a grant of its own."""
    if len(seqs) == grant.held:
        step.run("extend_whole", no=grant.no, expires_at=expires_at, now=step.us)
        return
    texts = json_text(seqs)
    part = step.run(
        "extend_split", no=grant.no, expires_at=expires_at, now=step.us, held=len(seqs), seqs=texts
    )
    step.run("extend_move", no=part.lastrowid, seqs=texts)
    leave_grant(step, grant.no, len(seqs))
