"""The verdict on a chaos case finds what it is for: each broken promise, planted by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.model.job import AttemptRecord, JobRecord
from taskharbor.model.state import JobState
from tests.chaos.verdict import Findings, judge
from tests.chaos.world import Run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = "job-1"


def attempt(fence: int, outcome: str, began: int = 0, ended: int = 1) -> AttemptRecord:
    at = [NOW + timedelta(seconds=seconds) for seconds in (began, ended)]
    return AttemptRecord(fence, "worker-1", at[0], at[1], outcome)


def record(**fields: Any) -> JobRecord:
    usual: dict[str, Any] = {
        "id": JOB,
        "seq": 1,
        "type": "work",
        "queue": "default",
        "state": JobState.COMPLETED,
        "payload": b'{"mark":"m"}',
        "created_at": NOW,
        "updated_at": NOW,
        "starts": 1,
        "max_stalls": 3,
    }
    return JobRecord(**{**usual, **fields})


def run(fence: int, mark: str = "m", job: str = JOB) -> Run:
    return Run(job, fence, 1, mark, 0.0, 1.0, "end")


def judged(
    stored: JobRecord | None, runs: list[Run], effects: list[tuple[str, int]] | None = None, **more: Any
) -> Findings:
    usual: dict[str, Any] = {"acknowledged": {JOB: "m"}, "unknown": {}, "cancelled": set(), "keyed": set()}
    return judge({JOB: stored}, runs=runs, effects=effects or [], **{**usual, **more})


def broken(findings: Findings) -> set[str]:
    return {problem.partition(":")[0] for problem in findings.problems}


def test_a_job_that_was_done_once_is_fine():
    findings = judged(record(), [run(1)], [(JOB, 1)])
    assert findings.problems == []
    assert (findings.jobs, findings.runs, findings.duplicates) == (1, 1, [])


def test_a_duplicate_is_named_with_the_lease_that_expired():
    history = (attempt(1, "stalled"), attempt(2, "completed", 1, 2))
    findings = judged(record(starts=2, stalls=1, history=history), [run(1), run(2)])
    assert findings.problems == []
    [duplicate] = findings.duplicates
    assert (duplicate.fence, duplicate.expired_fence, duplicate.expired_worker) == (2, 1, "worker-1")


TWICE = {"starts": 2, "stalls": 1}


@pytest.mark.parametrize(
    ("promise", "stored", "runs"),
    [
        ("I1", None, []),
        ("I1", record(state=JobState.RUNNING), [run(1)]),
        ("I1b", record(), [run(1), run(5, job="stranger")]),
        ("I1b", record(), [run(1, mark="other")]),
        ("I4", record(state=JobState.FAILED), [run(1)]),
        ("I4", record(starts=1), [run(1), run(2)]),
        (
            "I4",
            record(starts=2, stalls=0, history=(attempt(1, "stalled"), attempt(2, "completed", 1, 2))),
            [],
        ),
        (
            "I4",
            record(starts=3, stalls=1, history=(attempt(1, "stalled"), attempt(2, "completed", 1, 2))),
            [],
        ),
        ("I2", record(**TWICE, history=(attempt(1, "stalled", 0, 9), attempt(2, "completed", 5, 10))), []),
        ("Z6", record(starts=2, attempts=1, history=(attempt(1, "retried"), attempt(2, "failed", 1, 2))), []),
        (
            "I5",
            record(
                starts=8,
                stalls=7,
                history=(*(attempt(n, "stalled", n, n + 1) for n in range(7)), attempt(8, "completed", 8, 9)),
            ),
            [],
        ),
    ],
)
def test_each_broken_promise_is_found(promise, stored, runs):
    if promise == "Z6":
        runs = [run(7), run(9)]  # fences that no record knows
    assert promise in broken(judged(stored, runs))


def test_a_late_write_is_found():
    assert broken(judged(record(), [run(1)], [(JOB, 2), (JOB, 1)])) == {"I3e"}


def test_a_cancelled_job_that_completed_is_found():
    assert broken(judged(record(), [run(1)], cancelled={JOB})) == {"I10"}


def test_an_enqueue_that_was_never_answered_may_be_lost():
    assert judged(None, [], acknowledged={}, unknown={JOB: "m"}).problems == []
