"""The verdict on one case, from what lies on the table afterwards: records, handlers' lines, effects.

It uses nothing that a worker under chaos could have got wrong by itself: the store's records, the
lines that handlers appended, and the table that refuses a smaller fence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from taskharbor.model.job import AttemptRecord, JobRecord
from taskharbor.model.state import JobState
from tests.chaos.world import Run

MAX_ATTEMPTS = 5
HISTORY_KEPT = 10
FAILURES = ("retried", "failed")


@dataclass(frozen=True)
class Duplicate:
    """A run that happened although an earlier one of the same job had not been recorded as over."""

    job: str
    fence: int
    expired_fence: int
    expired_worker: str


@dataclass
class Findings:
    problems: list[str] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    jobs: int = 0
    runs: int = 0
    expired_leases: int = 0
    releases: int = 0
    events: int = 0
    """Of the history that the checker has looked at."""

    def problem(self, promise: str, text: str) -> None:
        self.problems.append(f"{promise}: {text}")


def judge(
    records: Mapping[str, JobRecord | None],
    acknowledged: Mapping[str, str],
    unknown: Mapping[str, str],
    cancelled: set[str],
    keyed: set[str],
    runs: Sequence[Run],
    effects: Sequence[tuple[str, int]],
) -> Findings:
    """What was promised and not kept. `records` are those of the acknowledged and the unknown jobs."""
    findings = Findings(jobs=len(acknowledged), runs=len(runs))
    by_job: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.fence):
        by_job[run.job].append(run)
    marks = {**unknown, **acknowledged}
    _nothing_invented(findings, by_job, marks, keyed)
    _effects_rise(findings, effects)
    for job_id in marks:
        record = records.get(job_id)
        if record is None:
            if job_id in acknowledged:
                findings.problem("I1", f"acknowledged job {job_id} is gone")
            continue
        if record.id == job_id:  # else a job of its key took it in, and is judged itself
            _judge_job(findings, record, by_job[job_id], was_cancelled=job_id in cancelled)
            if job_id not in keyed:  # a newer one of its key may have set its counts back
                _exact_counts(findings, record)
    return findings


def _nothing_invented(
    findings: Findings, by_job: Mapping[str, list[Run]], marks: Mapping[str, str], keyed: set[str]
) -> None:
    for job_id, runs in by_job.items():
        if job_id not in marks:
            findings.problem("I1b", f"job {job_id} ran and was never enqueued")
        elif job_id not in keyed and (wrong := [run for run in runs if run.mark != marks[job_id]]):
            findings.problem("I1b", f"job {job_id} ran with {wrong[0].mark!r}, not {marks[job_id]!r}")


def _effects_rise(findings: Findings, effects: Sequence[tuple[str, int]]) -> None:
    highest: dict[str, int] = {}
    for job_id, fence in effects:
        if fence < highest.get(job_id, 0):
            findings.problem("I3e", f"job {job_id}: a write with fence {fence} after {highest[job_id]}")
        highest[job_id] = max(fence, highest.get(job_id, 0))


def _judge_job(findings: Findings, record: JobRecord, runs: list[Run], *, was_cancelled: bool) -> None:
    findings.expired_leases += record.stalls
    findings.releases += sum(attempt.outcome == "released" for attempt in record.history)
    if not record.state.is_terminal:
        findings.problem("I1", f"job {record.id} is still {record.state.value}")
        return
    _right_end(findings, record, was_cancelled)
    _leases_apart(findings, record)
    _runs_explained(findings, record, runs)


def _right_end(findings: Findings, record: JobRecord, was_cancelled: bool) -> None:
    fate = msgspec.json.decode(record.payload).get("fate", "")
    expected = JobState.FAILED if fate == "fails" else JobState.COMPLETED
    if was_cancelled:
        if record.state is not JobState.CANCELLED:
            findings.problem("I10", f"cancelled job {record.id} ended as {record.state.value}")
    elif record.state is not expected:
        findings.problem("I4", f"job {record.id} ({fate or 'succeeds'}) ended as {record.state.value}")
    elif fate == "fails" and record.attempts != MAX_ATTEMPTS:
        findings.problem("I4", f"job {record.id} failed after {record.attempts} attempts")


def _exact_counts(findings: Findings, record: JobRecord) -> None:
    """Every start has its end, and each end was counted once."""
    outcomes = [attempt.outcome for attempt in record.history]
    if record.starts > HISTORY_KEPT or (record.starts == 1 and not outcomes):
        return
    counted = (sum(map(outcomes.count, FAILURES)), outcomes.count("stalled"), len(outcomes))
    if counted != (record.attempts, record.stalls, record.starts):
        findings.problem(
            "I4",
            f"job {record.id} says attempts {record.attempts}, stalls {record.stalls}, "
            f"starts {record.starts}; its history says {outcomes}",
        )
    released = outcomes.count("released")
    if record.starts - released > MAX_ATTEMPTS + (record.max_stalls or 3) - 1:
        findings.problem("I5", f"job {record.id} was started {record.starts} times")


def _leases_apart(findings: Findings, record: JobRecord) -> None:
    attempts: list[AttemptRecord] = sorted(record.history, key=lambda attempt: attempt.fence)
    for earlier, later in pairwise(attempts):
        if later.started_at < earlier.ended_at:
            findings.problem("I2", f"job {record.id}: {later.fence} began before {earlier.fence} was over")


def _runs_explained(findings: Findings, record: JobRecord, runs: list[Run]) -> None:
    """A run beyond the first needs an earlier one that was retried, released, or whose lease expired."""
    attempts = {attempt.fence: attempt for attempt in record.history}
    for earlier, later in pairwise(runs):
        attempt = attempts.get(earlier.fence)
        if attempt is None and record.starts <= HISTORY_KEPT:
            findings.problem("Z6", f"job {record.id} ran again ({later.fence}) and nothing says why")
        elif attempt is not None and attempt.outcome == "stalled":
            findings.duplicates.append(
                Duplicate(record.id, later.fence, earlier.fence, attempt.worker_id or "unknown")
            )
    if record.starts < len(runs):
        findings.problem("I4", f"job {record.id} ran {len(runs)} times and counts {record.starts} starts")
