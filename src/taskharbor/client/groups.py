"""Chains, groups and maps: the workflows that have a shape of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from taskharbor.client.handle import JobHandle
from taskharbor.client.workflow import NO_OPTIONS, Node, NodeOptions, Workflow, first_parameter
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import Enqueued, EnqueueResult, Resolution, Resolved
from taskharbor.errors import InvalidArgument, WorkflowError
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
        client = self._client
        [answer] = await client._through_layers([self._root], None)
        root_id, start = answer.id, 0
        if answer.result is EnqueueResult.DUPLICATE:  # by its idempotency key: go on where it stopped
            record = await client.aget_record(root_id)
            family = record.family
            if record.state in TERMINAL or (family is not None and family.is_done):
                return JobHandle(client, root_id, enqueued=answer, record=record)
            start = 0 if family is None else family.total
        client._emit_enqueued([self._root], [answer])
        index = start
        rest = itertools.islice(items, start, None) if start else iter(items)
        while page := list(itertools.islice(rest, BATCH)):
            await self._store(root_id, index, page)
            index += len(page)
        await self._close(root_id)
        return JobHandle(client, root_id, enqueued=answer)

    async def _store(self, root_id: str, index: int, page: list[Any]) -> list[Enqueued]:
        client = self._client
        jobs = [
            replace(client._new_job(self._task.call(item)), id=f"[{index + place}]", bonds=Bonds())
            for place, item in enumerate(page)
        ]
        jobs = placed(jobs, root_id)
        answers = list(await client._through_layers(jobs, None))
        client._emit_enqueued(jobs, answers)
        return answers

    async def _close(self, root_id: str) -> None:
        driver = await self._client.adriver()
        [answer] = await driver.resolve([Resolution(id=root_id)], now=self._client._now())
        if not isinstance(answer, Resolved):
            raise answer
        report_ended(answer.ended, self._client.events)
