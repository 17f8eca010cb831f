"""/api/failures: why jobs fail, grouped by cause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.cause import marked_message
from taskharbor.model.common_arguments import InCommon, in_common, values_in
from taskharbor.model.job import JobRecord
from taskharbor.model.log_series import window
from taskharbor.model.search import RETRYING, parse_search
from taskharbor.model.state import JobState
from taskharbor.views import instant_text, listed_job, payload_value
from taskharbor.web.api.answers import CauseJob, CauseOut, CountOut, FailureOut, FailuresOut
from taskharbor.web.api.schemas import FailuresQuery, SnoozeIn
from taskharbor.web.audit_book import SettingChange
from taskharbor.web.dead_letters import failed_at
from taskharbor.web.endpoint import Operation
from taskharbor.web.failures import QUIET_BEFORE, CauseStatus, FailingCause
from taskharbor.web.job_walk import Budget, FoundJobs, JobWalk
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.reply import Reply, json_answer
from taskharbor.web.request import Request
from taskharbor.web.sentences import began_sentence, failures_sentence, outlook_sentence, place_of_failure

MOST_DEAD = 10_000
"""Dead letters of a cause that are counted."""
_SHOWN_JOBS = 10
_COMPARED = 100
_ENDED = Query(states=(JobState.COMPLETED, JobState.FAILED), newest_first=True, order_by="ended")
"""What to compare with: a job that still runs or waits may yet fail for the same cause."""
_MAX_BODY = 4096
_FOR_DEAD = (0.15, 20_000)
_FOR_OTHERS = (0.03, 2_000)
"""Seconds and jobs: an answer has one walk of the first kind and up to three of the other, within 250 ms."""
_LONGEST_WINDOW = "30d"
WINDOWS = {
    "15m": "15 minutes",
    "1h": "an hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
    "30d": "30 days",
}


async def list_failures(request: Request) -> Response:
    asked: FailuresQuery = request.query
    if asked.queue is not None:
        request.require_queue(asked.queue)
    question = ("failures", request.scope["query_string"], request.principal.queues)
    return await request.service.shared_answers.get(question, lambda: _listed(request, asked))


async def _listed(request: Request, asked: FailuresQuery) -> Reply:
    driver = await request.service.driver()
    if not driver.capabilities.logbook:
        return json_answer(FailuresOut(items=[], step_s=None, is_kept=False, text=""))
    found, step = await request.service.failures.causes(
        asked.window, request.principal, queue=asked.queue, release=asked.release
    )
    items = [FailureOut(**_fields(one, request.service.clock.now())) for one in found]
    text = failures_sentence(items, WINDOWS[asked.window])
    return json_answer(FailuresOut(items=items, step_s=step.total_seconds(), is_kept=True, text=text))


async def get_failure(request: Request) -> Response:
    """One cause, with its newest jobs, what they have in common, and how many are dead now."""
    failing = await _failing(request, request.query.window)
    cause, who = failing.numbers.cause, request.principal
    question = (cause, request.query.window, who.queues, who.sees_payloads)
    return await request.service.opened_causes.get(question, lambda: _opened(request, failing))


async def _opened(request: Request, failing: FailingCause) -> Reply:
    row = failing.numbers
    dead, died, dead_now = await _dead(request, row.cause, row.type)
    retrying = await _retrying(request, row.cause, row.type)
    since, _, _ = window(request.query.window, request.service.clock.now())
    failing.saw_fail([*died, *map(failed_at, retrying.jobs)], since)
    recent = dead or await _walked(request, f'cause:{row.cause} type:"{row.type}"', Query(newest_first=True))
    others = await _walked(request, f'-cause:{row.cause} type:"{row.type}"', _ENDED)
    return json_answer(
        CauseOut(
            **_fields(failing, request.service.clock.now()),
            jobs=[_failed_job(job) for job in recent[:_SHOWN_JOBS]],
            outlook=_outlook(request, failing, dead_now, retrying),
            common=await _common(request, recent, others),
            looked_at=len(recent),
            dead_now=dead_now,
        )
    )


async def _dead(
    request: Request, cause: str, job_type: str
) -> tuple[list[JobRecord], list[datetime], CountOut]:
    """The dead letters of the newest end, when each failed, and how many there are up to 10,000."""
    search = parse_search(f'cause:{cause} type:"{job_type}"')
    query = Query(states=(JobState.FAILED,), newest_first=True, order_by="ended")
    walk = JobWalk(request, search, query, budget=Budget(*_FOR_DEAD))
    newest: list[JobRecord] = []
    died: list[datetime] = []
    cursor = None
    while True:
        page = await walk.page(min(1000, MOST_DEAD - len(died)), cursor)
        newest += page.jobs[: _COMPARED - len(newest)]
        died += map(failed_at, page.jobs)
        cursor = page.cursor
        if page.is_all or len(died) >= MOST_DEAD or walk.is_spent:
            return newest, died, CountOut(count=len(died), exact=page.is_all)


async def _retrying(request: Request, cause: str, job_type: str) -> FoundJobs:
    """Its jobs that wait for another attempt, as far as a walk sees."""
    search = parse_search(f'state:{RETRYING} cause:{cause} type:"{job_type}"')
    walk = JobWalk(request, search, Query(newest_first=True), budget=Budget(*_FOR_OTHERS))
    return await walk.page(MAX_PAGE, None)


def _outlook(request: Request, failing: FailingCause, dead: CountOut, found: FoundJobs) -> str:
    """What becomes of its jobs: how many try again, and when the next one is due, if the walk saw all."""
    now = request.service.clock.now()
    due = min((job.run_at for job in found.jobs if job.run_at is not None), default=None)
    next_s = None if due is None or not found.is_all else max((due - now).total_seconds(), 0.0)
    retrying = CountOut(count=len(found.jobs), exact=found.is_all)
    return outlook_sentence(failing.attempts, WINDOWS[request.query.window], dead, retrying, next_s)


def _failed_job(job: JobRecord) -> CauseJob:
    listed = listed_job(job)
    return CauseJob(**msgspec.structs.asdict(listed), message=marked_message(job.last_error or ""))


async def _walked(request: Request, text: str, query: Query) -> list[JobRecord]:
    walk = JobWalk(request, parse_search(text), query, budget=Budget(*_FOR_OTHERS))
    return (await walk.page(_COMPARED, None)).jobs


async def _common(request: Request, jobs: Sequence[JobRecord], others: Sequence[JobRecord]) -> list[InCommon]:
    return in_common(await _values(request, jobs), await _values(request, others))


async def _values(request: Request, jobs: Sequence[JobRecord]) -> list[list[tuple[str, str]]]:
    """What each job has: its queue, its worker, and its arguments without secrets."""
    found: list[list[tuple[str, str]]] = []
    if not jobs:
        return found
    driver, limit = await request.service.driver(), request.service.answer_limit
    async for _, job in limit.each(driver, [job.id for job in jobs], now=request.service.now()):
        if job is not None:
            worker = job.worker_id or (job.history[-1].worker_id if job.history else "")
            found.append([("queue", job.queue), ("worker", worker), *values_in(payload_value(job))])
    return found


# ------------------------------------------------------------------ what people say


async def mute(request: Request) -> Response:
    return await _say(request, CauseStatus(status="muted"))


async def snooze(request: Request) -> Response:
    asked = read_json(await request.body(_MAX_BODY), SnoozeIn)
    if asked.until != "release":
        until = msgspec.convert(asked.until, datetime) if _is_instant(asked.until) else None
        if until is None or until <= request.service.clock.now():
            raise InvalidArgument("until must be `release`, or an instant in the future with a time zone")
        return await _say(request, CauseStatus(status="snoozed", until=until))
    failing = await _failing(request, _LONGEST_WINDOW)
    return await _say(request, CauseStatus(status="snoozed", release=failing.numbers.release))


async def open_again(request: Request) -> Response:
    return await _say(request, CauseStatus(status="open"))


async def _say(request: Request, status: CauseStatus) -> Response:
    failing = await _failing(request, _LONGEST_WINDOW)
    cause = failing.numbers.cause
    await request.service.failures.say(cause, status)
    request.service.opened_causes.clear()
    request.audited = {"cause": cause}
    request.change = SettingChange({"status": failing.status}, {"status": status.status})
    failing.status = status.status
    return json_answer(FailureOut(**_fields(failing, request.service.clock.now())))


async def _failing(request: Request, window: str) -> FailingCause:
    """The cause in the path. Raises Problem `not-found` if the logbook does not have it."""
    cause, driver = request.parameter("cause"), await request.service.driver()
    if driver.capabilities.logbook:
        found, _ = await request.service.failures.causes(window, request.principal)
        for one in found:
            if one.numbers.cause == cause:
                return one
    raise Problem("not-found", "no attempt failed for this cause in this time")


def _is_instant(text: str) -> bool:
    try:
        return msgspec.convert(text, datetime).tzinfo is not None
    except msgspec.ValidationError:
        return False


def _fields(one: FailingCause, now: datetime) -> dict[str, Any]:
    row = one.numbers
    since_s, last_s = (max((now - at).total_seconds(), 0.0) for at in (one.first_at, one.last_at))
    return {
        "cause": row.cause,
        "type": row.type,
        "title": row.title,
        "frame": row.frame,
        "failure_kind": row.failure_kind,
        "place": place_of_failure(row.frame, row.failure_kind),
        "queues": sorted(one.queues),
        "attempts": one.attempts,
        "dead": one.dead,
        "first_at": instant_text(one.first_at),
        "last_at": instant_text(one.last_at),
        "release": row.release,
        "is_new": one.is_new,
        "began_with": one.began_with,
        "status": one.status,
        "per_step": one.per_step,
        "sample": row.sample,
        "began": began_sentence(one.began_with, since_s, last_s, QUIET_BEFORE.days, is_new=one.is_new),
    }


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/failures",
        name="list_failures",
        handler=list_failures,
        summary="Why attempts failed in a window, grouped by cause",
        query=FailuresQuery,
        answer=FailuresOut,
    ),
    Operation(
        method="GET",
        path="/api/failures/{cause}",
        name="get_failure",
        handler=get_failure,
        summary="One cause: its newest jobs, and what they have in common",
        query=FailuresQuery,
        answer=CauseOut,
        problems=("not-found",),
    ),
    *(
        Operation(
            method="POST",
            path=f"/api/failures/{{cause}}/{verb}",
            name=f"{verb}_cause",
            handler=handler,
            summary=summary,
            body=body,
            answer=FailureOut,
            problems=("malformed", "not-found", "timeout", "payload-too-large", "unsupported-media-type"),
        )
        for verb, handler, summary, body in (
            ("mute", mute, "Leave a cause out of what needs a person", None),
            ("snooze", snooze, "The same until an instant, or until the next release fails for it", SnoozeIn),
            ("open", open_again, "Take back a mute or a snooze", None),
        )
    ),
]
