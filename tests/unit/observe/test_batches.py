"""Batches of jobs are added up as a whole where they are alike: the numbers are those of one by one."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.drivers.messages import Settled
from taskharbor.errors import JobNotInflight
from taskharbor.events import AttemptsAnswered, EventBus, JobsClaimed
from taskharbor.model.job import JobRecord, Lease
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LEASE = Lease("", "t", 1, NOW, "w", "mail")

# On the bounds of buckets, around them, and far away; a clock that went back makes a wait negative.
WAITS = st.sampled_from((-1.0, 0.0, 0.005, 0.005001, 0.3, 0.31, 7.0, 3600.0, 100_000.0))
RUNS = st.sampled_from((None, 0.0, 0.00001, 0.01, 0.010001, 0.5, 163.84, 5000.0))
QUEUES = st.sampled_from(("mail", "mail", "mail", "other"))
TASKS = st.sampled_from(("send", "send", "send", "fetch"))
ENDS = st.sampled_from(("ok", "ok", "ok", "ok", "retry", "lost", "copy"))


def metered() -> tuple[Meter, EventBus]:
    meter, events = Meter(), EventBus()
    meter.listen(events)
    return meter, events


def record(queue: str, task: str, **fields: Any) -> JobRecord:
    return JobRecord(
        **{
            "id": "",
            "seq": 0,
            "type": task,
            "queue": queue,
            "state": JobState.RUNNING,
            "payload": b"",
            "created_at": NOW,
            "updated_at": NOW,
            "started_at": NOW,
            "starts": 1,
            **fields,
        }
    )


def curve(values: list[float], bounds: tuple[float, ...]) -> list[int]:
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return counts


def compare(meter: Meter, metric: metric_names.Metric, expected: dict[tuple[str, ...], list[float]]) -> None:
    shown = {
        labels[:2]: found
        for labels, found in meter.sample().curves.get(metric.name, {}).items()
        if sum(found.counts)
    }
    assert shown.keys() == {pair for pair, values in expected.items() if values}
    for pair, found in shown.items():
        assert found.counts == curve(expected[pair], metric.buckets)
        assert found.sum == pytest.approx(sum(expected[pair]))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(QUEUES, TASKS, WAITS, st.booleans(), st.integers(1, 2)), min_size=1, max_size=8))
def test_waits_are_counted_as_if_one_by_one(jobs: list[tuple[str, str, float, bool, int]]) -> None:
    meter, events = metered()
    records: list[JobRecord] = []
    expected: dict[tuple[str, ...], list[float]] = {}
    for queue, task, wait, has_run_at, starts in jobs:
        since = NOW - timedelta(seconds=wait)
        when = {"run_at": since} if has_run_at else {"created_at": since}
        records.append(record(queue, task, starts=starts, **when))
        expected.setdefault((queue, task), []).append(wait)

    events.emit(JobsClaimed(worker_id="w", kind="any", jobs=records))

    compare(meter, metric_names.JOB_WAIT, expected)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(QUEUES, TASKS, RUNS, ENDS), min_size=1, max_size=8))
def test_runs_and_outcomes_are_counted_as_if_one_by_one(
    jobs: list[tuple[str, str, float | None, str]],
) -> None:
    meter, events = metered()
    leased: list[Any] = []
    answers: list[Any] = []
    runs: dict[tuple[str, ...], list[float]] = {}
    ends: dict[tuple[str, ...], int] = {}
    for queue, task, seconds, end in jobs:
        started = None if seconds is None else 0.0
        settlement = Retry(LEASE) if end == "retry" else Ack(LEASE)
        job = record(queue, task, speculates_on="original" if end == "copy" else None)
        attempt = SimpleNamespace(started=started, ended=seconds or 0.0)
        leased.append(
            SimpleNamespace(record=job, attempt=attempt, end=SimpleNamespace(value=settlement, outcome=None))
        )
        state = JobState.READY if end == "retry" else JobState.COMPLETED
        answers.append(JobNotInflight("") if end == "lost" else Settled("", state, NOW, 2))
        if end != "lost":
            runs.setdefault((queue, task), []).extend([] if seconds is None else [seconds])
            labels = (queue, task, "any", "retried" if end == "retry" else "completed")
            ends[labels] = ends.get(labels, 0) + 1

    events.emit(JobsClaimed(worker_id="w", kind="any", jobs=[one.record for one in leased]))
    events.emit(AttemptsAnswered(worker_id="w", kind="any", jobs=leased, answers=answers))

    compare(meter, metric_names.JOB_RUN, runs)
    counted = meter.sample().counters[metric_names.JOBS_FINISHED.name] if ends else {}
    assert {labels: count for labels, count in counted.items() if count} == ends
