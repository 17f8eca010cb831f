"""Durable attempts: what a handler remembers, and what it waits for without a slot.

A step's result is a note of the job. Children, events and maps are children with ids made from their names.
A handler that must wait raises `Parked`: its job is parked, and the handler runs again from the top once what
it waits for is over. Steps that are done return what they returned before. `steps.py` has the verbs.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import typing
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from taskharbor.drivers.family_results import children_of, result_of, results_of
from taskharbor.drivers.messages import Enqueued, EnqueueResult, Noted
from taskharbor.errors import (
    BrokenBond,
    EventTimeout,
    JobFailed,
    JobNotFound,
    Parked,
    StepError,
)
from taskharbor.model.bonds import Bonds, Family
from taskharbor.model.checks import check_name
from taskharbor.model.entropy import child_id
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import FailureKind, JobRecord, NewJob, Note
from taskharbor.model.outcome import WasParked
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.workflow import (
    ALL,
    EVENT_TYPE,
    MAP_TYPE,
    NODE_HEADER,
    RETURNS_HEADER,
    placed,
)
from taskharbor.tasks.request import Call, JobRequest
from taskharbor.tasks.signature import result_type

if TYPE_CHECKING:
    from taskharbor.worker.attempt_tools import AttemptTools
    from taskharbor.worker.leased_jobs import LeasedJob

R = TypeVar("R")

BATCH = 1000
MOST_READ_AHEAD = 100


class Durable:
    """The durable part of one attempt: made when a handler first asks for it."""

    def __init__(self, tools: AttemptTools, leased: LeasedJob) -> None:
        self.tools = tools
        self.leased = leased
        self.id = leased.record.id
        self._notes = {note.name: note for note in leased.record.notes}
        self._used: Counter[str] = Counter()
        self._used_children: Counter[str] = Counter()
        self._earlier: dict[str, JobRecord] | None = None
        self._lock = asyncio.Lock()

    def now(self) -> Any:
        return self.tools.timing.stated()

    # ------------------------------------------------------------------ notes

    def step_name(self, name: str) -> str:
        return _numbered(self._used, name)

    def remembered(self, name: str) -> Note | None:
        return self._notes.get(name)

    async def note(self, name: str, value: Any) -> Note:
        """Keep the result of a step. What the store had under this name already wins."""
        data = self.tools.codec.encode(value)
        async with self._lock, self.tools.lease_of(self.leased) as lease:
            [answer] = await self.tools.driver.note([Note(name, data, lease=lease)], now=self.now())
        if isinstance(answer, BrokenBond):
            raise StepError(f"this job {answer.reason}")
        if not isinstance(answer, Noted):
            raise answer
        record = self.leased.record
        if record.attempts or record.stalls:  # a new note is progress, as in the store
            self.leased.record = replace(record, attempts=0, stalls=0)
        self._notes[name] = note = Note(name, answer.data, answer.at)
        return note

    def value_of(self, note: Note, function: Callable[..., Any]) -> Any:
        return self.tools.codec.decode(note.data, _return_type(function))

    def sleep(self, name: str, span: timedelta) -> None:
        """Return if this sleep is over, else park for the rest of it."""
        name = self.step_name(name)
        note, record = self._notes.get(name), self.leased.record
        if note is None:
            new = Note(name, self.tools.codec.encode(span.total_seconds()))
            raise Parked(WasParked(delay=span, notes=(new,)))
        woken = record.started_at
        if note.at is not None and woken is not None and woken < note.at + span:
            raise Parked(WasParked(delay=note.at + span - woken))

    # ------------------------------------------------------------------ children

    def child_name(self, name: str | None, default: str) -> str:
        if name is not None:
            check_name(name, "the name of a child")
        return _numbered(self._used_children, name or default)

    def child(self, request: JobRequest, name: str, **bonds: Any) -> NewJob:
        job = self.tools.new_job(request, child_id(self.id, name))
        return replace(job, headers={NODE_HEADER: name, **job.headers}, bonds=Bonds(parent=self.id, **bonds))

    async def store(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        async with self._lock:
            return await self.tools.store_children(self.leased, jobs)

    async def waited(self, jobs: Sequence[NewJob]) -> list[JobRecord]:
        """Store children and return their records once all of them are over; else park for them."""
        records = await self.stored([job.id for job in jobs])
        new = [job for job in jobs if job.id not in records]
        answers = await self.store(new) if new else ()
        known = {job.id for job, answer in zip(new, answers, strict=True) if is_known(answer)}
        records |= await self.get(list(known))
        for job in jobs:
            if job.id in records or job.id in known:
                check_same(records.get(job.id), job)
        over = {job_id for job_id, record in records.items() if record.state in TERMINAL}
        missing = tuple(job.id for job in jobs if job.id not in over)
        if missing:
            raise Parked(WasParked(after=missing))
        return [records[job.id] for job in jobs]

    async def stored(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Those of these children that earlier runs have stored.

        A handler comes past them one by one, in every run: so a few are read at once, for the whole run.
        """
        total = family_of(self.leased.record).total
        if not 0 < total <= MOST_READ_AHEAD:
            return await self.get(ids) if total else {}
        if self._earlier is None:
            children = children_of(self.tools.driver, self.id, now=self.now)
            self._earlier = {record.id: record async for record in children}
        earlier = [self._earlier[job_id] for job_id in ids if job_id in self._earlier]
        over = {record.id: record for record in earlier if record.state in TERMINAL}
        return over | await self.get([record.id for record in earlier if record.id not in over])

    async def get(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        if not ids:
            return {}
        found = await self.tools.driver.get(ids, now=self.now())
        return {record.id: record for record in found if record is not None}

    async def result_of(self, record: JobRecord, call: JobRequest) -> Any:
        """The result of a child that is over; JobFailed, which fails this job, if it did not complete."""
        _check_completed(record)
        reads = call.read if isinstance(call, Call) else None
        if reads is not None and RETURNS_HEADER not in record.headers:
            return reads(record.result)
        return await result_of(self.tools.driver, record, self.read, self.now)

    def read(self, record: JobRecord) -> Any:
        return None if record.result is None else self.tools.codec.decode(record.result)

    # ------------------------------------------------------------------ map

    async def mapped(
        self, calls: Iterator[JobRequest], name: str, *, tolerate: int | None, fail_fast: bool
    ) -> JobRecord:
        """The group of one child per call, once it is over."""
        group_id = child_id(self.id, name)
        group = (await self.get([group_id])).get(group_id)
        if group is None:
            await self.store([self._group(group_id, name, tolerate=tolerate, fail_fast=fail_fast)])
            await self._fill(group_id, calls, 0)
        elif group.type != MAP_TYPE:
            raise StepError(_other_type(name, group.type, MAP_TYPE))
        elif group.state not in TERMINAL and not family_of(group).is_done:
            await self._fill(group_id, calls, family_of(group).total)
        if group is None or group.state not in TERMINAL:
            raise Parked(WasParked(after=(group_id,)))
        _check_completed(group)
        return group

    def _group(self, group_id: str, name: str, *, tolerate: int | None, fail_fast: bool) -> NewJob:
        return NewJob(
            id=group_id,
            type=MAP_TYPE,
            queue=self.leased.record.queue,
            headers={NODE_HEADER: name, RETURNS_HEADER: ALL},
            bonds=Bonds(
                parent=self.id, done_by="call", optional=True, tolerate=tolerate, fail_fast=fail_fast
            ),
        )

    async def _fill(self, group_id: str, calls: Iterator[JobRequest], start: int) -> None:
        """Store the children from the one that is missing, 1,000 at a time; then close the group."""
        index = start
        rest = itertools.islice(calls, start, None)
        while page := list(itertools.islice(rest, BATCH)):
            jobs = [self.tools.new_job(call, f"[{index + place}]") for place, call in enumerate(page)]
            await self.store(placed(jobs, group_id))
            index += len(page)
        await self.tools.resolve(group_id)

    # ------------------------------------------------------------------ events and results of others

    async def event(self, name: str, timeout: timedelta | None) -> JobRecord:
        check_name(name, "the name of an event")
        job = NewJob(
            id=child_id(self.id, name),
            type=EVENT_TYPE,
            queue=self.leased.record.queue,
            headers={NODE_HEADER: name},
            bonds=Bonds(parent=self.id, done_by="call", optional=True, within=timeout),
        )
        [record] = await self.waited([job])
        if record.state is JobState.COMPLETED:
            return record
        if record.failure_kind == FailureKind.TIMEOUT:
            raise EventTimeout(self.id, name)
        raise JobFailed(record.id, record.state, record.last_error, is_child=True)

    async def results(self, name: str | None) -> AsyncIterator[Any]:
        """The results of what this job comes after, or of the sibling of this name."""
        bonds = self.leased.record.bonds
        if bonds is None or (name is not None and bonds.parent is None):
            raise StepError("this job comes after no other job: there are no results to read")
        ids = bonds.after if name is None else (child_id(bonds.parent or "", name),)
        records = await self.get(ids)
        for job_id in ids:
            if job_id not in records:
                raise JobNotFound(job_id)
            if records[job_id].state is JobState.COMPLETED:
                async for result in results_of(self.tools.driver, records[job_id], self.read, self.now):
                    yield result


class MapResult(Generic[R]):
    """The children of a map that is over: their counts and their results."""

    def __init__(self, durable: Durable, record: JobRecord, read: Callable[[bytes], R]) -> None:
        self._durable = durable
        self._read = read
        self.id = record.id
        self.counts: Family = family_of(record)

    async def aresults(self) -> AsyncIterator[R]:
        """The results of the completed children, in the order of the items; read 1,000 at a time."""
        durable = self._durable
        children = children_of(durable.tools.driver, self.id, (JobState.COMPLETED,), now=durable.now)
        async for child in children:
            yield cast("R", None) if child.result is None else self._read(child.result)

    def results(self) -> Iterator[R]:
        """The same in a handler that runs in a thread."""
        pages = self.aresults()
        while page := self._durable.tools.block(page_of(pages)):
            yield from page


async def page_of(results: AsyncIterator[R]) -> list[R]:
    page: list[R] = []
    async for result in results:
        page.append(result)
        if len(page) == BATCH:
            break
    return page


def _numbered(used: Counter[str], name: str) -> str:
    """The name, with a number behind it from its second use on."""
    used[name] += 1
    return name if used[name] == 1 else f"{name}#{used[name]}"


def is_known(answer: Enqueued) -> bool:
    return answer.result is EnqueueResult.DUPLICATE


def check_same(record: JobRecord | None, job: NewJob) -> None:
    if record is None:
        raise JobNotFound(job.id)
    if record.type != job.type:
        raise StepError(_other_type(job.headers[NODE_HEADER], record.type, job.type))


def _other_type(name: str, stored: str, asked: str) -> str:
    return (
        f"a child named {name!r} is stored, of {stored} and not of {asked}: "
        "names must be stable; give this one another name="
    )


def _check_completed(record: JobRecord) -> None:
    if record.state is not JobState.COMPLETED:
        raise JobFailed(record.id, record.state, record.last_error, is_child=True)


_RETURN_TYPES: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # reading annotations takes a while


def _return_type(function: Callable[..., Any]) -> Any:
    """What the annotation of a function says it returns; Any where it says nothing that can be checked."""
    plain = inspect.unwrap(function)
    if not inspect.isfunction(plain):
        return _annotated_return(plain)
    if plain not in _RETURN_TYPES:
        _RETURN_TYPES[plain] = _annotated_return(plain)
    return _RETURN_TYPES[plain]


def _annotated_return(function: Callable[..., Any]) -> Any:
    try:
        hint = typing.get_type_hints(function).get("return", Any)
    except Exception:  # noqa: BLE001 - annotations of others may name anything
        return Any
    return result_type(hint)
