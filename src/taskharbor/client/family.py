"""What people do with a family of jobs: retry what failed, see what a cancel would stop, send events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.family_results import children_of
from taskharbor.drivers.messages import Query, Requeued, Resolution, Resolved
from taskharbor.errors import BrokenBond, InvalidArgument, JobNotFound, NotAllowedInState, WorkflowError
from taskharbor.events import EventSent
from taskharbor.model.bonds import Bonds, is_spared
from taskharbor.model.entropy import child_id
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import FailureKind, JobRecord, NewJob
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.workflow import EVENT_TYPE, NODE_HEADER, WAIT_TYPE, node_name

if TYPE_CHECKING:
    from taskharbor.client.client import Client

_CHILDREN_FIRST = timedelta(seconds=2)
_OVER_BADLY = (JobState.FAILED, JobState.CANCELLED)
_TAKEN_ALONG = (FailureKind.SKIPPED, FailureKind.STOPPED)
_MAY_RUN_AGAIN = (*_OVER_BADLY, JobState.BLOCKED)
"""States of children that failed, or that have failed jobs below them."""
_OPEN = tuple(state for state in JobState if state not in TERMINAL)

Sees = Callable[[JobRecord], bool]
"""Which jobs a caller may see; the others look as if they did not exist."""


def sees_all(_: JobRecord) -> bool:
    return True


# ------------------------------------------------------------------ retry


class LookBudget:
    """How many children may still be looked at: a job may have a million that wait and none that failed."""

    def __init__(self, jobs: int | None = None) -> None:
        self._left = jobs
        self.is_spent = False
        """Whether there was one more than that."""

    def take(self) -> bool:
        """Whether one more may be looked at."""
        if self._left is None:
            return True
        self.is_spent = self._left == 0
        self._left -= not self.is_spent
        return not self.is_spent


async def retry_family(
    client: Client,
    record: JobRecord,
    *,
    most: int | None = None,
    sees: Sees = sees_all,
    budget: LookBudget | None = None,
) -> int:
    """Run again what failed, was skipped or was stopped below a job, and the job if its own work failed.

    Returns how many jobs run again, `most` of them in one call. Safe to repeat: what runs already is left
    alone. A handler starts a moment later than its children: it must not find them as they ended before.
    """
    retried = 0
    async for is_retried in run_again(client, failed_below(client, record, sees, budget)):
        retried += is_retried
        if retried == most:
            break
    return retried


async def run_again(client: Client, jobs: AsyncIterator[JobRecord]) -> AsyncIterator[bool]:
    """Retry these jobs one after the other: for each, whether it runs again."""
    async for one in jobs:
        yield await _requeue(client, one.id, _CHILDREN_FIRST if family_of(one).total else None)


async def failed_below(
    client: Client, record: JobRecord, sees: Sees = sees_all, budget: LookBudget | None = None
) -> AsyncIterator[JobRecord]:
    """The jobs that `retry_family` runs again: each before those that come after it.

    Completed children are not read, nor is what is below them: that is done.
    """
    budget = budget or LookBudget()
    if bonds_of(record).done_by == "worker" and _own_work_failed(record):
        yield record
    driver = await client.adriver()
    async for child in children_of(driver, record.id, _MAY_RUN_AGAIN, now=client._now, payloads=False):
        if not budget.take():
            return
        if not sees(child):
            continue
        if family_of(child).total:
            async for one in failed_below(client, child, sees, budget):
                yield one
        elif _runs_again(child):
            yield child


def _runs_again(child: JobRecord) -> bool:
    if bonds_of(child).done_by == "children" or child.state not in _OVER_BADLY:
        return False
    return child.state is JobState.FAILED or child.failure_kind in _TAKEN_ALONG


def _own_work_failed(record: JobRecord) -> bool:
    own = family_of(record).own
    return record.state in _OVER_BADLY and (own == "failed" or (_runs_again(record) and own != "completed"))


async def from_here(
    client: Client, start: JobRecord, sees: Sees = sees_all, budget: LookBudget | None = None
) -> list[JobRecord]:
    """What a retry from one job of a workflow on runs again: it and the jobs after it, completed or not.

    Each comes before those that come after it, which then wait for it again. What is not over is left alone;
    an event that came counts for the second run, too.

    Raises:
        InvalidArgument: the job belongs to no workflow, or one of these jobs has children.
    """
    budget = budget or LookBudget()
    parent = bonds_of(start).parent
    if parent is None:
        raise InvalidArgument(f"job {start.id} belongs to no workflow: retry it alone")
    driver = await client.adriver()
    chosen, found = {start.id}, list[JobRecord]()
    async for child in children_of(driver, parent, tuple(JobState), now=client._now, payloads=False):
        if not budget.take():
            break
        if child.id != start.id and chosen.isdisjoint(bonds_of(child).after):
            continue
        chosen.add(child.id)
        if child.state in TERMINAL and sees(child):
            _refuse_children(child)
            found.append(child)
    return found


def _refuse_children(job: JobRecord) -> None:
    """Its handler would find them as they ended: only it would run again, and not what it is made of."""
    if family_of(job).total and job.type != WAIT_TYPE:
        raise InvalidArgument(
            f'"{node_name(job)}" has children, which a retry from here would not run again; '
            "enqueue the workflow again"
        )


async def _requeue(client: Client, job_id: str, delay: timedelta | None = None) -> bool:
    driver = await client.adriver()
    [answer] = await driver.requeue([job_id], delay=delay, now=client._now())
    if isinstance(answer, Requeued):
        report_ended(answer.ended, client.events)
        return True
    if isinstance(answer, NotAllowedInState | BrokenBond | JobNotFound):
        return False  # it runs again already, or cannot any more: that is no reason to leave out the others
    raise answer


# ------------------------------------------------------------------ cancel


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancel would do to the children of a job that are not over."""

    waiting: int
    """Cancelled at once."""
    running: int
    """Their workers are notified to stop them."""
    below: int
    """Open jobs further down."""
    spared: tuple[str, ...]
    """Names of those that run in any case, as `finally` does; a second cancel takes them too."""
    is_all: bool


async def stopping_preview(
    client: Client, record: JobRecord, *, most: int = 1000, sees: Sees = sees_all
) -> Stopping:
    """Look at up to `most` open children of a job."""
    driver = await client.adriver()
    query = Query(parent=record.id, states=_OPEN, limit=most, payloads=False)
    page = await driver.find(query, now=client._now())
    seen = [child for child in page.jobs if sees(child)]
    spared = [child for child in seen if is_spared(child.bonds) and family_of(record).stopping is None]
    taken = [child for child in seen if child not in spared]
    running = sum(child.state is JobState.RUNNING for child in taken)
    return Stopping(
        waiting=len(taken) - running,
        running=running,
        below=sum(family_of(child).open for child in taken),
        spared=tuple(node_name(child) for child in spared),
        is_all=page.next_cursor is None,
    )


# ------------------------------------------------------------------ events


async def send_event(client: Client, job_id: str, name: str, value: Any, sees: Sees = sees_all) -> bool:
    """Send an event to a job: the first one of a name wins. True if somebody waits for it already.

    Raises:
        WorkflowError: the workflow has no event of this name.
        NotAllowedInState: the event came already, or too late.
        BrokenBond: the job is over.
    """
    owner, is_awaited = await _owner_of_event(client, job_id, name)
    if not sees(owner):
        raise JobNotFound(job_id)
    event_id = child_id(owner.id, name)
    result = client.codec.encode(value)
    new = NewJob(
        id=event_id,
        type=EVENT_TYPE,
        queue=owner.queue,
        headers={NODE_HEADER: name},
        bonds=Bonds(parent=owner.id, done_by="call", optional=True),
    )
    driver = await client.adriver()
    [answer] = await driver.resolve([Resolution(id=event_id, result=result, new=new)], now=client._now())
    if isinstance(answer, NotAllowedInState):
        raise NotAllowedInState(owner.id, verb="send", state=answer.state, what=f"event {name!r} of job")
    if not isinstance(answer, Resolved):
        raise answer
    client.events.emit(EventSent(job_id=owner.id, type=owner.type, queue=owner.queue, name=name))
    report_ended(answer.ended, client.events)
    return is_awaited


async def _owner_of_event(client: Client, job_id: str, name: str) -> tuple[JobRecord, bool]:
    """The job whose child the event is: the handler that waits, or a node of a workflow; and does it wait?"""
    driver = await client.adriver()
    now = client._now()
    [job, node] = await driver.get([job_id, child_id(job_id, name)], payloads=False, now=now)
    if job is None:
        raise JobNotFound(job_id)
    if node is not None and node.type == WAIT_TYPE:
        job = node
    elif bonds_of(job).done_by != "worker":
        raise WorkflowError(f"job {job_id} ({job.type}) has no event {name!r}. Nothing was stored")
    if job.state in TERMINAL:
        raise BrokenBond(job.id, f"is over ({job.state}): it takes no more events")
    return job, node is not None
