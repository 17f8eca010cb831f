"""What the routes of workflows take and answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from taskharbor.client.family_graph import GraphNode
from taskharbor.drivers.messages import CancelResult, EnqueueResult
from taskharbor.model.bonds import MAX_AFTER, When
from taskharbor.model.checks import MAX_PRIORITY
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.workflow import EVENT_TYPE, MAX_NODES, WAIT_TYPE, node_name
from taskharbor.views import InstantText, View, instant_text
from taskharbor.web.api.schemas import Count, Cursor, In, JobId, JobIn, JobName, Key, Limit, Name, Seconds

_ERROR_SIGNS = 300
NodeName = Annotated[str, Meta(min_length=1, max_length=200)]


# ------------------------------------------------------------------ in


class EventIn(In, frozen=True, kw_only=True):
    """How long the node waits for its event, from when the nodes before it are over; null: for good."""

    timeout_s: Seconds | None = None


class NodeIn(In, frozen=True, kw_only=True):
    """A node of a workflow: a `job`, or with `event` one that waits for an event of its name."""

    name: NodeName | None = None
    job: JobIn | None = None
    event: EventIn | None = None
    after: Annotated[list[NodeName], Meta(max_length=MAX_AFTER)] = field(default_factory=list)
    when: Literal["success", "over", "failure"] = "success"
    optional: bool = False
    deadline_s: Seconds | None = None
    results: Annotated[dict[str, NodeName], Meta(max_length=MAX_AFTER)] = field(default_factory=dict)
    """Arguments that are results of other nodes: parameter → node. This node comes after those."""


class WorkflowIn(In, frozen=True, kw_only=True):
    """Jobs that are stored in one step. `queue`, `headers` and the like are for nodes without their own."""

    name: Name
    nodes: Annotated[list[NodeIn], Meta(min_length=1, max_length=MAX_NODES)]
    on_failure: JobIn | None = None
    """Runs when all nodes are over and one did not complete."""
    always: JobIn | None = None
    """Runs when all are over, however they ended."""
    returns: NodeName | None = None
    """The node whose result is the result of the workflow; left out, the only last one."""
    queue: JobName | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    requires: JobName = "any"
    headers: dict[str, str] | None = None
    deadline_s: Seconds | None = None
    tolerate: Count | None = 0
    """How many failed nodes do not fail it; null: any number."""
    fail_fast: bool = False
    idempotency_key: Key | None = None


class DryRunIn(In, frozen=True, kw_only=True):
    dry_run: bool = False
    """Only say what would happen."""


class WorkflowsQuery(In, frozen=True, kw_only=True):
    queue: Name | None = None
    state: Annotated[str, Meta(description="One or more states, with commas.")] | None = None
    type: Name | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ChildrenQuery(In, frozen=True, kw_only=True):
    state: Annotated[str, Meta(description="One or more states, with commas.")] | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class GraphQuery(In, frozen=True, kw_only=True):
    cursor: Cursor | None = None


# ------------------------------------------------------------------ out


class FamilyOut(View, frozen=True, kw_only=True):
    """The children of a job, by state. `open` ones are not over; `excused` ones failed and may."""

    total: int
    open: int
    completed: int
    failed: int
    excused: int
    cancelled: int


class WorkflowOut(View, frozen=True, kw_only=True):
    """A job with what is known of its family. A workflow is one that has children and no parent."""

    id: JobId
    name: str
    type: Name
    queue: Name
    state: JobState
    counts: FamilyOut
    parent: JobId | None
    root: JobId | None
    """The topmost job of its family; null if it is that itself."""
    created_at: InstantText
    finished_at: InstantText | None
    deadline: InstantText | None
    tolerate: int | None
    fail_fast: bool
    stopping: str | None
    """Why its children are being stopped, while they are."""
    failure_kind: str | None
    error: str | None


class WorkflowsOut(View, frozen=True, kw_only=True):
    """A page. It may be short, even empty, and still have a cursor: the work per page is bounded."""

    items: list[WorkflowOut]
    next_cursor: str | None
    looked_at: int
    looked_back_to: InstantText | None
    is_all: bool


class NodeOut(View, frozen=True, kw_only=True):
    """A job of a graph or a list of children."""

    id: JobId
    name: str
    type: Name
    queue: Name
    state: JobState
    parent: JobId | None
    layer: int | None
    """The column that it is drawn in, among the children of its parent; null in a list."""
    counts: FamilyOut | None
    """Of its own children; null if it has none."""
    waits_for: int
    """Jobs that it comes after, or is parked for, that are not over."""
    when: When
    is_optional: bool
    is_event: bool
    """Whether an event of its name can be sent to its parent."""
    attempts: int
    created_at: InstantText
    started_at: InstantText | None
    finished_at: InstantText | None
    deadline: InstantText | None
    failure_kind: str | None
    error: str | None


class GraphOut(View, frozen=True, kw_only=True):
    """A page of at most 500 nodes. An edge is [from, to, when]; its beginning may be on a page before."""

    nodes: list[NodeOut]
    edges: list[tuple[str, str, When]]
    next_cursor: str | None


class ChildrenOut(View, frozen=True, kw_only=True):
    items: list[NodeOut]
    next_cursor: str | None


class WorkflowEnqueuedOut(View, frozen=True, kw_only=True):
    """`nodes` has the id of every node by its name."""

    id: JobId
    result: EnqueueResult
    at: InstantText
    version: int
    nodes: dict[str, JobId]


class CancelWorkflowOut(View, frozen=True, kw_only=True):
    """What became of it; with `dry_run` what would, and no result. At least so many, unless it `is_all`."""

    id: JobId
    result: CancelResult | None
    state: JobState | None
    waiting: int
    """Children that are cancelled at once."""
    running: int
    """Children whose workers are notified to stop."""
    below: int
    """Open jobs further down."""
    spared: list[str]
    """Children that run in any case; a second cancel takes them too."""
    is_all: bool


class SampleOut(View, frozen=True, kw_only=True):
    id: JobId
    name: str
    state: JobState


class RetryWorkflowOut(View, frozen=True, kw_only=True):
    """How many jobs run again, or would. Not `is_all`: there may be more; ask again."""

    id: JobId
    retried: int
    is_all: bool
    samples: list[SampleOut]
    """With `dry_run`, the first ten of them."""


class EventOut(View, frozen=True, kw_only=True):
    id: JobId
    event: str


# ------------------------------------------------------------------ from records


def workflow_out(job: JobRecord) -> WorkflowOut:
    bonds, family = bonds_of(job), family_of(job)
    return WorkflowOut(
        id=job.id,
        name=node_name(job),
        type=job.type,
        queue=job.queue,
        state=job.state,
        counts=_counts(job),
        parent=bonds.parent,
        root=job.root if job.root != job.id else None,
        created_at=instant_text(job.created_at) or "",
        finished_at=instant_text(job.finished_at),
        deadline=instant_text(bonds.deadline),
        tolerate=bonds.tolerate,
        fail_fast=bonds.fail_fast,
        stopping=None if job.state.is_terminal else family.stopping,
        failure_kind=job.failure_kind,
        error=_short(job.last_error),
    )


def node_out(job: JobRecord, layer: int | None = None) -> NodeOut:
    bonds, family = bonds_of(job), family_of(job)
    return NodeOut(
        id=job.id,
        name=node_name(job),
        type=job.type,
        queue=job.queue,
        state=job.state,
        parent=bonds.parent,
        layer=layer,
        counts=_counts(job) if family.total and job.type != WAIT_TYPE else None,
        waits_for=family.waits_for,
        when=bonds.when,
        is_optional=bonds.optional,
        is_event=job.type in (WAIT_TYPE, EVENT_TYPE) and not job.state.is_terminal,
        attempts=job.attempts,
        created_at=instant_text(job.created_at) or "",
        started_at=instant_text(job.started_at),
        finished_at=instant_text(job.finished_at),
        deadline=instant_text(bonds.deadline),
        failure_kind=job.failure_kind,
        error=_short(job.last_error),
    )


def graph_node(node: GraphNode) -> NodeOut:
    return node_out(node.job, node.layer)


def sample(job: JobRecord) -> SampleOut:
    return SampleOut(id=job.id, name=node_name(job), state=job.state)


def _counts(job: JobRecord) -> FamilyOut:
    family = family_of(job)
    over_badly = family.failed + family.excused + family.cancelled
    return FamilyOut(
        completed=family.total - family.open - over_badly,
        **{name: getattr(family, name) for name in ("total", "open", "failed", "excused", "cancelled")},
    )


def _short(error: str | None) -> str | None:
    """The first line of an error: a graph has up to 500 of them."""
    return None if error is None else error.partition("\n")[0][:_ERROR_SIGNS]
