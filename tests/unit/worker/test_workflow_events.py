"""What a harbor says about its workflows: who makes the call that ends one reports it, once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Harbor, JobContext, RetryPolicy
from taskharbor.errors import EventTimeout
from taskharbor.events import (
    AttemptFinished,
    DeadlineMissed,
    Event,
    EventSent,
    JobParked,
    JobSkipped,
    WorkflowEnded,
)
from taskharbor.model.bonds import Bonds
from taskharbor.observe.logs import log_attempts
from taskharbor.testing import SimulatedClock, drain


@pytest.fixture
def harbor() -> Any:
    with Harbor("memory://", clock=SimulatedClock(), retry=RetryPolicy(max_attempts=1)) as made:
        yield made


def heard(harbor: Harbor, *kinds: type[Event]) -> list[Any]:
    events: list[Any] = []
    harbor.events.listen(events.append, *kinds)
    return events


def tasks(harbor: Harbor) -> Any:
    @harbor.task
    async def works(number: int = 0) -> int:
        return number

    @harbor.task
    async def fails() -> None:
        raise ValueError("no")

    return works, fails


def test_the_end_of_a_workflow_is_reported_once_by_the_worker_of_its_last_job(harbor, caplog):
    log_attempts(harbor.events)
    works, _ = tasks(harbor)
    events = heard(harbor, WorkflowEnded)
    flow = harbor.workflow("order")
    flow.add(works.call(1), name="first")
    flow.add(harbor.group([works.call(number) for number in range(3)]), name="many")
    with caplog.at_level(logging.INFO, "taskharbor.job"):
        job = flow.enqueue()
        drain(harbor)

    whole = [event for event in events if event.parent is None]
    assert [(event.job_id, event.type, event.state, event.counts.total) for event in whole] == [
        (job.id, "order", "completed", 2)
    ]
    below = [event for event in events if event.parent is not None]
    assert [(event.parent, event.counts.total) for event in below] == [(job.id, 3)]
    lines = [line for line in caplog.messages if line.startswith("workflow")]
    assert len(lines) == 1
    assert lines[0].startswith("workflow order completed after 0.000 s (jobs: 2, failed: 0, cancelled: 0)")


def test_a_failed_workflow_says_so_and_names_what_was_skipped(harbor, caplog):
    log_attempts(harbor.events)
    works, fails = tasks(harbor)
    events = heard(harbor, WorkflowEnded, JobSkipped)
    with caplog.at_level(logging.WARNING, "taskharbor.job"):
        job = harbor.chain(fails.call(), works, name="broken").enqueue()
        drain(harbor)

    ended = [event for event in events if type(event) is WorkflowEnded]
    assert [(event.state, event.failure_kind) for event in ended] == [("failed", "child_failed")]
    skipped = [event for event in events if type(event) is JobSkipped]
    assert [(event.type, event.parent) for event in skipped] == [("works", job.id)]
    assert sum(line.startswith("workflow broken failed") for line in caplog.messages) == 1


def test_the_process_that_cancels_a_waiting_workflow_reports_its_end(harbor):
    works, _ = tasks(harbor)
    events = heard(harbor, WorkflowEnded)
    job = harbor.group([works.call(), works.call()]).enqueue()
    job.cancel()

    assert [(event.job_id, event.state, event.counts.cancelled) for event in events] == [
        (job.id, "cancelled", 2)
    ]
    drain(harbor)
    assert len(events) == 1


def test_a_missed_deadline_is_reported(harbor, caplog):
    log_attempts(harbor.events)
    tasks(harbor)
    events = heard(harbor, DeadlineMissed, WorkflowEnded)
    flow = harbor.workflow("late", deadline="1m")
    flow.event("approval", timeout="1h")
    job = flow.enqueue()
    with caplog.at_level(logging.WARNING, "taskharbor.job"):
        drain(harbor, within="2m")

    assert [type(event) for event in events if event.job_id == job.id] == [DeadlineMissed, WorkflowEnded]
    assert any(line.startswith("job late missed its deadline") for line in caplog.messages)


def test_parks_and_events_are_reported(harbor):
    events = heard(harbor, AttemptFinished, EventSent)

    @harbor.task
    async def asks(ctx: JobContext) -> Any:
        try:
            return await ctx.aevent("approval", timeout="1h")
        except EventTimeout:
            return None

    job = asks.enqueue()
    drain(harbor, within="1m")
    job.send("approval", 1)
    drain(harbor)

    assert [type(event) for event in events] == [JobParked, EventSent, AttemptFinished]
    parked, sent, _ = events
    assert (parked.job_id, parked.outcome, parked.state) == (job.id, "parked", "blocked")
    assert (sent.job_id, sent.type, sent.name) == (job.id, "asks", "approval")


def test_plain_jobs_report_nothing_of_that(harbor):
    works, fails = tasks(harbor)
    events = heard(harbor, WorkflowEnded, JobSkipped, DeadlineMissed, JobParked)
    works.enqueue(1)
    fails.enqueue()
    drain(harbor)
    assert events == []


def test_an_end_among_plain_jobs_of_one_call_is_reported(harbor):
    """A job that would come after one that failed is skipped as it is stored, anywhere in the call."""
    _, fails = tasks(harbor)
    flow = harbor.workflow("flow")
    flow.add(fails.call(), name="bad")
    flow.event("never")
    root = flow.enqueue()
    drain(harbor)
    [bad] = [child.id for child in root.children() if child.record.type == "fails"]
    events = heard(harbor, JobSkipped)
    plain = [harbor.client._new_job(fails.call()) for _ in range(3)]
    late = replace(plain[1], bonds=Bonds(parent=root.id, after=(bad,)))

    harbor.client._enqueue_now([plain[0], late, plain[2]], None)
    assert [event.job_id for event in events] == [late.id]
