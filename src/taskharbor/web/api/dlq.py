"""/api/dlq: dead letters, the jobs that failed for good."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.drivers.family_ends import ended_in, report_ended
from taskharbor.drivers.messages import Deleted, Query, Requeued
from taskharbor.errors import InvalidArgument, JobNotFound, NotAllowedInState
from taskharbor.model.state import JobState
from taskharbor.web.api.answers import JobsOut, RetriedOut, RetryDeadOut
from taskharbor.web.api.jobs import answer_page, job_of, queue_asked, span
from taskharbor.web.api.schemas import DeadQuery, RetryDeadIn
from taskharbor.web.endpoint import Operation
from taskharbor.web.paging import find_page, unsealed
from taskharbor.web.parsing import read_json
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request

_MAX_BODY = 256 * 1024


async def list_dead(request: Request) -> Response:
    asked: DeadQuery = request.query
    query = Query(
        queue=queue_asked(request, asked.queue),
        states=(JobState.FAILED,),
        type=asked.type,
        failure_kind=asked.failure_kind,
        newest_first=asked.sort == "-seq",
        limit=asked.limit,
    )
    return await answer_page(request, query, asked)


async def retry_dead(request: Request) -> Response:
    """Run dead letters again; one result per id."""
    asked = read_json(await request.body(_MAX_BODY), RetryDeadIn)
    if asked.ids and (asked.queue or asked.type or asked.failure_kind):
        raise InvalidArgument("give ids or a filter, not both")
    ids = list(dict.fromkeys(asked.ids)) if asked.ids else await _matching(request, asked)
    items = await _retried(request, ids, asked)
    request.audited = {"jobs": sum(item.result == "retried" for item in items)}
    return json_answer(RetryDeadOut(items=items))


async def delete_dead(request: Request) -> Response:
    """Delete one dead letter."""
    job = await job_of(request)
    if job.state is not JobState.FAILED:
        raise NotAllowedInState(job.id, verb="delete", state=job.state)
    driver = await request.service.driver()
    [answer] = await driver.delete([job.id], now=request.service.now())
    request.audited = {"job_id": job.id}
    if not isinstance(answer, Deleted):
        raise answer
    return Response(status_code=204)


async def _matching(request: Request, asked: RetryDeadIn) -> list[str]:
    """The oldest matching ids, up to the limit; pages of the store may be short."""
    driver = await request.service.driver()
    queue, found, cursor = queue_asked(request, asked.queue), list[str](), None
    while True:
        query = Query(
            queue=queue,
            states=(JobState.FAILED,),
            type=asked.type,
            failure_kind=asked.failure_kind,
            limit=asked.limit - len(found),
            cursor=unsealed(request, cursor),
        )
        jobs, cursor = await find_page(request, driver, query)
        found += [job.id for job in jobs]
        if cursor is None or len(found) >= asked.limit:
            return found


async def _retried(request: Request, ids: list[str], asked: RetryDeadIn) -> list[RetriedOut]:
    """Retry the dead letters among these; the store itself could requeue any finished job."""
    service = request.service
    driver = await service.driver()
    done: dict[str, RetriedOut] = {}
    letters: list[str] = []
    for job_id, job in zip(
        ids, await driver.get(ids, payloads=False, now=service.now()) if ids else [], strict=True
    ):
        if job is None or not request.principal.may_use(job.queue):
            done[job_id] = _retried_out(job_id, "not_found", None, str(JobNotFound(job_id)))
        elif job.state is not JobState.FAILED:
            note = str(NotAllowedInState(job_id, verb="retry_dead", state=job.state))
            done[job_id] = _retried_out(job_id, "refused", job.state, note)
        else:
            letters.append(job_id)
    answers = await driver.requeue(
        letters, reset_counts=asked.reset_counts, delay=span(asked.delay_s), now=service.now()
    )
    report_ended(ended_in(answers), service.harbor.events)
    for job_id, answer in zip(letters, answers, strict=True):
        if isinstance(answer, Requeued):
            done[job_id] = _retried_out(job_id, "retried", answer.state, None)
        else:
            missing = isinstance(answer, JobNotFound)
            done[job_id] = _retried_out(job_id, "not_found" if missing else "refused", None, str(answer))
    return [done[job_id] for job_id in ids]


def _retried_out(job_id: str, result: str, state: JobState | None, note: str | None) -> RetriedOut:
    return RetriedOut(id=job_id, result=result, state=state, note=note)  # type: ignore[arg-type]


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/dlq",
        name="list_dead",
        handler=list_dead,
        summary="List dead letters, newest first",
        query=DeadQuery,
        answer=JobsOut,
        problems=("malformed",),
    ),
    Operation(
        method="POST",
        path="/api/dlq/retry",
        old_path="/api/dlq/replay",
        name="retry_dead",
        handler=retry_dead,
        summary="Run dead letters again",
        body=RetryDeadIn,
        answer=RetryDeadOut,
        problems=("malformed", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    Operation(
        method="DELETE",
        path="/api/dlq/{id}",
        name="delete_dead",
        handler=delete_dead,
        summary="Delete a dead letter",
        status=204,
        problems=("not-found", "wrong-state"),
    ),
]
