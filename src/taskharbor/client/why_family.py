"""Why a job of a family waits: for jobs that it comes after, for children, or for an event.

`family_cause` decides and is pure; `look_at_relatives` reads what it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from taskharbor.client.family import Sees, sees_all
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, QueueInfo
from taskharbor.model.duration import shown
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.workflow import EVENT_TYPE, node_name

SHOWN = 5
"""So many of the jobs that are waited for are named."""
_OPEN = tuple(state for state in JobState if state not in TERMINAL)


class Relatives(msgspec.Struct, frozen=True):
    """The jobs around one that waits; those that are over are left out."""

    after: Sequence[JobRecord] = ()
    children: Sequence[JobRecord] = ()
    paused: Collection[str] = ()
    """Queues that hand out nothing; `*` is the whole harbor."""
    sees: Sees = sees_all
    """Which of them the caller may see: the others are only counted."""


NO_RELATIVES = Relatives()


class FamilyCause(msgspec.Struct, frozen=True):
    reason: Literal["after", "children", "event", "stopping"]
    text: str
    until: datetime | None = None
    hint: str | None = None


def has_family_cause(job: JobRecord) -> bool:
    """Whether it is blocked by its family, and not by its key."""
    is_of_family = job.bonds is not None or job.family is not None
    return job.state is JobState.BLOCKED and job.key is None and is_of_family


async def look_at_relatives(
    driver: Driver,
    job: JobRecord,
    now: datetime | None,
    known: Sequence[QueueInfo] = (),
    sees: Sees = sees_all,
) -> Relatives:
    """The jobs that are waited for, and whether a pause holds those back that are named and ready.

    `known` are queues as they were a moment ago; the store is asked when one that matters is not among them.
    """
    names = bonds_of(job).after
    found = await driver.get(list(names), payloads=False, now=now) if names else []
    after = [one for one in found if one is not None and one.state not in TERMINAL]
    children: Sequence[JobRecord] = ()
    if family_of(job).open:
        query = Query(parent=job.id, states=_OPEN, limit=SHOWN, payloads=False)
        children = (await driver.find(query, now=now)).jobs
    ready = {one.queue for one in (*after[:SHOWN], *children) if one.state is JobState.READY}
    infos = known if ready <= {info.queue for info in known} else await driver.queues(now=now)
    return Relatives(after, children, {info.queue for info in infos if info.rules.paused}, sees)


def family_cause(job: JobRecord, around: Relatives, now: datetime) -> FamilyCause:
    """The one thing that a blocked job of a family waits for."""
    bonds, family = bonds_of(job), family_of(job)
    if family.stopping is not None:
        open_ = f"{family.open:,} of its children" if family.open else "the end of its family"
        return FamilyCause("stopping", f"is being stopped and waits for {open_}")
    if around.after and not family.is_done and not job.starts:
        text = f"waits for {len(around.after)} of {len(bonds.after)}: {_named(around.after, around, now)}"
        return FamilyCause("after", text)
    if bonds.done_by == "call" and not family.is_done:
        return _open_call(job, now)
    if family.is_done or bonds.done_by == "children":
        return FamilyCause("children", _children_text(job, around, now), until=bonds.deadline)
    return _parked(job, around, now)


def _parked(job: JobRecord, around: Relatives, now: datetime) -> FamilyCause:
    """Its handler waits for children, of which events are."""
    events = [child for child in around.children if child.type == EVENT_TYPE]
    if events and len(events) == len(around.children) and around.sees(events[0]):
        return _event(events[0], job.id, now)
    return FamilyCause(
        "children", f"its handler waits for children: {_named(around.children, around, now) or 'none'}"
    )


def _open_call(job: JobRecord, now: datetime) -> FamilyCause:
    if job.type == EVENT_TYPE:
        return _event(job, bonds_of(job).parent or job.id, now)
    text = f"is filled with children, {family_of(job).total:,} so far; it waits for the call that closes it"
    return FamilyCause("children", text, until=bonds_of(job).deadline)


def _event(event: JobRecord, owner: str, now: datetime) -> FamilyCause:
    deadline = bonds_of(event).deadline
    until = "" if deadline is None else f" until {deadline:%Y-%m-%d %H:%M:%S} UTC"
    name = node_name(event)
    hint = f"send it: taskharbor workflows send {owner} {name}"
    return FamilyCause("event", f"waits for the event {name}{until}", until=deadline, hint=hint)


def _children_text(job: JobRecord, around: Relatives, now: datetime) -> str:
    family = family_of(job)
    failed = f", {family.failed:,} failed" if family.failed else ""
    names = _named(around.children, around, now)
    return f"waits for {family.open:,} of {family.total:,} children{failed}{': ' if names else ''}{names}"


def _named(jobs: Sequence[JobRecord], around: Relatives, now: datetime) -> str:
    shown_ones = jobs[:SHOWN]
    seen = [job for job in shown_ones if around.sees(job)]
    names = [f"{node_name(job)} ({_situation(job, around.paused, now)})" for job in seen]
    if hidden := len(shown_ones) - len(seen):
        names.append(f"{hidden} in queues that you may not see")
    return ", ".join(names) + (", …" if len(jobs) > SHOWN else "")


def _situation(job: JobRecord, paused: Collection[str], now: datetime) -> str:
    if job.state is JobState.RUNNING:
        since = "" if job.started_at is None else f" for {_span(now - job.started_at)}"
        return f"running on {job.worker_id}{since}"
    if job.state is JobState.SCHEDULED and job.run_at is not None:
        return f"scheduled, due in {_span(job.run_at - now)}"
    if job.state is JobState.READY and (EVERY_QUEUE in paused or job.queue in paused):
        what = "the whole harbor" if EVERY_QUEUE in paused else f"queue {job.queue}"
        return f"ready; {what} is paused"
    return str(job.state)


def _span(span: timedelta) -> str:
    return shown(timedelta(seconds=round(max(span.total_seconds(), 0.0))))
