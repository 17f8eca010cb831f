"""Chains, groups and maps: the workflows that have a shape of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from taskharbor.client.handle import JobHandle
from taskharbor.client.workflow import NO_OPTIONS, Node, NodeOptions, Workflow, first_parameter
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import EnqueueResult, Resolution, Resolved
from taskharbor.errors import InvalidArgument, TaskHarborError, WorkflowError
from taskharbor.model.bonds import Bonds
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.job import NewJob
from taskharbor.model.state import TERMINAL
from taskharbor.model.workflow import ALL, MAP_TYPE, MAX_NODES, NODE_HEADER, RETURNS_HEADER, placed
from taskharbor.tasks.request import Call, JobRequest

if TYPE_CHECKING:
    from taskharbor.client.client import Client
    from taskharbor.client.task import Task

R = TypeVar("R")

MEMBERS = "members"
"""The node of a group with callbacks that its members are children of."""
BATCH = 1000
"""Children of a map that are stored in one call."""
FILLED_WITHIN = "1d"


def add_chain(flow: Workflow[Any], links: Iterable[Call[Any] | Task[Any, Any]]) -> None:
    """Add calls and bare tasks to a workflow, each after the one before; a bare task takes its result."""
    last: Node[Any] | None = None
    for link in links:
        if isinstance(link, JobRequest | Workflow):
            call = link
        elif last is None:
            raise WorkflowError("a chain begins with a call, task.call(...), not with a bare task")
        else:
            call = link.call(*([last.out] if link.signature.parameters else []))
        last = flow.add(call, after=() if last is None else (last,))
    if last is None:
        raise WorkflowError("a chain needs at least one call. Nothing was stored")


class Group(Workflow[R]):
    """Jobs without an order among them, and what runs when all of them are over."""

    def __init__(
        self,
        client: Client,
        name: str,
        calls: Iterable[JobRequest],
        *,
        then: Call[Any] | None = None,
        on_failure: Call[Any] | None = None,
        always: Call[Any] | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        deadline: Duration | None = None,
        idempotency_key: str | bytes | None = None,
        options: NodeOptions = NO_OPTIONS,
    ) -> None:
        super().__init__(
            client,
            name,
            tolerate=tolerate,
            fail_fast=fail_fast,
            deadline=deadline,
            idempotency_key=idempotency_key,
            options=options,
        )
        self._members = [_member(call) for call in calls]
        self._callbacks = [
            (label, when, call)
            for label, when, call in (
                ("then", "success", then),
                ("on_failure", "failure", on_failure),
                ("always", "over", always),
            )
            if call is not None
        ]
        if len(self._members) + len(self._callbacks) >= MAX_NODES:
            raise WorkflowError(
                f"a group of {len(self._members):,} jobs; {MAX_NODES - 4:,} fit into one call. "
                "Use harbor.map for more. Nothing was stored"
            )

    def _root(self) -> NewJob:
        root = super()._root()
        if not self._callbacks:
            return root
        # What the members may do is the business of their node; the group fails if that node does.
        return replace(root, bonds=Bonds(done_by="children", within=self._bonds.within))

    def _result_name(self) -> str | None:
        if not self._callbacks:
            return ALL
        labels = [label for label, _, _ in self._callbacks]
        return "then" if "then" in labels else MEMBERS

    def _depth(self) -> int:
        return 2 if self._callbacks else 1

    def _template(self) -> list[NewJob]:
        if not self._callbacks:
            return self._member_jobs("")
        bonds = replace(self._bonds, within=None)
        headers = {NODE_HEADER: MEMBERS, RETURNS_HEADER: ALL}
        request = self._with_options(JobRequest(type=self.name, headers=headers))
        node = replace(self._client._new_job(request), id=MEMBERS, payload=b"", bonds=bonds)
        return [node, *self._member_jobs(f"{MEMBERS}/"), *self._callback_jobs()]

    def _member_jobs(self, above: str) -> list[NewJob]:
        return [
            replace(self._client._new_job(self._with_options(call)), id=f"{above}[{index}]", bonds=Bonds())
            for index, call in enumerate(self._members)
        ]

    def _callback_jobs(self) -> Iterator[NewJob]:
        before: tuple[str, ...] = (MEMBERS,)
        for label, when, call in self._callbacks:
            headers = {NODE_HEADER: label, **(call.headers or {})}
            job = self._client._new_job(self._with_options(_member(call), headers))
            after = before if label == "always" else (MEMBERS,)
            yield replace(job, id=label, bonds=Bonds(after=after, when=when))  # type: ignore[arg-type]
            before = (*before, label)


def _member(call: JobRequest) -> JobRequest:
    if isinstance(call, Workflow):
        return call.as_call()
    if not isinstance(call, JobRequest):
        raise InvalidArgument(f"a group is made of task.call(...), not of {call!r:.80}")
    if call.key is not None or call.idempotency_key is not None:
        raise InvalidArgument(
            "a job with a key cannot come after others or have a parent; leave the key out, "
            "or set max_running=1 on its queue"
        )
    return call


@dataclass
class _Kept:
    """What is stored of a map."""

    root_id: str
    count: int


class MapFiller:
    """Fills an open group with one child per item, page by page, and closes it."""

    def __init__(
        self,
        client: Client,
        task: Task[Any, Any],
        *,
        name: str | None,
        tolerate: int | None,
        fail_fast: bool,
        deadline: Duration,
        idempotency_key: str | bytes | None,
    ) -> None:
        self._client = client
        self._task = task
        first_parameter(task)
        bonds = Bonds(
            done_by="call",
            tolerate=tolerate,
            fail_fast=fail_fast,
            within=optional_duration(deadline, "deadline"),
        )
        headers = {RETURNS_HEADER: ALL}
        request = JobRequest(
            type=name or MAP_TYPE, queue=task.queue, headers=headers, idempotency_key=idempotency_key
        )
        self._root = replace(client._new_job(request), payload=b"", bonds=bonds)

    async def fill(self, items: Iterable[Any]) -> JobHandle[Any]:
        client, rest = self._client, iter(items)
        first = self._jobs(0, list(itertools.islice(rest, BATCH)))  # an error in these stores nothing
        [answer] = await client._through_layers([self._root], None)
        root_id, start = answer.id, 0
        if answer.result is EnqueueResult.DUPLICATE:  # by its idempotency key: go on where it stopped
            record = await client.aget_record(root_id)
            family = record.family
            if record.state in TERMINAL or (family is not None and family.is_done):
                return JobHandle(client, root_id, enqueued=answer, record=record)
            start = 0 if family is None else family.total
        client._emit_enqueued([self._root], [answer])
        kept = _Kept(root_id, start)
        try:
            await self._fill(kept, first[start:], itertools.islice(rest, max(start - len(first), 0), None))
        except Exception as error:
            error.add_note(await self._left(kept))
            raise
        return JobHandle(client, root_id, enqueued=answer)

    async def _fill(self, kept: _Kept, jobs: list[NewJob], rest: Iterator[Any]) -> None:
        while jobs := jobs or self._jobs(kept.count, list(itertools.islice(rest, BATCH))):
            jobs = placed(jobs, kept.root_id)
            answers = list(await self._client._through_layers(jobs, None))
            self._client._emit_enqueued(jobs, answers)
            kept.count += len(jobs)
            jobs = []
        await self._close(kept.root_id)

    def _jobs(self, index: int, page: list[Any]) -> list[NewJob]:
        jobs = []
        for number, item in enumerate(page, index):
            try:
                job = self._client._new_job(self._task.call(item))
            except Exception as error:
                error.add_note(f"This is item {number:,} of the map.")
                raise
            jobs.append(replace(job, id=f"[{number}]", bonds=Bonds()))
        return jobs

    async def _left(self, kept: _Kept) -> str:
        """What becomes of a map that could not be filled. Only one with a key can be filled later."""
        stored = f"{kept.count:,} jobs of map {kept.root_id} were stored before this"
        if self._root.idempotency_key is not None:
            return f"{stored}; the same call, with its idempotency key, goes on from there."
        try:
            await self._client.acancel(kept.root_id)
        except TaskHarborError:
            return f"{stored}. It could not be cancelled and fails at its deadline."
        return f"{stored}; it is cancelled."

    async def _close(self, root_id: str) -> None:
        driver = await self._client.adriver()
        [answer] = await driver.resolve([Resolution(id=root_id)], now=self._client._now())
        if not isinstance(answer, Resolved):
            raise answer
        report_ended(answer.ended, self._client.events)
