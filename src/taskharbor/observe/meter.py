"""Meter: counts what a process does, in plain numbers, and hands out samples of them.

Jobs are counted a batch at a time, where the worker has one in its hand anyway: a counter of a
metrics library costs more per job than everything here together. The exposition turns
a sample into that library's format when it is asked for.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import Settled
from taskharbor.events import (
    AttemptsAnswered,
    DeadlineMissed,
    DutyRan,
    EventBus,
    HandlerAbandoned,
    JobGivenUp,
    JobParked,
    JobsClaimed,
    LeaseWasLost,
    LoopBlocked,
    RanTwice,
    ScheduleFailed,
    ScheduleFired,
    SpeculationStarted,
    SpeculationWatched,
    StepRan,
    WorkflowEnded,
)
from taskharbor.model.job import JobRecord
from taskharbor.model.job_batches import alike_claims, alike_ends, stalled_before, waited_since
from taskharbor.model.outcome import Snoozed
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Stalled
from taskharbor.model.state import JobState
from taskharbor.observe import metric_names
from taskharbor.observe.job_counts import JobCounts
from taskharbor.observe.metric_names import MAX_SERIES, OTHER, Metric
from taskharbor.observe.metrics_sample import Histogram, Labels, MetricsSample

Gauges = Callable[[], Mapping[str, Mapping[Labels, float]]]
"""Asked for with every sample: values by metric and labels."""

_OUTCOMES: dict[type, str] = {
    Ack: "completed",
    Retry: "retried",
    Fail: "failed",
    Stalled: "stalled",
    Cancelled: "cancelled",
    Release: "released",
    Park: "parked",
}
_ALWAYS_SHOWN = ("completed", "retried", "failed", "lost")


class Meter:
    """The numbers of this process. Safe from any thread.

    `tasks=False` leaves the task out of every label, for applications with very many of them.
    """

    def __init__(self, *, tasks: bool = True) -> None:
        self._has_tasks = tasks
        self._lock = threading.Lock()
        self._jobs: dict[Labels, JobCounts] = {}  # by their own names
        self._shown: dict[Labels, JobCounts] = {}  # by the labels they are shown under
        self._pairs: dict[tuple[str, str], Labels] = {}
        self._counters: dict[str, dict[Labels, float]] = {}
        self._curves: dict[str, dict[Labels, Histogram]] = {}
        self._gauges: list[Gauges] = []
        self._has_copies = False  # whether a second run of a straggler was ever claimed here

    # ------------------------------------------------------------------ what to listen to

    def listen(self, events: EventBus) -> Callable[[], None]:
        """Count what this bus carries from now on; returns a function that stops it."""
        stops = [
            events.listen(self._claimed, JobsClaimed),
            events.listen(self._answered, AttemptsAnswered),
            events.listen(self._lost, LeaseWasLost),
            events.listen(self._given_up, JobGivenUp),
            events.listen(self._of_job(metric_names.DOUBLE_RUNS), RanTwice),
            events.listen(self._of_job(metric_names.ABANDONED), HandlerAbandoned),
            events.listen(self._of_job(metric_names.COPIES), SpeculationStarted),
            events.listen(self._of_job(metric_names.COPIES, 0.0), SpeculationWatched),
            events.listen(lambda event: self.add(metric_names.LOOP_BLOCKED, ()), LoopBlocked),
            events.listen(
                lambda event: self.add(metric_names.SCHEDULE_FIRES, (event.schedule, "fired")), ScheduleFired
            ),
            events.listen(
                lambda event: self.add(metric_names.SCHEDULE_FIRES, (event.schedule, "error")), ScheduleFailed
            ),
            events.listen(self._duty, DutyRan),
            events.listen(self._workflow_ended, WorkflowEnded),
            events.listen(self._of_job(metric_names.DEADLINES_MISSED), DeadlineMissed),
            events.listen(self._of_job(metric_names.PARKS), JobParked),
            events.listen(
                lambda event: self.add(metric_names.STEPS, (str(event.remembered).lower(),)), StepRan
            ),
        ]

        def stop_all() -> None:
            for stop in stops:
                stop()

        return stop_all

    def ask(self, gauges: Gauges) -> Callable[[], None]:
        """Include these values in every sample from now on; answers how to leave them out again."""
        self._gauges.append(gauges)

        def stop() -> None:
            with suppress(ValueError):
                self._gauges.remove(gauges)

        return stop

    # ------------------------------------------------------------------ counting

    def add(self, metric: Metric, labels: Labels, count: float = 1.0) -> None:
        with self._lock:
            values = self._counters.setdefault(metric.name, {})
            values[labels] = values.get(labels, 0.0) + count

    def add_job(self, metric: Metric, queue: str, task: str, count: float = 1.0) -> None:
        """The same for a metric about queue and task."""
        with self._lock:
            self._add_job(metric, queue, task, count)

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        with self._lock:
            curves = self._curves.setdefault(metric.name, {})
            curve = curves.get(labels)
            if curve is None:
                curve = curves[labels] = Histogram([0] * (len(metric.buckets) + 1))
            curve.counts[bisect_left(metric.buckets, value)] += 1
            curve.sum += value

    # ------------------------------------------------------------------ jobs, a batch at a time

    def _claimed(self, event: JobsClaimed) -> None:
        jobs, kind = event.jobs, event.kind
        since = alike_claims(jobs)
        with self._lock:
            if since is not None:
                self._counts_of(jobs[0], kind).waited(since, jobs[0].started_at)  # type: ignore[arg-type]
                return
            for first, instants in self._each_since(jobs):
                self._counts_of(first, kind).waited(instants, first.started_at)  # type: ignore[arg-type]

    def _each_since(self, jobs: Sequence[JobRecord]) -> Iterable[tuple[JobRecord, list[datetime]]]:
        """Since when jobs waited, by queue and task; what is of one queue was claimed at one instant."""
        groups: dict[tuple[str, str], tuple[JobRecord, list[datetime]]] = {}
        for record in jobs:
            since = waited_since(record)
            if stalled_before(record):
                self._add_job(metric_names.STALLS, record.queue, record.type)
            self._has_copies |= record.speculates_on is not None
            name = (record.queue, record.type)
            if name in groups:
                groups[name][1].append(since)
            else:
                groups[name] = (record, [since])
        return groups.values()

    def _answered(self, event: AttemptsAnswered) -> None:
        jobs, answers, kind = event.jobs, event.answers, event.kind
        if not jobs:
            return
        runs = None if self._has_copies else alike_ends(jobs, answers)
        with self._lock:
            if runs is not None:
                counts = self._counts_of(jobs[0].record, kind)
                counts.completed += len(runs)
                counts.ran(runs)
                return
            for counts, seconds in self._each_end(jobs, answers, kind):
                counts.ran(seconds)

    def _each_end(
        self, jobs: Sequence[Any], answers: Sequence[Any], kind: str
    ) -> Iterable[tuple[JobCounts, list[float]]]:
        """Count every outcome, and answer how long the handlers ran that did run."""
        groups: dict[JobCounts, list[float]] = {}
        for job, answer in zip(jobs, answers, strict=True):
            if type(answer) is not Settled:
                continue
            counts, attempt = self._counts_of(job.record, kind), job.attempt
            if answer.state is JobState.COMPLETED and job.record.speculates_on is None:
                counts.completed += 1
            else:
                self._ended_otherwise(counts, job, answer)
            if attempt.started is not None:
                groups.setdefault(counts, []).append(attempt.ended - attempt.started)
        return groups.items()

    def _ended_otherwise(self, counts: JobCounts, job: Any, answer: Settled) -> None:
        record: JobRecord = job.record
        is_snoozed = type(job.end.outcome) is Snoozed
        outcome = "snoozed" if is_snoozed else _OUTCOMES[type(job.end.value)]
        if answer.state is JobState.CANCELLED:
            outcome = "cancelled"
        elif outcome == "stalled" and answer.state is JobState.FAILED:
            outcome = "failed"
            self._add_job(metric_names.STALLS, record.queue, record.type)
        elif outcome == "completed" and record.speculates_on is not None:
            self._add_job(metric_names.WINS, record.queue, record.type)
        counts.others[outcome] = counts.others.get(outcome, 0) + 1

    def _counts_of(self, record: JobRecord, kind: str) -> JobCounts:
        """Where jobs of these names are counted; under one set of labels they share it."""
        counts = self._jobs.get((record.queue, record.type, kind))
        return self._new_counts(record, kind) if counts is None else counts

    def _new_counts(self, record: JobRecord, kind: str) -> JobCounts:
        pair = self._pair(record.queue, record.type)
        labels = (*pair, kind)
        counts = self._shown.get(labels)
        if counts is None:
            counts = self._shown[labels] = JobCounts(pair, kind)
        if pair != (OTHER, OTHER):  # of those there may be any number
            self._jobs[record.queue, record.type, kind] = counts
        return counts

    def _pair(self, queue: str, task: str) -> Labels:
        """The labels of a queue and task: bounded, however many names jobs come with."""
        labels = self._pairs.get((queue, task))
        if labels is not None:
            return labels
        if len(self._pairs) >= MAX_SERIES:
            return (OTHER, OTHER)
        labels = self._pairs[queue, task] = (queue, task if self._has_tasks else "")
        return labels

    def _add_job(self, metric: Metric, queue: str, task: str, count: float = 1.0) -> None:
        values = self._counters.setdefault(metric.name, {})
        labels = self._pair(queue, task)
        values[labels] = values.get(labels, 0.0) + count

    # ------------------------------------------------------------------ what happens now and then

    def _of_job(self, metric: Metric, count: float = 1.0) -> Callable[[Any], None]:
        return lambda event: self.add_job(metric, event.queue, event.type, count)

    def _lost(self, event: LeaseWasLost) -> None:
        with self._lock:
            queue, task = self._pair(event.queue, event.type)
            lost = self._counters.setdefault(metric_names.LEASES_LOST.name, {})
            lost[queue,] = lost.get((queue,), 0.0) + 1
            self._add_end((queue, task, event.kind, "lost"))

    def _given_up(self, event: JobGivenUp) -> None:
        """The stall of a job that fails and so is never claimed again, which would count it."""
        with self._lock:
            self._add_job(metric_names.STALLS, event.queue, event.type)
            self._add_end((*self._pair(event.queue, event.type), event.kind, "failed"))

    def _add_end(self, labels: Labels) -> None:
        ended = self._counters.setdefault(metric_names.JOBS_FINISHED.name, {})
        ended[labels] = ended.get(labels, 0.0) + 1

    def _workflow_ended(self, event: WorkflowEnded) -> None:
        if event.parent is None:  # what is within a workflow ends as a part of it
            with self._lock:
                _, task = self._pair(event.queue, event.type)
            self.add(metric_names.WORKFLOWS_ENDED, (task, event.state))
            self.observe(metric_names.WORKFLOW_SECONDS, (task,), event.seconds)

    def _duty(self, event: DutyRan) -> None:
        self.add(metric_names.DUTY_JOBS, (event.duty,), event.count)
        self.add(metric_names.DUTY_ERRORS, (event.duty,), 0.0 if event.error is None else 1.0)

    # ------------------------------------------------------------------ samples

    def sample(self) -> MetricsSample:
        """The numbers as they are now."""
        with self._lock:
            sample = MetricsSample(
                {name: dict(values) for name, values in self._counters.items()},
                {},
                {
                    name: {
                        labels: Histogram(list(curve.counts), curve.sum) for labels, curve in curves.items()
                    }
                    for name, curves in self._curves.items()
                },
            )
            self._put_jobs(sample)
        for gauges in list(self._gauges):
            values = {name: dict(values) for name, values in gauges().items()}
            sample.fold_gauges(MetricsSample(gauges=values))
        _put_zeros(sample)
        return sample

    def _put_jobs(self, sample: MetricsSample) -> None:
        for jobs in self._shown.values():
            labels, kind = jobs.pair, jobs.kind
            ended = {**jobs.others, "completed": jobs.others.get("completed", 0) + jobs.completed}
            part = MetricsSample(
                {metric_names.JOBS_FINISHED.name: {(*labels, kind, what): n for what, n in ended.items()}},
                {},
                {
                    metric_names.JOB_RUN.name: {(*labels, kind): Histogram(jobs.run, jobs.run_sum)},
                    metric_names.JOB_WAIT.name: {labels: Histogram(jobs.wait, jobs.wait_sum)},
                },
            )
            sample.fold_counts(part)


def _put_zeros(sample: MetricsSample) -> None:
    """Rare events are exposed as 0 before they happen: a counter that starts at 1 shows no increase."""
    counters = sample.counters
    pairs = sample.curves.get(metric_names.JOB_WAIT.name, {})
    for metric in (
        metric_names.DOUBLE_RUNS,
        metric_names.STALLS,
        metric_names.ABANDONED,
        metric_names.COPIES,
        metric_names.WINS,
    ):
        _zeros(counters, metric, pairs)
    _zeros(counters, metric_names.LEASES_LOST, ((queue,) for queue, _ in pairs))
    of_kinds = sample.curves.get(metric_names.JOB_RUN.name, {})
    ends = ((*labels, outcome) for labels in of_kinds for outcome in _ALWAYS_SHOWN)
    _zeros(counters, metric_names.JOBS_FINISHED, ends)
    _zeros(counters, metric_names.STORE_ERRORS, sample.curves.get(metric_names.STORE_OP.name, {}))
    fired = {schedule for schedule, _ in counters.get(metric_names.SCHEDULE_FIRES.name, {})}
    fired |= {schedule for (schedule,) in sample.gauges.get(metric_names.SCHEDULE_LAG.name, {})}
    outcomes = [(schedule, outcome) for schedule in sorted(fired) for outcome in ("fired", "error")]
    _zeros(counters, metric_names.SCHEDULE_FIRES, outcomes)
    for metric in (metric_names.LOOP_BLOCKED, metric_names.ORPHANS):
        _zeros(counters, metric, [()])


def _zeros(counters: dict[str, dict[Labels, float]], metric: Metric, labels: Iterable[Labels]) -> None:
    values = counters.setdefault(metric.name, {})
    for one in labels:
        values.setdefault(one, 0.0)
