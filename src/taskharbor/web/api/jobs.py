"""/api/jobs: list, show, explain, wait for, cancel and retry jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from taskharbor.client.why import look_into
from taskharbor.drivers.messages import CancelResult, Query, Requeued
from taskharbor.errors import InvalidArgument, JobNotFound, NotAllowedInState
from taskharbor.model.checks import check_id
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.views import JobDetails, WhyView, job_view, why_view
from taskharbor.web.api.answers import CancelOut, JobsOut, ResultOut, RetryOut
from taskharbor.web.api.enqueue import ROOM_AROUND_PAYLOAD, encoded
from taskharbor.web.api.schemas import JobQuery, JobsQuery, ResultQuery, RetryIn, TimesQuery
from taskharbor.web.auth import AccessCheck
from taskharbor.web.endpoint import Operation
from taskharbor.web.paging import find_page, link_to_next, unsealed
from taskharbor.web.parsing import read_instant, read_json
from taskharbor.web.problems import Problem
from taskharbor.web.redaction import job_shown_to
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request

_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.01, 0.5, 1.5
_MOST_PAGES = 10
_STATES = {state.value: state for state in JobState}


async def list_jobs(request: Request) -> Response:
    asked: JobsQuery = request.query
    query = Query(
        queue=queue_asked(request, asked.queue),
        states=_states(asked.state),
        type=asked.type,
        key=None if asked.key is None else asked.key.encode(),
        worker_id=asked.worker_id,
        failure_kind=asked.failure_kind,
        newest_first=asked.sort == "-seq",
        limit=asked.limit,
        cursor=unsealed(request, asked.cursor),
    )
    return await answer_page(request, query, asked)


async def answer_page(request: Request, query: Query, asked: TimesQuery) -> Response:
    """One page of jobs without payloads, with the link to the next one."""
    jobs, cursor = await _page_in_time(request, query, asked)
    body = JobsOut(items=[job_view(job) for job in jobs], next_cursor=cursor)
    return json_answer(body, headers=link_to_next(request, cursor))


async def get_job(request: Request) -> Response:
    asked: JobQuery = request.query
    return json_answer(job_shown_to(request.principal, await job_of(request), redact=asked.redact))


async def why(request: Request) -> Response:
    job = await job_of(request)
    found = await look_into(await request.service.driver(), job.id, now=request.service.now())
    return json_answer(why_view(found))


async def result(request: Request) -> Response:
    asked: ResultQuery = request.query
    job = await _over_or_late(request, asked.wait_s)
    details = job_shown_to(request.principal, job, redact=asked.redact)
    fields = {name: getattr(details, name) for name in ResultOut.__struct_fields__ if name != "is_over"}
    return json_answer(ResultOut(**fields, is_over=job.state.is_terminal))


async def cancel(request: Request) -> Response:
    job = await job_of(request)
    driver = await request.service.driver()
    [answer] = await driver.cancel([job.id], now=request.service.now())
    request.audited = {"job_id": job.id, "result": answer.result.value}
    if answer.result is CancelResult.NOT_FOUND:
        raise JobNotFound(job.id)
    if answer.result is CancelResult.ALREADY_OVER:
        raise NotAllowedInState(job.id, verb="cancel", state=str(answer.state))
    return json_answer(CancelOut(id=answer.id, result=answer.result, state=answer.state))


async def retry(request: Request) -> Response:
    limit = request.service.harbor.driver.max_payload + ROOM_AROUND_PAYLOAD
    raw = await request.optional_body(limit)
    asked = RetryIn() if not raw else read_json(raw, RetryIn)
    job = await job_of(request)
    driver = await request.service.driver()
    [answer] = await driver.requeue(
        [job.id],
        queue=asked.queue,
        edit=_edit(request, asked),
        reset_counts=asked.reset_counts,
        run_at=asked.run_at,
        delay=span(asked.delay_s),
        now=request.service.now(),
    )
    request.audited = {"job_id": job.id}
    if not isinstance(answer, Requeued):
        raise answer
    return json_answer(RetryOut(id=answer.id, state=answer.state, version=answer.version))


async def _page_in_time(
    request: Request, query: Query, asked: TimesQuery
) -> tuple[list[JobRecord], str | None]:
    """A page of jobs filtered by time. Stores cannot filter by time, so a few pages are searched; the matches
    so far are returned with a cursor."""
    driver, found, cursor = await request.service.driver(), list[JobRecord](), None
    times = {
        name: read_instant(name, text)
        for name in TimesQuery.__struct_fields__
        if (text := getattr(asked, name)) is not UNSET
    }
    for _ in range(_MOST_PAGES):
        part = msgspec.structs.replace(query, limit=query.limit - len(found))
        jobs, cursor = await find_page(request, driver, part)
        found += [job for job in jobs if _is_in_time(job, times)]
        if cursor is None or len(found) == query.limit or not times:
            return found, cursor
        query = msgspec.structs.replace(query, cursor=unsealed(request, cursor))
    return found, cursor


def _is_in_time(job: JobRecord, times: Mapping[str, datetime]) -> bool:
    at = {"created": job.created_at, "ended": job.finished_at}
    for name, bound in times.items():
        what, _, side = name.partition("_")
        moment = at[what]
        if moment is None or not (moment > bound if side == "after" else moment < bound):
            return False
    return True


# ------------------------------------------------------------------ shared


async def job_of(request: Request) -> JobRecord:
    """The job named in the path; jobs in other callers' queues look unknown.

    Raises:
        JobNotFound: there is none.
    """
    job_id = request.parameter("id")
    try:
        check_id(job_id)
    except InvalidArgument:
        raise Problem("not-found", "no job has this id: it is not a lower-case UUID") from None
    driver = await request.service.driver()
    [job] = await driver.get([job_id], now=request.service.now())
    if job is None or not request.principal.may_use(job.queue):
        raise JobNotFound(job_id)
    return job


def span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def _over_or_late(request: Request, wait_s: float) -> JobRecord:
    """The job once it has ended, or its current state when the wait times out or the server stops."""
    service = request.service
    deadline = service.clock.monotonic() + min(wait_s, service.config.max_wait_seconds)
    pause, access = _FIRST_PAUSE, AccessCheck(request)
    gone = asyncio.ensure_future(request.disconnected()) if wait_s else None
    try:
        while True:
            job = await job_of(request)
            left = deadline - service.clock.monotonic()
            if job.state.is_terminal or left <= 0 or service.stopping.is_set() or (gone and gone.done()):
                return job
            await service.pause(min(pause, left))
            await access.check()
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)
    finally:
        if gone is not None:
            gone.cancel()


def _edit(request: Request, asked: RetryIn) -> Edit:
    said: dict[str, Any] = {
        name: value
        for name in ("priority", "max_attempts", "max_stalls")
        if (value := getattr(asked, name)) is not UNSET
    }
    if asked.timeout_s is not UNSET:
        said["timeout"] = timedelta(seconds=asked.timeout_s)
    if asked.payload is not UNSET:
        said["payload"] = encoded(request.service, bytes(asked.payload))
    return Edit(**said) if said else NO_EDIT


def queue_asked(request: Request, queue: str | None) -> str | None:
    """The queue to read; for a caller with a single queue, that one."""
    if queue is not None:
        request.require_queue(queue)
        return queue
    own = request.principal.queues
    return next(iter(own)) if own is not None and len(own) == 1 else None


def _states(text: str | None) -> tuple[JobState, ...] | None:
    if text is None:
        return None
    wrong = [name for name in text.split(",") if name not in _STATES]
    if wrong:
        raise InvalidArgument(f"{ascii(wrong[0])[:80]} is not a state; states are {', '.join(_STATES)}")
    return tuple(_STATES[name] for name in dict.fromkeys(text.split(",")))


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/jobs",
        name="list_jobs",
        handler=list_jobs,
        summary="List jobs, newest first",
        query=JobsQuery,
        answer=JobsOut,
        problems=("malformed",),
    ),
    Operation(
        method="GET",
        path="/api/jobs/{id}",
        name="get_job",
        handler=get_job,
        summary="Everything about a job",
        query=JobQuery,
        answer=JobDetails,
        problems=("not-found",),
    ),
    Operation(
        method="GET",
        path="/api/jobs/{id}/why",
        name="why",
        handler=why,
        summary="Why a job is where it is, and until when",
        answer=WhyView,
        problems=("not-found",),
    ),
    Operation(
        method="GET",
        path="/api/jobs/{id}/result",
        name="result",
        handler=result,
        summary="How a job ended; can wait for the end",
        query=ResultQuery,
        answer=ResultOut,
        problems=("not-found",),
    ),
    *(
        Operation(
            method=method,
            path="/api/jobs/{id}/cancel",
            name=name,
            handler=cancel,
            summary="Cancel a job: at once if it waits, by its worker if it runs",
            answer=CancelOut,
            problems=("not-found", "wrong-state"),
        )
        for method, name in (("POST", "cancel"), ("DELETE", "cancel_by_delete"))
    ),
    Operation(
        method="POST",
        path="/api/jobs/{id}/retry",
        name="retry",
        handler=retry,
        summary="Run a finished job again under the same id",
        body=RetryIn,
        is_body_optional=True,
        answer=RetryOut,
        problems=(
            "malformed",
            "not-found",
            "duplicate-job",
            "timeout",
            "payload-too-large",
            "unsupported-media-type",
        ),
    ),
]
