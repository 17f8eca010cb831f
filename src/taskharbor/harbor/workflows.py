"""The workflows of a harbor: chains, groups, graphs, and maps over any number of items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from taskharbor.client.client import Client
from taskharbor.client.groups import FILLED_WITHIN, Group, MapFiller, add_chain
from taskharbor.client.handle import JobHandle
from taskharbor.client.task import Task
from taskharbor.client.workflow import NodeOptions, Workflow
from taskharbor.model.duration import Duration
from taskharbor.model.workflow import CHAIN_TYPE, GROUP_TYPE
from taskharbor.tasks.request import Call

if TYPE_CHECKING:
    from taskharbor.harbor.keywords import Link, NodeKeywords, WorkflowKeywords

R = TypeVar("R")


class WorkflowMaker:
    """The verbs of a harbor that put jobs together. Nothing is stored before `enqueue`."""

    client: Client

    def workflow(
        self,
        name: str,
        *,
        deadline: Duration | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        idempotency_key: str | bytes | None = None,
        **options: Unpack[NodeKeywords],
    ) -> Workflow[Any]:
        """A graph of jobs: `add` nodes to it, then `enqueue` it in one step.

        `deadline` is how long all of it may take. `queue`, `priority`, `requires` and `headers` hold for the
        nodes that do not say them themselves.
        """
        return Workflow(
            self.client,
            name,
            deadline=deadline,
            tolerate=tolerate,
            fail_fast=fail_fast,
            idempotency_key=idempotency_key,
            options=NodeOptions(**options),
        )

    @overload
    def chain(
        self, first: Call[R], /, *, name: str = ..., **options: Unpack[WorkflowKeywords]
    ) -> Workflow[R]: ...
    @overload
    def chain(
        self, first: Call[Any], last: Link[R], /, *, name: str = ..., **options: Unpack[WorkflowKeywords]
    ) -> Workflow[R]: ...
    @overload
    def chain(
        self,
        first: Call[Any],
        second: Link[Any],
        last: Link[R],
        /,
        *,
        name: str = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> Workflow[R]: ...
    @overload
    def chain(
        self, first: Call[Any], /, *rest: Link[Any], name: str = ..., **options: Unpack[WorkflowKeywords]
    ) -> Workflow[Any]: ...

    def chain(self, *links: Any, name: str = CHAIN_TYPE, **options: Any) -> Workflow[Any]:
        """Jobs one after the other: `harbor.chain(fetch.call(url), parse, store).enqueue()`.

        A bare task takes the result of the job before it as its first argument. The result of the chain is
        that of its last job.
        """
        flow = self.workflow(name, **options)
        add_chain(flow, links)
        return flow

    @overload
    def group(
        self,
        calls: Iterable[Call[R]],
        *,
        then: None = None,
        on_failure: Call[Any] | None = None,
        always: Call[Any] | None = None,
        name: str = ...,
        tolerate: int | None = 0,
        **options: Unpack[WorkflowKeywords],
    ) -> Workflow[list[R]]: ...
    @overload
    def group(
        self,
        calls: Iterable[Call[Any]],
        *,
        then: Call[R],
        on_failure: Call[Any] | None = None,
        always: Call[Any] | None = None,
        name: str = ...,
        tolerate: int | None = 0,
        **options: Unpack[WorkflowKeywords],
    ) -> Workflow[R]: ...

    def group(
        self,
        calls: Iterable[Any],
        *,
        then: Call[Any] | None = None,
        on_failure: Call[Any] | None = None,
        always: Call[Any] | None = None,
        name: str = GROUP_TYPE,
        tolerate: int | None = 0,
        deadline: Duration | None = None,
        fail_fast: bool = False,
        idempotency_key: str | bytes | None = None,
        **options: Any,
    ) -> Workflow[Any]:
        """Jobs side by side, and what runs when all of them are over.

        `then` runs if no more than `tolerate` of them failed, `on_failure` otherwise, `always` in any case.
        Each runs once. `fail_fast` stops the others as soon as too many have failed. The result is that of
        `then`, else the list of the results.
        """
        return Group(
            self.client,
            name,
            calls,
            then=then,
            on_failure=on_failure,
            always=always,
            tolerate=tolerate,
            fail_fast=fail_fast,
            deadline=deadline,
            idempotency_key=idempotency_key,
            options=NodeOptions(**options),
        )

    def map(
        self,
        task: Task[Any, R],
        items: Iterable[Any],
        *,
        name: str | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        deadline: Duration = FILLED_WITHIN,
        idempotency_key: str | bytes | None = None,
    ) -> JobHandle[list[R]]:
        """One job per item, for any number of items: they are read and stored 1,000 at a time.

        Each job gets its item as the first argument. The map is over when all of them are. If this program
        ends before the last item is stored, the map fails at its deadline. With an idempotency key the same
        call goes on where it stopped.
        """
        return self.client._block(
            self.amap,
            task,
            items,
            name=name,
            tolerate=tolerate,
            fail_fast=fail_fast,
            deadline=deadline,
            idempotency_key=idempotency_key,
        )

    async def amap(
        self,
        task: Task[Any, R],
        items: Iterable[Any],
        *,
        name: str | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        deadline: Duration = FILLED_WITHIN,
        idempotency_key: str | bytes | None = None,
    ) -> JobHandle[list[R]]:
        filler = MapFiller(
            self.client,
            task,
            name=name,
            tolerate=tolerate,
            fail_fast=fail_fast,
            deadline=deadline,
            idempotency_key=idempotency_key,
        )
        return await filler.fill(items)
