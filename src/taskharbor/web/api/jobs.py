"""/api/jobs: list, show, explain, wait for, cancel and retry jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from taskharbor.client.why import look_into
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import MAX_PAGE, CancelResult, Query, Requeued
from taskharbor.errors import InvalidArgument, JobNotFound, NotAllowedInState
from taskharbor.model.checks import check_id
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.search import HINTS, RETRYING, STATES, Search, SearchError, parse_search
from taskharbor.model.search_filter import fits_name
from taskharbor.model.secrets import HIDDEN, hidden_place
from taskharbor.model.state import JobState
from taskharbor.views import (
    WhyView,
    arguments_text,
    instant_text,
    listed_job,
    payload_value,
    why_view,
)
from taskharbor.web.api.answers import (
    CancelOut,
    CountOut,
    JobOut,
    JobsOut,
    ResultOut,
    RetryOut,
    SearchWordsOut,
    TypesOut,
)
from taskharbor.web.api.enqueue import ROOM_AROUND_PAYLOAD, encoded
from taskharbor.web.api.queues import visible_queues
from taskharbor.web.api.schemas import (
    CountQuery,
    DeadQuery,
    JobQuery,
    JobsQuery,
    ResultQuery,
    RetryIn,
    TimesQuery,
)
from taskharbor.web.audit_book import SettingChange
from taskharbor.web.auth import AccessCheck
from taskharbor.web.endpoint import Operation
from taskharbor.web.family_scope import refuse_edit, seen_by
from taskharbor.web.job_surroundings import surroundings
from taskharbor.web.job_walk import JobWalk
from taskharbor.web.paging import link_to_next
from taskharbor.web.parsing import read_instant, read_json
from taskharbor.web.problems import Problem
from taskharbor.web.queue_scope import visible_workers
from taskharbor.web.redaction import job_shown_to
from taskharbor.web.reply import Reply, json_answer
from taskharbor.web.request import Request

_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.01, 0.5, 1.5
MOST_COUNTED = 10_000
"""A count stops here: nobody reads the difference."""
_EVERYTHING = Search()
_STATES = {state.value: state for state in JobState}


async def list_jobs(request: Request) -> Response:
    asked: JobsQuery = request.query
    query = Query(
        queue=queue_asked(request, asked.queue),
        states=states_asked(asked.state),
        type=asked.type,
        key=None if asked.key is None else asked.key.encode(),
        worker_id=asked.worker_id,
        failure_kind=asked.failure_kind,
        newest_first=asked.sort.startswith("-"),
        order_by="ended" if asked.sort.endswith("ended") else "seq",
        limit=asked.limit,
    )
    search = search_asked(asked.q)
    if not asked.q and not asked.args:
        return await answer_page(request, query, asked)
    return await shared(request, lambda: answer_page(request, query, asked, search, with_args=asked.args))


async def shared(request: Request, ask: Callable[[], Awaitable[Reply]]) -> Response:
    """Pages ask the same again and again: those who may see the same get one answer within a second."""
    principal, scope = request.principal, request.scope
    question = (scope["path"], scope["query_string"], principal.queues, principal.sees_payloads)
    return await request.service.shared_answers.get(question, ask)


async def answer_page(
    request: Request,
    query: Query,
    asked: JobsQuery | DeadQuery,
    search: Search = _EVERYTHING,
    *,
    with_args: bool = False,
) -> Reply:
    """One page of jobs without payloads, with the link to the next one."""
    walk = JobWalk(request, search, query, also=_in_time(asked))
    found = await walk.page(asked.limit, asked.cursor)
    args = await _arguments(request, found.jobs) if with_args else {}
    body = JobsOut(
        items=[listed_job(job, args.get(job.id, UNSET)) for job in found.jobs],
        next_cursor=found.cursor,
        looked_at=found.looked_at,
        looked_back_to=instant_text(found.looked_back_to),
        is_all=found.is_all,
    )
    return json_answer(body, headers=link_to_next(request, found.cursor))


async def _arguments(request: Request, jobs: Sequence[JobRecord]) -> dict[str, str | None]:
    """The arguments of jobs by id; a walk reads no payloads, as most jobs of it are not shown."""
    driver = await request.service.driver()
    shown: dict[str, str | None] = {job.id: None for job in jobs}
    if jobs:
        limit = request.service.answer_limit
        async for job_id, job in limit.each(driver, list(shown), now=request.service.now()):
            shown[job_id] = None if job is None else arguments_text(job)
    return shown


async def count_jobs(request: Request) -> Response:
    """Up to 10,000 are counted; a search that only names queues and states costs no walk."""
    asked: CountQuery = request.query
    search = search_asked(asked.q)
    return await shared(request, lambda: _count(request, search))


async def _count(request: Request, search: Search) -> Reply:
    if all(term.field in ("queue", "state") and not term.says(RETRYING) for term in search.terms):
        return json_answer(CountOut(count=await _counted(request, search), exact=True))
    walk = JobWalk(request, search, Query(newest_first=True))
    count, cursor = 0, None
    while True:
        found = await walk.page(min(MAX_PAGE, MOST_COUNTED - count), cursor)
        count, cursor = count + len(found.jobs), found.cursor
        if found.is_all or count >= MOST_COUNTED or walk.is_spent:
            return json_answer(CountOut(count=count, exact=found.is_all))


async def _counted(request: Request, search: Search) -> int:
    """Jobs by queue and state, from the numbers that a store keeps."""
    states = search.states or tuple(JobState)
    queues = [term for term in search.terms if term.field == "queue"]
    return sum(
        getattr(info.counts, state.value)
        for info in visible_queues(request, await request.service.board.look())
        if all(fits_name(term, info.queue) for term in queues)
        for state in states
    )


async def list_types(request: Request) -> Response:
    return json_answer(TypesOut(items=await _types(request)))


async def _types(request: Request) -> list[str]:
    """From workers, runs and the app; no job is read."""
    driver = await request.service.driver()
    if request.principal.queues is not None:
        return []
    known = {one.type for one in await driver.types(now=request.service.now())}
    return sorted(known | {task.name for task in request.service.harbor.tasks})


async def search_words(request: Request) -> Response:
    """For the completion of a search: only names that are known, no job is read."""
    look, principal = await request.service.board.look(), request.principal
    return json_answer(
        SearchWordsOut(
            fields=HINTS,
            states=list(STATES),
            queues=[name for name in look.queues if principal.may_use(name)],
            types=await _types(request),
            workers=[one.report.worker_id for one in visible_workers(principal, look.workers)],
        )
    )


async def get_job(request: Request) -> Response:
    asked: JobQuery = request.query
    job = await job_of(request)
    shown = msgspec.structs.asdict(job_shown_to(request.principal, job, redact=asked.redact))
    return json_answer(JobOut(**shown, **await surroundings(request, job)))


async def why(request: Request) -> Response:
    job = await job_of(request)
    known = (await request.service.board.look()).infos()
    driver = await request.service.driver()
    at, sees = request.service.now(), seen_by(request.principal)
    return json_answer(why_view(await look_into(driver, job.id, now=at, known=known, sees=sees)))


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
    report_ended(answer.ended, request.service.harbor.events)
    request.audited = {"job_id": job.id, "result": answer.result.value}
    request.change = moved(job, answer.state)
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
    if asked.payload is not UNSET:
        _refuse_hidden(job, bytes(asked.payload))
    edit = _edit(request, asked)
    refuse_edit(request.principal, job, edit)
    driver = await request.service.driver()
    [answer] = await driver.requeue(
        [job.id],
        queue=asked.queue,
        edit=edit,
        reset_counts=asked.reset_counts,
        run_at=asked.run_at,
        delay=span(asked.delay_s),
        now=request.service.now(),
    )
    request.audited = {"job_id": job.id}
    if not isinstance(answer, Requeued):
        raise answer
    report_ended(answer.ended, request.service.harbor.events)
    request.change = moved(job, answer.state)
    return json_answer(RetryOut(id=answer.id, state=answer.state, version=answer.version))


def search_asked(text: str, path: str = "$.q") -> Search:
    """The search of a request. Raises Problem `validation`, which marks the wrong place."""
    try:
        return parse_search(text)
    except SearchError as error:
        place = {"at": error.at, "length": error.length, "expected": list(error.expected)}
        fields = [{"path": path, "message": error.what, **place}]
        raise Problem("validation", f"the search is not valid: {error}", fields=fields) from None


def _in_time(asked: TimesQuery) -> Callable[[JobRecord], bool] | None:
    """Stores cannot filter by time: the walk does."""
    times = {
        name: read_instant(name, text)
        for name in TimesQuery.__struct_fields__
        if (text := getattr(asked, name)) is not UNSET
    }
    return (lambda job: _is_in_time(job, times)) if times else None


def _is_in_time(job: JobRecord, times: Mapping[str, datetime]) -> bool:
    at = {"created": job.created_at, "ended": job.finished_at}
    for name, bound in times.items():
        what, _, side = name.partition("_")
        moment = at[what]
        if moment is None or not (moment > bound if side == "after" else moment < bound):
            return False
    return True


def moved(job: JobRecord, state: JobState | None) -> SettingChange:
    return SettingChange({"state": job.state.value}, None if state is None else {"state": state.value})


# ------------------------------------------------------------------ shared


async def job_of(request: Request, *, payloads: bool = True) -> JobRecord:
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
    [job] = await driver.get([job_id], payloads=payloads, now=request.service.now())
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


def _refuse_hidden(job: JobRecord, payload: bytes) -> None:
    """Raises Problem `validation` for `***` where the stored payload has another value.

    A form that was filled with a hidden payload would otherwise store the stars.
    """
    place = hidden_place(msgspec.json.decode(payload), payload_value(job, reveal=True))
    if place is not None:
        message = f"{HIDDEN} marks a hidden value, and would replace it; nothing was changed"
        raise Problem("validation", message, fields=[{"path": f"$.payload{place}", "message": message}])


def _edit(request: Request, asked: RetryIn) -> Edit:
    changes: dict[str, Any] = {
        name: value
        for name in ("priority", "max_attempts", "max_stalls")
        if (value := getattr(asked, name)) is not UNSET
    }
    if asked.timeout_s is not UNSET:
        changes["timeout"] = timedelta(seconds=asked.timeout_s)
    if asked.payload is not UNSET:
        changes["payload"] = encoded(request.service, bytes(asked.payload))
    return Edit(**changes) if changes else NO_EDIT


def queue_asked(request: Request, queue: str | None) -> str | None:
    """The queue to read; for a caller with a single queue, that one."""
    if queue is not None:
        request.require_queue(queue)
        return queue
    own = request.principal.queues
    return next(iter(own)) if own is not None and len(own) == 1 else None


def states_asked(text: str | None) -> tuple[JobState, ...] | None:
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
        path="/api/jobs/count",
        name="count_jobs",
        handler=count_jobs,
        summary="How many jobs match a search, up to 10,000",
        query=CountQuery,
        answer=CountOut,
    ),
    Operation(
        method="GET",
        path="/api/types",
        name="list_types",
        handler=list_types,
        summary="The names of job types that are known",
        answer=TypesOut,
    ),
    Operation(
        method="GET",
        path="/api/search",
        name="search_words",
        handler=search_words,
        summary="What may follow in a search: fields, and known names",
        answer=SearchWordsOut,
    ),
    Operation(
        method="GET",
        path="/api/jobs/{id}",
        name="get_job",
        handler=get_job,
        summary="Everything about a job",
        query=JobQuery,
        answer=JobOut,
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
