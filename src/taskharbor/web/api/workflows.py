"""/api/workflows: jobs that belong together, as a list, a graph and one thing to cancel or to retry."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.responses import Response

from taskharbor.client.family import (
    LookBudget,
    Sees,
    failed_below,
    retry_family,
    send_event,
    stopping_preview,
)
from taskharbor.client.family_graph import family_graph, is_workflow
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import CancelResult, Query
from taskharbor.errors import InvalidArgument, JobNotFound, NotAllowedInState
from taskharbor.model.checks import check_name
from taskharbor.model.job import JobRecord
from taskharbor.model.search import Search
from taskharbor.model.state import TERMINAL
from taskharbor.views import instant_text
from taskharbor.web.api.enqueue import encoded
from taskharbor.web.api.jobs import job_of, moved, queue_asked, shared, states_asked
from taskharbor.web.api.workflow_data import (
    CancelWorkflowOut,
    ChildrenOut,
    ChildrenQuery,
    DryRunIn,
    EventOut,
    GraphOut,
    GraphQuery,
    RetryWorkflowOut,
    WorkflowOut,
    WorkflowsOut,
    WorkflowsQuery,
    graph_node,
    node_out,
    sample,
    workflow_out,
)
from taskharbor.web.endpoint import Operation
from taskharbor.web.family_scope import seen_by
from taskharbor.web.job_walk import JobWalk
from taskharbor.web.paging import link_to_next, not_ours, sealed, unsealed
from taskharbor.web.parsing import read_json
from taskharbor.web.reply import Reply, json_answer
from taskharbor.web.request import Request

T = TypeVar("T")

MOST_RETRIED = 1000
"""Jobs that one call runs again: a family may have a million."""
MOST_LOOKED_AT = 20_000
"""Children that one call looks at, to find those."""
_SAMPLES = 10
_MAX_BODY = 4096


async def list_workflows(request: Request) -> Response:
    """A store has no index of jobs with children: jobs are walked through, as for a search."""
    return await shared(request, lambda: _listed(request))


async def _listed(request: Request) -> Reply:
    asked: WorkflowsQuery = request.query
    query = Query(
        queue=queue_asked(request, asked.queue),
        states=states_asked(asked.state),
        type=asked.type,
        newest_first=True,
        limit=asked.limit,
    )
    found = await JobWalk(request, Search(), query, also=is_workflow).page(asked.limit, asked.cursor)
    body = WorkflowsOut(
        items=[workflow_out(job) for job in found.jobs],
        next_cursor=found.cursor,
        looked_at=found.looked_at,
        looked_back_to=instant_text(found.looked_back_to),
        is_all=found.is_all,
    )
    return json_answer(body, headers=link_to_next(request, found.cursor))


async def get_workflow(request: Request) -> Response:
    return json_answer(workflow_out(await job_of(request, payloads=False)))


async def get_graph(request: Request) -> Response:
    return await shared(request, lambda: _graph(request))


async def _graph(request: Request) -> Reply:
    job = await job_of(request, payloads=False)
    asked: GraphQuery = request.query
    cursor = unsealed(request, asked.cursor)
    driver = await request.service.driver()
    try:
        found = await family_graph(driver, job, cursor=cursor, now=request.service.now(), sees=_sees(request))
    except InvalidArgument:
        if cursor is None:
            raise
        raise not_ours() from None
    next_cursor = sealed(request, found.next_cursor)
    body = GraphOut(nodes=list(map(graph_node, found.nodes)), edges=found.edges, next_cursor=next_cursor)
    return json_answer(body, headers=link_to_next(request, next_cursor))


async def list_children(request: Request) -> Response:
    job = await job_of(request, payloads=False)
    asked: ChildrenQuery = request.query
    query = Query(parent=job.id, states=states_asked(asked.state), limit=asked.limit)
    found = await JobWalk(request, Search(), query).page(asked.limit, asked.cursor)
    body = ChildrenOut(items=[node_out(child) for child in found.jobs], next_cursor=found.cursor)
    return json_answer(body, headers=link_to_next(request, found.cursor))


# ------------------------------------------------------------------ changes


async def cancel_workflow(request: Request) -> Response:
    asked = await _optional(request, DryRunIn)
    request.is_preview = asked.dry_run
    job = await job_of(request, payloads=False)
    if job.state in TERMINAL:
        raise NotAllowedInState(job.id, verb="cancel", state=str(job.state))
    client = request.service.harbor.client
    preview = await stopping_preview(client, job, sees=_sees(request))
    counts = {name: getattr(preview, name) for name in ("waiting", "running", "below", "is_all")}
    shown = CancelWorkflowOut(id=job.id, result=None, state=None, spared=list(preview.spared), **counts)
    if asked.dry_run:
        return json_answer(msgspec.structs.replace(shown, state=job.state))
    driver = await request.service.driver()
    [answer] = await driver.cancel([job.id], now=request.service.now())
    report_ended(answer.ended, request.service.harbor.events)
    request.audited = {"job_id": job.id, "result": answer.result.value}
    request.change = moved(job, answer.state)
    if answer.result is CancelResult.NOT_FOUND:
        raise JobNotFound(job.id)
    if answer.result is CancelResult.ALREADY_OVER:
        raise NotAllowedInState(job.id, verb="cancel", state=str(answer.state))
    return json_answer(msgspec.structs.replace(shown, result=answer.result, state=answer.state))


async def retry_workflow(request: Request) -> Response:
    asked = await _optional(request, DryRunIn)
    request.is_preview = asked.dry_run
    job = await job_of(request, payloads=False)
    client, sees, budget = request.service.harbor.client, _sees(request), LookBudget(MOST_LOOKED_AT)
    if not asked.dry_run:
        count = await retry_family(client, job, most=MOST_RETRIED, sees=sees, budget=budget)
        request.audited = {"job_id": job.id, "jobs": count}
        is_all = count < MOST_RETRIED and not budget.is_spent
        return json_answer(RetryWorkflowOut(id=job.id, retried=count, is_all=is_all, samples=[]))
    found: list[JobRecord] = []
    async for one in failed_below(client, job, sees, budget):
        found.append(one)
        if len(found) > MOST_RETRIED:
            break
    body = RetryWorkflowOut(
        id=job.id,
        retried=min(len(found), MOST_RETRIED),
        is_all=len(found) <= MOST_RETRIED and not budget.is_spent,
        samples=[sample(one) for one in found[:_SAMPLES]],
    )
    return json_answer(body)


async def send(request: Request) -> Response:
    """Bring an event to a job that waits for it, or will: the first one of a name wins."""
    service = request.service
    raw = await request.optional_body(service.harbor.driver.max_payload)
    value = None if not raw else read_json(raw, msgspec.Raw)
    if value is not None:
        encoded(service, bytes(value))
    name = request.parameter("name")
    check_name(name, "the name of an event")
    job = await job_of(request, payloads=False)
    request.audited = {"job_id": job.id, "event": name}
    decoded = None if value is None else msgspec.json.decode(value)
    await send_event(service.harbor.client, job.id, name, decoded, _sees(request))
    return json_answer(EventOut(id=job.id, event=name), 202)


def _sees(request: Request) -> Sees:
    return seen_by(request.principal)


async def _optional(request: Request, kind: type[T]) -> T:
    raw = await request.optional_body(_MAX_BODY)
    return kind() if not raw else read_json(raw, kind)


_PROBLEMS = (
    "malformed",
    "not-found",
    "wrong-state",
    "timeout",
    "payload-too-large",
    "unsupported-media-type",
)

OPERATIONS = [
    Operation(
        method="GET",
        path="/api/workflows",
        name="list_workflows",
        handler=list_workflows,
        summary="List workflows, newest first: jobs that have children and no parent",
        query=WorkflowsQuery,
        answer=WorkflowsOut,
        problems=("malformed",),
    ),
    Operation(
        method="GET",
        path="/api/workflows/{id}",
        name="get_workflow",
        handler=get_workflow,
        summary="A job and the state of its family",
        answer=WorkflowOut,
        problems=("not-found",),
    ),
    Operation(
        method="GET",
        path="/api/workflows/{id}/graph",
        name="get_graph",
        handler=get_graph,
        summary="The nodes of a workflow and what each of them comes after",
        query=GraphQuery,
        answer=GraphOut,
        problems=("malformed", "not-found"),
    ),
    Operation(
        method="GET",
        path="/api/workflows/{id}/children",
        name="list_children",
        handler=list_children,
        summary="The children of a job in the order in which they were stored",
        query=ChildrenQuery,
        answer=ChildrenOut,
        problems=("malformed", "not-found"),
    ),
    Operation(
        method="POST",
        path="/api/workflows/{id}/cancel",
        name="cancel_workflow",
        handler=cancel_workflow,
        summary="Cancel a workflow with all its jobs; dry_run only says what that stops",
        body=DryRunIn,
        is_body_optional=True,
        answer=CancelWorkflowOut,
        problems=_PROBLEMS,
    ),
    Operation(
        method="POST",
        path="/api/workflows/{id}/retry",
        name="retry_workflow",
        handler=retry_workflow,
        summary="Run again what failed, was skipped or was stopped; dry_run only counts it",
        body=DryRunIn,
        is_body_optional=True,
        answer=RetryWorkflowOut,
        problems=_PROBLEMS,
    ),
    Operation(
        method="POST",
        path="/api/jobs/{id}/events/{name}",
        name="send_event",
        handler=send,
        summary="Send an event, with any JSON as its value, to a job that waits for it or will",
        body=msgspec.Raw,
        is_body_optional=True,
        answer=EventOut,
        status=202,
        problems=_PROBLEMS,
    ),
]
