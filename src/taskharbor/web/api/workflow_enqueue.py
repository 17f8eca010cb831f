"""POST /api/workflows: a graph of jobs by names, stored in one step.

The client's `Workflow` puts it together, so that the checks and their words are the same as in Python. What
is wrong is marked at its place in the body; nothing is stored then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from taskharbor.client.workflow import Node, NodeOptions, Workflow
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.errors import ConfigurationError, InvalidArgument, PayloadError, WorkflowError
from taskharbor.model.bonds import MAX_EDGES
from taskharbor.model.checks import check_new_job
from taskharbor.model.job import NewJob
from taskharbor.model.workflow import placed, placed_id
from taskharbor.tasks.request import Call, Out
from taskharbor.web.api.enqueue import (
    ANY_ID,
    HEADERS,
    REPLAYED,
    at_place,
    check_queues_of,
    encoded_first,
    idempotency_header,
    is_of_app,
    options_of,
    task_call,
    view,
)
from taskharbor.web.api.schemas import JobIn
from taskharbor.web.api.workflow_data import NodeIn, WorkflowEnqueuedOut, WorkflowIn
from taskharbor.web.endpoint import Operation
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.redaction import is_same
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.service import Service
from taskharbor.web.trace_context import traced

_MOST_MARKED = 20
_Wrong = (Problem, InvalidArgument, PayloadError, ConfigurationError)


async def enqueue_workflow(request: Request) -> Response:
    """Store a workflow: 201 if it is new, 200 if its idempotency key belongs to one that is there."""
    service, client = request.service, request.service.harbor.client
    body = read_json(await request.body(service.config.max_batch_bytes), WorkflowIn)
    key = body.idempotency_key or idempotency_header(request)
    flow, template = _put_together(service, body, key)
    root = replace(flow._root(), id=client._new_id())
    jobs = traced(request, [root, *placed(template, root.id)])
    check_queues_of(request, jobs)
    answer = (await client._aenqueue_jobs(jobs))[0]
    await _refuse_key_of_another(request, template, root, answer)
    request.audited = {"job_id": answer.id, "jobs": len(jobs), "result": answer.result.value}
    is_repeat = answer.result is EnqueueResult.DUPLICATE
    shown = view(answer)
    out = WorkflowEnqueuedOut(
        id=shown.id,
        result=shown.result,
        at=shown.at,
        version=shown.version,
        nodes={job.id: placed_id(answer.id, job.id) for job in template},
    )
    headers = {"Location": f"{request.scope.get('root_path', '')}/api/workflows/{answer.id}"}
    return json_answer(out, 200 if is_repeat else 201, headers | (REPLAYED if is_repeat else {}))


def _put_together(service: Service, body: WorkflowIn, key: str | None) -> tuple[Workflow[Any], list[NewJob]]:
    """The workflow of a body, and the jobs of its nodes under their names.

    Raises:
        Problem: `errors` marks the places.
    """
    _check_edges(body)
    options = NodeOptions(
        queue=body.queue, priority=body.priority, requires=body.requires, headers=body.headers
    )
    with _at("$"):
        flow = Workflow[Any](
            service.harbor.client,
            body.name,
            deadline=body.deadline_s,
            tolerate=body.tolerate,
            fail_fast=body.fail_fast,
            idempotency_key=key,
            options=options,
        )
    nodes = [_add(service, flow, node, f"$.nodes[{index}]") for index, node in enumerate(body.nodes)]
    places = {node.name: f"$.nodes[{index}]" for index, node in enumerate(nodes)}
    for label, add_last in (("on_failure", flow.on_failure), ("always", flow.always)):
        last: JobIn | None = getattr(body, label)
        if last is not None:
            with _at(f"$.{label}"):
                places[add_last(_call(service, last, {})).name] = f"$.{label}"
    _check_names(flow, body)
    try:
        template = flow._template()
    except WorkflowError as error:
        raise _marked(error, [f"{places[name]}.after" for name in error.nodes] or ["$.nodes"]) from None
    for job in template:
        with _at(places[job.id]):
            check_new_job(replace(job, id=ANY_ID, bonds=None), service.clock.now())
    return flow, template


def _add(service: Service, flow: Workflow[Any], node: NodeIn, place: str) -> Node[Any]:
    with _at(place):
        if (node.job is None) == (node.event is None):
            raise InvalidArgument("a node has a job, or waits for an event: give one of the two")
        if node.event is not None:
            if node.name is None or node.results or node.when != "success" or node.deadline_s is not None:
                raise InvalidArgument(
                    "a node that waits for an event has a name, and no results, when or deadline_s; "
                    "its timeout_s is in event"
                )
            return flow.event(
                node.name, after=node.after, timeout=node.event.timeout_s, optional=node.optional
            )
    assert node.job is not None  # noqa: S101 - for the type checker
    with _at(f"{place}.job"):
        call = _call(service, node.job, node.results)
    with _at(place):
        return flow.add(
            call,
            name=node.name,
            after=node.after,
            when=node.when,
            optional=node.optional,
            deadline=node.deadline_s,
        )


def _call(service: Service, job: JobIn, results: dict[str, str]) -> Call[Any]:
    """The call of a node: checked against the signature of its task, if the app has it."""
    if job.id is not None:
        raise InvalidArgument("a node has no id of its own: it is made of the workflow's id and its name")
    outs = {parameter: Out(name) for parameter, name in results.items()}
    if not is_of_app(service, job):
        payload = msgspec.json.decode(encoded_first(service, job))
        if outs and not isinstance(payload, dict):
            raise InvalidArgument("results are arguments by name, so the payload must be an object")
        return Call(type=job.type, payload={**payload, **outs} if outs else payload, **options_of(job))
    task, args, kwargs = task_call(service, job)
    try:
        return task.call(*args, **kwargs, **outs)
    except TypeError as error:
        raise InvalidArgument(str(error)) from None


def _check_edges(body: WorkflowIn) -> None:
    """Count the names of other nodes before each is looked up."""
    if (named := sum(len(node.after) + len(node.results) for node in body.nodes)) > MAX_EDGES:
        message = f"after and results name {named:,} nodes; {MAX_EDGES:,} are allowed. Nothing was stored"
        raise Problem("validation", message, fields=[{"path": "$.nodes", "message": message}])


def _check_names(flow: Workflow[Any], body: WorkflowIn) -> None:
    """Look up every name, each at its place."""
    for index, node in enumerate(body.nodes):
        for at, name in enumerate(node.after):
            with _at(f"$.nodes[{index}].after[{at}]"):
                flow._own(name)
        for parameter, name in node.results.items():
            with _at(f"$.nodes[{index}].results.{parameter}"):
                flow._own(name)
    if body.returns is not None:
        with _at("$.returns"):
            flow.returns(flow._own(body.returns))


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Mark what is wrong inside with its place."""
    try:
        yield
    except _Wrong as error:
        raise at_place(place, error) from None


def _marked(error: WorkflowError, places: Sequence[str]) -> Problem:
    fields = [{"path": place, "message": str(error)} for place in places[:_MOST_MARKED]]
    return Problem("validation", str(error), fields=fields)


async def _refuse_key_of_another(
    request: Request, template: Sequence[NewJob], root: NewJob, answer: Enqueued
) -> None:
    """Raises Problem `duplicate-job` when the key belongs to another workflow: every node must be the same.

    The answer has the ids of the nodes that were sent, which must exist; and a producer, who cannot list
    jobs, learns the ids only of what it sent itself.
    """
    if answer.result is not EnqueueResult.DUPLICATE:
        return
    driver = await request.service.driver()
    sent = {job.id: job for job in (replace(root, id=answer.id), *placed(template, answer.id))}
    async for job_id, record in request.service.answer_limit.each(
        driver, list(sent), now=request.service.now()
    ):
        if record is None or not is_same(request.principal, record, sent[job_id]):
            raise Problem(
                "duplicate-job", "this idempotency key belongs to another workflow; nothing was stored"
            )


OPERATIONS = [
    Operation(
        method="POST",
        path="/api/workflows",
        name="enqueue_workflow",
        handler=enqueue_workflow,
        summary="Store a workflow of up to 9,999 jobs in one step: all of it, or nothing",
        body=WorkflowIn,
        answer=WorkflowEnqueuedOut,
        status=201,
        headers=HEADERS,
        problems=("malformed", "duplicate-job", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
]
