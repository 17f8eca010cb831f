"""/api/schedules: recurring jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
from starlette.responses import Response

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import MAX_PAGE
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_name
from taskharbor.model.cron import clock_changes
from taskharbor.model.job import NewJob
from taskharbor.model.schedule import Schedule, StoredSchedule, check_schedule, is_undeclared, ticks
from taskharbor.model.state import JobState
from taskharbor.observe.logbook import LogReader
from taskharbor.views import ScheduleView, instant_text, schedule_view, seconds
from taskharbor.web.api.answers import EnqueuedOut, PreviewOut, RunOut, ScheduleOut, SchedulesOut
from taskharbor.web.api.enqueue import ROOM_AROUND_PAYLOAD, check_queues_of, new_job, view
from taskharbor.web.api.schemas import PreviewIn, ScheduleIn
from taskharbor.web.audit_book import SettingChange
from taskharbor.web.endpoint import Operation
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request

_MAX_BODY = 16 * 1024
_SHOWN_TICKS, _SHOWN_RUNS = 3, 20


async def list_schedules(request: Request) -> Response:
    found = await _visible(request, await request.service.driver())
    runs = await _runs(request, [entry.schedule.name for entry in found])
    items = [_listed(request, entry, runs.get(entry.schedule.name, [])) for entry in found]
    return json_answer(SchedulesOut(items=items))


def _listed(request: Request, entry: StoredSchedule, runs: list[RunOut]) -> ScheduleOut:
    view, now = _view(request, entry), request.service.clock.now()
    fields = {name: getattr(view, name) for name in ScheduleView.__struct_fields__}
    coming = list(islice(_ticks(entry, now), _SHOWN_TICKS))
    return ScheduleOut(**fields, next=[instant_text(tick) or "" for tick in coming], runs=runs)


async def _runs(request: Request, names: Sequence[str]) -> dict[str, list[RunOut]]:
    """The last runs of each schedule, from the logbook, with the states of their jobs."""
    driver = await request.service.driver()
    if not driver.capabilities.logbook or not names:
        return {}
    fires = await LogReader(driver).fires(request.service.clock.now())
    shown = {name: fires[name][:_SHOWN_RUNS] for name in names if name in fires}
    ids = [job_id for fired in shown.values() for _, job_id in fired]
    states = await _states_of(request, driver, ids)
    return {
        name: [RunOut(tick=instant_text(at) or "", job=job, state=states.get(job)) for at, job in fired]
        for name, fired in shown.items()
    }


async def _states_of(request: Request, driver: Driver, ids: Sequence[str]) -> dict[str, JobState]:
    found: dict[str, JobState] = {}
    for start in range(0, len(ids), MAX_PAGE):
        part = list(ids[start : start + MAX_PAGE])
        jobs = await driver.get(part, payloads=False, now=request.service.now())
        found |= {job_id: job.state for job_id, job in zip(part, jobs, strict=True) if job is not None}
    return found


async def preview(request: Request) -> Response:
    """When a rule would fire. Nothing is stored."""
    asked = read_json(await request.body(_MAX_BODY), PreviewIn)
    now = request.service.clock.now()
    rule = Schedule(
        name="preview",
        template=NewJob(id="", type="preview"),
        cron=asked.cron,
        every=None if asked.every_s is None else timedelta(seconds=asked.every_s),
        timezone=asked.timezone,
    )
    check_schedule(rule, now)
    coming = list(islice(ticks(rule, now), asked.n))
    changes = [] if asked.cron is None else clock_changes(asked.cron, asked.timezone, now)
    return json_answer(PreviewOut(next=[instant_text(tick) or "" for tick in coming], changes=changes))


async def put_schedule(request: Request) -> Response:
    """Store a schedule under its name. A changed rule skips missed ticks."""
    name = _name_of(request)
    limit = request.service.harbor.driver.max_payload + ROOM_AROUND_PAYLOAD
    asked = read_json(await request.body(limit), ScheduleIn)
    if asked.job.run_at is not None or asked.job.id is not None or asked.job.idempotency_key is not None:
        raise InvalidArgument(
            "the job of a schedule has no id, run_at or idempotency_key: every tick has its own"
        )
    driver = await request.service.driver()
    there = {entry.schedule.name: entry for entry in await driver.schedules(now=request.service.now())}
    if name in there:
        request.require_queue(there[name].schedule.template.queue)
    elif len(there) >= request.service.config.max_schedules:
        raise Problem(
            "rate-limited",
            f"there are {len(there)} schedules already; nothing was stored",
            headers={"Retry-After": "3600"},
        )
    schedule = _schedule(request, name, asked)
    request.service.answer_limit.check_schedules((entry.schedule for entry in there.values()), schedule)
    entry = await driver.put_schedule(schedule, now=request.service.now())
    request.audited = {"schedule": name}
    request.change = SettingChange(_rule(there[name]) if name in there else None, _rule(entry))
    return json_answer(_view(request, entry), 200 if name in there else 201)


async def delete_schedule(request: Request) -> Response:
    entry = await _entry(request)
    driver = await request.service.driver()
    await driver.delete_schedule(entry.schedule.name, now=request.service.now())
    request.audited = {"schedule": entry.schedule.name}
    request.change = SettingChange(_rule(entry), None)
    return Response(status_code=204)


async def pause(request: Request) -> Response:
    return await _set_paused(request, is_paused=True)


async def resume(request: Request) -> Response:
    return await _set_paused(request, is_paused=False)


async def run(request: Request) -> Response:
    """Enqueue its job now, in addition to its ticks, paused or not."""
    entry = await _entry(request)
    handle = await request.service.harbor.client._aenqueue_job(
        msgspec.structs.replace(entry.schedule.template, id=request.service.harbor.client._new_id())
    )
    request.audited = {"schedule": entry.schedule.name, "job_id": handle.id}
    answer = handle.enqueued
    assert answer is not None  # noqa: S101 - a handle that an enqueue made carries its answer
    return json_answer(view(answer), 201)


# ------------------------------------------------------------------


def _schedule(request: Request, name: str, asked: ScheduleIn) -> Schedule:
    job = new_job(request.service, asked.job, "")
    check_queues_of(request, [job])
    return Schedule(
        name=name,
        template=job,
        cron=asked.cron,
        every=None if asked.every_s is None else timedelta(seconds=asked.every_s),
        timezone=asked.timezone,
        misfire=asked.misfire,
        paused=asked.paused,
    )


async def _set_paused(request: Request, *, is_paused: bool) -> Response:
    entry = await _entry(request)
    driver = await request.service.driver()
    changed = msgspec.structs.replace(entry.schedule, paused=is_paused)
    request.audited = {"schedule": entry.schedule.name}
    request.change = SettingChange({"paused": entry.paused}, {"paused": is_paused}, undo="open")
    return json_answer(_view(request, await driver.put_schedule(changed, now=request.service.now())))


def _rule(entry: StoredSchedule) -> dict[str, Any]:
    """What the audit log shows of a schedule: its rule, not the arguments of its job."""
    schedule = entry.schedule
    return {
        "cron": schedule.cron,
        "every_s": seconds(schedule.every),
        "timezone": schedule.timezone,
        "misfire": schedule.misfire,
        "paused": entry.paused,
        "type": schedule.template.type,
        "queue": schedule.template.queue,
    }


async def _visible(request: Request, driver: Driver) -> list[StoredSchedule]:
    found = await driver.schedules(now=request.service.now())
    return [entry for entry in found if request.principal.may_use(entry.schedule.template.queue)]


async def _entry(request: Request) -> StoredSchedule:
    return await entry_of(request, _name_of(request))


async def entry_of(request: Request, name: str) -> StoredSchedule:
    """A schedule that the caller may see. Raises Problem `not-found`."""
    for entry in await _visible(request, await request.service.driver()):
        if entry.schedule.name == name:
            return entry
    raise Problem("not-found", f"there is no schedule {name!r}")


def _name_of(request: Request) -> str:
    name = request.parameter("name")
    try:
        check_name(name, "schedule name")
    except InvalidArgument:
        raise Problem("not-found", "this is not a valid schedule name") from None
    return name


def _view(request: Request, entry: StoredSchedule) -> ScheduleView:
    now = request.service.clock.now()
    return schedule_view(entry, _next_tick(entry, now), now=now)


def _next_tick(entry: StoredSchedule, now: datetime) -> datetime | None:
    return next(_ticks(entry, now), None)


def _ticks(entry: StoredSchedule, now: datetime) -> Iterator[datetime]:
    """None if it is paused, its code is gone, or its time zone is unknown here."""
    try:
        if not entry.paused and not is_undeclared(entry, now):
            yield from ticks(entry.schedule, max(now, entry.last_tick_at))
    except InvalidArgument:
        return


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/schedules",
        name="list_schedules",
        handler=list_schedules,
        summary="List schedules by name",
        answer=SchedulesOut,
    ),
    Operation(
        method="POST",
        path="/api/schedules/preview",
        name="preview_schedule",
        handler=preview,
        summary="When a rule would fire; nothing is stored",
        body=PreviewIn,
        answer=PreviewOut,
        problems=("malformed", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    Operation(
        method="PUT",
        path="/api/schedules/{name}",
        name="put_schedule",
        status=201,
        handler=put_schedule,
        summary="Store a schedule under a name",
        body=ScheduleIn,
        answer=ScheduleView,
        problems=("malformed", "not-found", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    Operation(
        method="DELETE",
        path="/api/schedules/{name}",
        name="delete_schedule",
        handler=delete_schedule,
        summary="Delete a schedule; code that declares it stores it again when it starts",
        status=204,
        problems=("not-found",),
    ),
    *(
        Operation(
            method="POST",
            path=f"/api/schedules/{{name}}/{verb}",
            name=f"{verb}_schedule",
            handler=handler,
            summary=summary,
            answer=answer,
            status=status,
            problems=("not-found",),
        )
        for verb, handler, summary, answer, status in (
            ("pause", pause, "Pause a schedule", ScheduleView, 200),
            ("resume", resume, "Resume a schedule", ScheduleView, 200),
            ("run", run, "Enqueue the job of a schedule now", EnqueuedOut, 201),
        )
    ),
]
