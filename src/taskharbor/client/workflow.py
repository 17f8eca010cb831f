"""Workflow: a graph of jobs that is put together first and stored in one step.

A workflow is one job, which is over with its children; the nodes are its children. Names become ids, so that
storing it again after a lost answer stores nothing twice. What the store could refuse is checked before: a
`WorkflowError` means that nothing was stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
from msgspec.structs import replace

from taskharbor.client.handle import JobHandle
from taskharbor.client.node_names import NodeNames, circle, nearest
from taskharbor.errors import InvalidArgument, WorkflowError
from taskharbor.model.bonds import MAX_AFTER, MAX_DEPTH, MAX_EDGES, Bonds, When
from taskharbor.model.checks import check_count, check_name
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.job import NewJob
from taskharbor.model.workflow import (
    ALL,
    MAX_NODES,
    MAX_REFS,
    NODE_HEADER,
    REFS_HEADER,
    RETURNS_HEADER,
    SPAWN_TYPE,
    WAIT_TYPE,
    placed,
)
from taskharbor.tasks.request import Call, JobRequest, Out, as_key, outs_in

if TYPE_CHECKING:
    from taskharbor.client.client import Client
    from taskharbor.client.task import Task

R = TypeVar("R")
T = TypeVar("T")


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all nodes of a workflow that do not say it themselves."""

    queue: str | None = None
    priority: int = 0
    requires: str = "any"
    headers: Mapping[str, str] | None = None


NO_OPTIONS = NodeOptions()


class Node(Generic[R]):
    """One job of a workflow. `out` is its result, as an argument of other nodes."""

    __slots__ = ("after", "bonds", "flow", "name", "request")

    def __init__(
        self, flow: Workflow[Any], name: str, request: JobRequest, after: tuple[Any, ...], bonds: Bonds
    ) -> None:
        self.flow = flow
        self.name = name
        self.request = request
        self.after = after
        self.bonds = bonds

    @property
    def out(self) -> R:
        """Its result, as an argument of a later node's call. The later node comes after this one."""
        return cast("R", Out(self))

    def __repr__(self) -> str:
        return f"<node {self.name} of {self.flow.name}>"


class Workflow(Generic[R]):
    """Jobs that belong together: `add` them, then `enqueue` all of them in one step.

    It is over when all its nodes are, and fails if one of them failed for good. `deadline` is how long it may
    take; `tolerate` is how many failed nodes do not fail it.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        deadline: Duration | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        idempotency_key: str | bytes | None = None,
        options: NodeOptions = NO_OPTIONS,
    ) -> None:
        check_name(name, "name")
        if tolerate is not None:
            check_count(tolerate, "tolerate")
        self.name = name
        self._client = client
        self._options = options
        self._bonds = Bonds(
            done_by="children",
            tolerate=tolerate,
            fail_fast=fail_fast,
            within=optional_duration(deadline, "deadline"),
        )
        self._idempotency_key = as_key(idempotency_key, "idempotency_key")
        self._nodes: dict[str, Node[Any]] = {}
        self._names = NodeNames()
        self._last: list[Node[Any]] = []  # on_failure and always: they come after every node
        self._returns: Node[Any] | None = None

    # ------------------------------------------------------------------ nodes

    def add(
        self,
        what: Call[T] | Workflow[T],
        *,
        name: str | None = None,
        after: Iterable[Node[Any] | str] = (),
        when: When = "success",
        optional: bool = False,
        deadline: Duration | None = None,
    ) -> Node[T]:
        """Add a job, or another workflow as one node.

        It runs once the nodes in `after`, and those whose `.out` it has as an argument, are over. With
        `when` "success" it runs if all completed (else it is skipped), with "over" in any case, with
        "failure" if one did not complete. The failure of an `optional` node fails nothing else.

        Raises:
            InvalidArgument: a call that has a key or an idempotency key.
        """
        request = what.as_call() if isinstance(what, Workflow) else what
        if not isinstance(request, JobRequest):
            raise InvalidArgument(f"a node is a task.call(...) or a workflow, not {what!r:.80}")
        default = what.name if isinstance(what, Workflow) else request.type
        inner = what._bonds if isinstance(what, Workflow) else Bonds()
        bonds = replace(
            inner,
            done_by="worker",
            when=when,
            optional=optional,
            within=optional_duration(deadline, "deadline") or inner.within,
        )
        return self._new_node(name, default, request, tuple(after), bonds)

    def event(
        self,
        name: str,
        *,
        after: Iterable[Node[Any] | str] = (),
        timeout: Duration | None = None,
        optional: bool = False,
    ) -> Node[Any]:
        """Add a node that waits for `handle.send(name, value)`; its result is that value.

        The timeout counts from when the nodes before it are over. Then the node fails.
        """
        span = optional_duration(timeout, "timeout")
        payload = {"name": name, "timeout": None if span is None else span.total_seconds()}
        request = Call[Any](type=WAIT_TYPE, payload=payload)
        return self._new_node(name, name, request, tuple(after), Bonds(optional=optional))

    def map(
        self,
        task: Task[Any, T],
        *,
        over: Iterable[Any],
        name: str | None = None,
        after: Iterable[Node[Any] | str] = (),
        tolerate: int | None = 0,
        fail_fast: bool = False,
        optional: bool = False,
    ) -> Node[list[T]]:
        """Add a node with one child per item of a list, made when it runs: `over=listing.out`.

        Each child gets its item as the first argument of the task. `tolerate` is how many failed children do
        not fail the node.
        """
        template = self._client._new_job(self._with_options(task.options))
        payload = {
            "each": msgspec.to_builtins(template),
            "parameter": first_parameter(task),
            "over": over if isinstance(over, Out) else list(over),
            "levels": 1,
        }
        request = Call[Any](type=SPAWN_TYPE, payload=payload, headers={RETURNS_HEADER: ALL})
        bonds = Bonds(tolerate=tolerate, fail_fast=fail_fast, optional=optional)
        return self._new_node(name, task.name, request, tuple(after), bonds)

    def on_failure(self, call: Call[T], *, name: str | None = None) -> Node[T]:
        """Add a node that runs when all others are over and one of them did not complete."""
        return self._add_last(call, name, "failure")

    def always(self, call: Call[T], *, name: str | None = None) -> Node[T]:
        """Add a node that runs when all others are over, however they ended."""
        return self._add_last(call, name, "over")

    def returns(self, node: Node[Any]) -> None:
        """Make the result of this node the result of the workflow."""
        self._own(node)
        self._returns = node

    def _add_last(self, call: Call[T], name: str | None, when: When) -> Node[T]:
        node: Node[T] = self._new_node(name, call.type, call, (), Bonds(when=when))
        self._last.append(node)
        return node

    def _new_node(
        self, name: str | None, default: str, request: JobRequest, after: tuple[Any, ...], bonds: Bonds
    ) -> Node[Any]:
        _refuse_keys(request)
        node = Node[Any](self, self._names.take(name, default), request, after, bonds)
        self._nodes[node.name] = node
        return node

    # ------------------------------------------------------------------ into the store

    def enqueue(self, *, tx: Any = None) -> JobHandle[R]:
        """Store the workflow: all of it, or nothing. With `tx` it exists if your transaction commits.

        Raises:
            WorkflowError: a circle, an unknown name, or more than fits.
            InvalidArgument: the store has no workflows.
        """
        return self._client._enqueue_now(self._jobs(), tx)[0]

    async def aenqueue(self, *, tx: Any = None) -> JobHandle[R]:
        jobs = self._jobs()
        return self._client._handles(jobs, await self._client._through_layers(jobs, tx))[0]

    def _jobs(self) -> list[NewJob]:
        """The job of the workflow and those of its nodes, in an order in which they can be stored."""
        root = replace(self._root(), id=self._client._new_id())
        return [root, *placed(self._template(), root.id)]

    def _root(self) -> NewJob:
        request = self._with_options(JobRequest(type=self.name, headers=self._root_headers()))
        job = self._client._new_job(request)
        return replace(job, payload=b"", bonds=self._bonds, idempotency_key=self._idempotency_key)

    def _root_headers(self) -> dict[str, str]:
        name = self._result_name()
        return {} if name is None else {RETURNS_HEADER: name}

    def _result_name(self) -> str | None:
        """The node whose result is the workflow's: the one that was named, or the only last one."""
        if self._returns is not None:
            return self._returns.name
        nodes = [node for node in self._nodes.values() if node not in self._last]
        named = {name for node in nodes for name in self._edges(node)}
        ends = [node.name for node in nodes if node.name not in named]
        return ends[0] if len(ends) == 1 else None

    def as_call(self) -> Call[R]:
        """The workflow as one job, which makes the nodes when it runs: for schedules and as a node."""
        self._check_depth()
        if self._idempotency_key is not None:
            raise InvalidArgument("a workflow that is a node or a schedule's job has no idempotency key")
        nodes = [msgspec.to_builtins(job) for job in self._template()]
        payload = {"nodes": nodes, "levels": self._depth()}
        call = Call[R](type=SPAWN_TYPE, payload=payload, headers=self._root_headers())
        return cast("Call[R]", self._with_options(call))

    def _template(self) -> list[NewJob]:
        """The jobs of the nodes, with names in place of ids."""
        self._check_depth()
        if len(self._nodes) > MAX_NODES:
            raise WorkflowError(
                f"workflow {self.name!r} has {len(self._nodes):,} nodes; {MAX_NODES:,} fit into one call. "
                "Use harbor.map for more. Nothing was stored"
            )
        order = self._sorted()
        if (edges := sum(len(names) for _, names in order)) > MAX_EDGES:
            raise WorkflowError(
                f"workflow {self.name!r} has {edges:,} edges; {MAX_EDGES:,} are allowed. Nothing was stored"
            )
        return [self._job_of(node, names) for node, names in order]

    def _job_of(self, node: Node[Any], after: tuple[str, ...]) -> NewJob:
        outs = outs_in(node.request.payload)
        if len(outs) > MAX_REFS:
            raise WorkflowError(
                f"{node.name!r} has {len(outs)} results as arguments; {MAX_REFS} are allowed", (node.name,)
            )
        headers = {NODE_HEADER: node.name, **(node.request.headers or {})}
        request = node.request
        if outs:
            headers[REFS_HEADER] = msgspec.json.encode(
                {parameter: self._own(out.node).name for parameter, out in outs.items()}
            ).decode()
            rest = {name: value for name, value in request.payload.items() if name not in outs}
            request = replace(request, payload=rest)
        job = self._client._new_job(self._with_options(request, headers))
        return replace(job, id=node.name, bonds=replace(node.bonds, after=after))

    def _with_options(self, request: JobRequest, headers: Mapping[str, str] | None = None) -> JobRequest:
        options = self._options
        merged = {**(options.headers or {}), **(request.headers or {}), **(headers or {})}
        changed = replace(
            request,
            queue=options.queue if request.queue is None else request.queue,
            priority=request.priority or options.priority,
            requires=options.requires if request.requires == "any" else request.requires,
            headers=merged or None,
        )
        vars(changed).update(vars(request))  # its payload may be encoded already
        return changed

    # ------------------------------------------------------------------ edges

    def _edges(self, node: Node[Any]) -> tuple[str, ...]:
        """The names of the nodes that it comes after."""
        outs = [out.node for out in outs_in(node.request.payload).values()]
        if node in self._last:
            before = self._last[: self._last.index(node)] if node.bonds.when == "over" else []
            others = [one for one in self._nodes.values() if one not in self._last]
            outs = [*others, *before, *outs]
        return tuple(dict.fromkeys(self._own(one).name for one in (*node.after, *outs)))

    def _own(self, node: Node[Any] | str) -> Node[Any]:
        if isinstance(node, Node):
            if node.flow is not self:
                raise WorkflowError(
                    f"{node.name!r} is a node of another workflow, {node.flow.name!r}. Nothing was stored"
                )
            return node
        if not isinstance(node, str):
            raise WorkflowError(f"after takes nodes and names of nodes, not {node!r:.80}. Nothing was stored")
        if node not in self._nodes:
            near = nearest(node, self._nodes)
            hint = "." if near is None else f'; did you mean "{near}"?'
            raise WorkflowError(
                f'after names "{node}", which this workflow does not have{hint} Nothing was stored'
            )
        return self._nodes[node]

    def _sorted(self) -> list[tuple[Node[Any], tuple[str, ...]]]:
        """The nodes behind all that they come after, otherwise in the order in which they were added."""
        edges = {name: self._edges(node) for name, node in self._nodes.items()}
        for name, names in edges.items():
            if len(names) > MAX_AFTER:
                raise WorkflowError(
                    f"{name!r} comes after {len(names):,} nodes; {MAX_AFTER:,} are allowed: "
                    "put them into a group. Nothing was stored",
                    (name,),
                )
        done: dict[str, None] = {}
        for name in edges:
            _visit(name, edges, done)
        return [(self._nodes[name], edges[name]) for name in done]

    def _check_depth(self) -> None:
        if (depth := self._depth()) > MAX_DEPTH:
            raise WorkflowError(
                f"workflow {self.name!r} would be {depth} levels deep; {MAX_DEPTH} are allowed. "
                "Nothing was stored"
            )

    def _depth(self) -> int:
        """Levels of jobs below this one."""
        return 1 + max((_levels_below(node.request) for node in self._nodes.values()), default=0)

    def __repr__(self) -> str:
        return f"<workflow {self.name}, {len(self._nodes)} nodes>"


def first_parameter(task: Task[Any, Any]) -> str:
    """The parameter of a task that gets the item of a map."""
    names = task.signature.parameters
    if not names:
        raise WorkflowError(f"task {task.name!r} takes no argument that an item could be. Nothing was stored")
    return names[0]


def _visit(name: str, edges: dict[str, tuple[str, ...]], done: dict[str, None]) -> None:
    """Add a node behind all that it comes after. Without recursion: a chain may be thousands long."""
    path: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        at = waiting[-1]
        if at in done:
            waiting.pop()
            continue
        path.setdefault(at, None)
        missing = [one for one in edges[at] if one not in done]
        if not missing:
            done[at] = None
            path.pop(at)
            waiting.pop()
            continue
        if missing[0] in path:
            raise circle(list(path), missing[0])
        waiting.append(missing[0])


def _levels_below(request: JobRequest) -> int:
    """Of the job of a node, once it has run."""
    if request.type == WAIT_TYPE:
        return 1
    if request.type != SPAWN_TYPE:
        return 0
    levels = request.payload.get("levels") if isinstance(request.payload, dict) else None
    if not isinstance(levels, int) or levels < 1:  # nobody but us makes such a job, except over HTTP
        raise WorkflowError(
            f"a node of type {SPAWN_TYPE} has in its payload how many levels of jobs it makes. "
            "Nothing was stored"
        )
    return levels


def _refuse_keys(request: JobRequest) -> None:
    if request.key is not None:
        raise InvalidArgument(
            "a job with a key cannot come after others or have a parent; leave the key out, "
            "or set max_running=1 on its queue"
        )
    if request.idempotency_key is not None:
        raise InvalidArgument(
            "a node has no idempotency key of its own; give it to the workflow: idempotency_key=…"
        )
