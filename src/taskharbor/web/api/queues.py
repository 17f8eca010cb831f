"""/api/queues: numbers and settings of queues; `*` is the whole harbor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.drivers.views import View, queue_view, rules_view
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_name
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES, QueueSettings, Retention
from taskharbor.web.api.answers import CancelWaitingOut, QueueOut, QueuesOut, RulesOut, ScaleOut
from taskharbor.web.api.schemas import CancelWaitingIn, NoQuery, QueueIn, RateIn, RetentionIn, ScaleQuery
from taskharbor.web.call import Call
from taskharbor.web.endpoint import Operation
from taskharbor.web.problems import Problem
from taskharbor.web.reading import read_json, read_query
from taskharbor.web.reply import json_answer

_MAX_BODY = 16 * 1024


async def list_queues(call: Call) -> Response:
    """Every queue that has a job or settings; the harbor's own settings are under `/api/queues/*`."""
    read_query(call.scope["query_string"], NoQuery)
    found = await visible_queues(call)
    now = call.service.clock.now()
    return json_answer({"items": [queue_view(info, now) for info in found]})


async def get_queue(call: Call) -> Response:
    """One queue. A queue is a name: one that nobody has used yet is empty."""
    read_query(call.scope["query_string"], NoQuery)
    info = await _info(call, _queue_of(call))
    return json_answer(queue_view(info, call.service.clock.now()))


async def configure(call: Call) -> Response:
    read_query(call.scope["query_string"], NoQuery)
    queue = _queue_of(call)
    asked = read_json(await call.body(_MAX_BODY), QueueIn)
    if isinstance(asked.fail_queue, str):
        call.require_queue(asked.fail_queue)  # failures of a queue make jobs there
    return await _store(call, QueueSettings(queue=queue, **_said(asked)))


async def pause(call: Call) -> Response:
    return await _store(call, QueueSettings(queue=_queue_of(call), paused=True))


async def resume(call: Call) -> Response:
    return await _store(call, QueueSettings(queue=_queue_of(call), paused=False))


async def cancel_waiting(call: Call) -> Response:
    """Cancel the waiting job of a key; a running one goes on."""
    read_query(call.scope["query_string"], NoQuery)
    queue = _queue_of(call)
    if queue == EVERY_QUEUE:
        raise Problem("not-found", "a key belongs to one queue; name it")
    asked = read_json(await call.body(_MAX_BODY), CancelWaitingIn)
    driver = await call.service.driver()
    was_there = await driver.cancel_waiting(queue, asked.key.encode(), now=call.service.now())
    call.audited = {"queue": queue, "cancelled": was_there}
    return json_answer({"cancelled": was_there})


async def scale(call: Call) -> Response:
    """How many workers the queue could use now. Running jobs count: their workers are needed."""
    asked = read_query(call.scope["query_string"], ScaleQuery)
    queue = _queue_of(call)
    if queue == EVERY_QUEUE:
        raise Problem("not-found", "workers are scaled by queue; name one")
    info = await _info(call, queue)
    waiting = 0 if info.rules.paused else info.counts.ready
    work = waiting + info.counts.running
    if info.rules.max_running is not None:
        work = min(work, max(info.rules.max_running, info.counts.running))
    view = queue_view(info, call.service.clock.now())
    return json_answer(
        {
            "desired_workers": -(-work // asked.per_worker),
            "ready": info.counts.ready,
            "running": info.counts.running,
            "oldest_s": view["oldest_s"],
        }
    )


async def visible_queues(call: Call) -> list[QueueInfo]:
    driver = await call.service.driver()
    found = await driver.queues(now=call.service.now())
    return [info for info in found if info.queue != EVERY_QUEUE and call.principal.may_use(info.queue)]


async def _info(call: Call, queue: str) -> QueueInfo:
    driver = await call.service.driver()
    found = {info.queue: info for info in await driver.queues(now=call.service.now())}
    return found.get(queue) or QueueInfo(queue=queue, rules=NO_RULES, counts=Counts())


async def _store(call: Call, settings: QueueSettings) -> Response:
    driver = await call.service.driver()
    rules = await driver.configure_queue(settings, now=call.service.now())
    call.audited = {"queue": settings.queue}
    view: View = rules_view(rules)
    return json_answer(view)


def _queue_of(call: Call) -> str:
    """The queue of the path. A text that is no name leads nowhere, whatever it holds."""
    queue = call.parameter("queue")
    if queue == EVERY_QUEUE:
        call.require_every_queue()
        return queue
    try:
        check_name(queue, "queue")
    except InvalidArgument:
        raise Problem("not-found", "no queue has this name: it is no name at all") from None
    call.require_queue(queue)
    return queue


def _said(asked: QueueIn) -> dict[str, Any]:
    said = {name: getattr(asked, name) for name in QueueIn.__struct_fields__}
    return {name: _plain(value) for name, value in said.items() if value is not UNSET}


def _plain(value: Any) -> Any:
    if isinstance(value, RateIn):
        return RateLimit(value.count, timedelta(seconds=value.per_s))
    if isinstance(value, RetentionIn):
        return Retention(
            completed=_span(value.completed_s),
            failed=_span(value.failed_s),
            cancelled=_span(value.cancelled_s),
        )
    return value


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/queues",
        name="list_queues",
        handler=list_queues,
        summary="Numbers and settings of every queue",
        answer=QueuesOut,
    ),
    Operation(
        method="GET",
        path="/api/queues/{queue}",
        name="get_queue",
        handler=get_queue,
        summary="Numbers and settings of a queue; * is the whole harbor",
        answer=QueueOut,
        problems=("not-found",),
    ),
    Operation(
        method="PATCH",
        path="/api/queues/{queue}",
        name="configure_queue",
        handler=configure,
        summary="Change settings of a queue, or of the harbor under *",
        body=QueueIn,
        answer=RulesOut,
        problems=("malformed", "not-found", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    *(
        Operation(
            method="POST",
            path=f"/api/queues/{{queue}}/{verb}",
            name=f"{verb}_queue",
            handler=handler,
            summary=summary,
            answer=RulesOut,
            problems=("not-found",),
        )
        for verb, handler, summary in (
            ("pause", pause, "Let no more jobs of a queue start; those that run go on"),
            ("resume", resume, "Let the jobs of a queue start again"),
        )
    ),
    Operation(
        method="POST",
        path="/api/queues/{queue}/cancel",
        name="cancel_waiting",
        handler=cancel_waiting,
        summary="Cancel the waiting job of a key, and leave a running one alone",
        body=CancelWaitingIn,
        answer=CancelWaitingOut,
        problems=("malformed", "not-found", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    Operation(
        method="GET",
        path="/api/queues/{queue}/scale",
        name="scale",
        handler=scale,
        summary="One number for autoscalers",
        query=ScaleQuery,
        answer=ScaleOut,
        problems=("not-found",),
    ),
]
