"""/api/queues: counts and settings of queues; `*` is the whole harbor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import UNSET, structs
from starlette.responses import Response

from taskharbor.client.needs import QueueNow, Rates
from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_name
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES, QueueRules, QueueSettings, Retention
from taskharbor.views import RulesView, plain, queue_view, rules_view
from taskharbor.web.api.answers import CancelWaitingOut, QueueOut, QueuesOut, ScaleOut
from taskharbor.web.api.schemas import CancelWaitingIn, QueueIn, RateIn, RetentionIn, ScaleQuery
from taskharbor.web.audit_book import SettingChange
from taskharbor.web.board import BoardLook
from taskharbor.web.board_view import harbor_now, queue_row
from taskharbor.web.endpoint import Operation
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.sentences import queue_sentence

_MAX_BODY = 16 * 1024
_FOR_ALL = "These settings hold for every queue, in addition to its own."


async def list_queues(request: Request) -> Response:
    """Every queue that has a job or settings; the harbor's own settings are under `/api/queues/*`."""
    look = await request.service.board.look()
    now = request.service.board.time_of(look)
    items = [queue_view(info, now) for info in visible_queues(request, look)]
    return json_answer(QueuesOut(items=items, age_s=request.service.board.age_s(look)))


async def get_queue(request: Request) -> Response:
    """One queue. An unused name is an empty queue."""
    board, queue = request.service.board, _queue_of(request)
    look = await board.look()
    info, now = _info(look, queue), harbor_now(board, look, request.principal)
    view = queue_view(info, now.at)
    row = queue_row(
        QueueNow(info=info, rates=look.rates.get(queue, Rates()), target_s=board.target_s(queue)),
        now.workers,
        now.at,
    )
    text = _FOR_ALL if queue == EVERY_QUEUE else queue_sentence(row)
    return json_answer(QueueOut(**structs.asdict(view), age_s=board.age_s(look), text=text))


async def configure(request: Request) -> Response:
    queue = _queue_of(request)
    asked = read_json(await request.body(_MAX_BODY), QueueIn)
    if isinstance(asked.fail_queue, str):
        request.require_queue(asked.fail_queue)  # failures of a queue make jobs there
    return await _store(request, QueueSettings(queue=queue, **settings_in(asked)))


async def pause(request: Request) -> Response:
    return await _store(request, QueueSettings(queue=_queue_of(request), paused=True))


async def resume(request: Request) -> Response:
    return await _store(request, QueueSettings(queue=_queue_of(request), paused=False))


async def cancel_waiting(request: Request) -> Response:
    """Cancel the waiting job of a key; a running one continues."""
    queue = _queue_of(request)
    if queue == EVERY_QUEUE:
        raise Problem("not-found", "a key belongs to one queue: name it instead of *")
    asked = read_json(await request.body(_MAX_BODY), CancelWaitingIn)
    driver = await request.service.driver()
    was_there = await driver.cancel_waiting(queue, asked.key.encode(), now=request.service.now())
    request.audited = {"queue": queue, "cancelled": was_there}
    return json_answer(CancelWaitingOut(cancelled=was_there))


async def scale(request: Request) -> Response:
    """How many workers the queue could use now. Running jobs count: their workers are needed."""
    asked: ScaleQuery = request.query
    queue = _queue_of(request)
    if queue == EVERY_QUEUE:
        raise Problem("not-found", "workers are scaled by queue: name one instead of *")
    board = request.service.board
    look = await board.look()
    info = _info(look, queue)
    waiting = 0 if info.rules.paused else info.counts.ready
    work = waiting + info.counts.running
    if info.rules.max_running is not None:
        work = min(work, max(info.rules.max_running, info.counts.running))
    return json_answer(
        ScaleOut(
            desired_workers=-(-work // asked.per_worker),
            ready=info.counts.ready,
            running=info.counts.running,
            oldest_s=queue_view(info, board.time_of(look)).oldest_s,
            age_s=board.age_s(look),
        )
    )


def visible_queues(request: Request, look: BoardLook) -> list[QueueInfo]:
    return [info for info in look.queues.values() if request.principal.may_use(info.queue)]


def _info(look: BoardLook, queue: str) -> QueueInfo:
    rules = look.harbor if queue == EVERY_QUEUE else NO_RULES
    return look.queues.get(queue) or QueueInfo(queue=queue, rules=rules, counts=Counts())


async def _store(request: Request, settings: QueueSettings) -> Response:
    driver = await request.service.driver()
    before = await rules_of(request, settings.queue)
    rules = await driver.configure_queue(settings, now=request.service.now())
    request.audited = {"queue": settings.queue}
    request.service.board.settings_changed(settings.queue, rules)
    request.change = _change(settings, plain(rules_view(before)), plain(rules_view(rules)))
    return json_answer(rules_view(rules))


async def rules_of(request: Request, queue: str) -> QueueRules:
    """The settings of a queue, or of the harbor, as the store has them now."""
    driver = await request.service.driver()
    found = {info.queue: info.rules for info in await driver.queues(now=request.service.now())}
    return found.get(queue, NO_RULES)


def _change(settings: QueueSettings, before: dict[str, Any], after: dict[str, Any]) -> SettingChange:
    named = [name for name in after if getattr(settings, name) is not UNSET]
    return SettingChange(
        {name: before[name] for name in named}, {name: after[name] for name in named}, undo="open"
    )


def _queue_of(request: Request) -> str:
    """The queue named in the path. Raises Problem `not-found` for an invalid name."""
    queue = request.parameter("queue")
    if queue == EVERY_QUEUE:
        request.require_every_queue()
        return queue
    try:
        check_name(queue, "queue")
    except InvalidArgument:
        raise Problem("not-found", "this is not a valid queue name") from None
    request.require_queue(queue)
    return queue


def settings_in(asked: QueueIn) -> dict[str, Any]:
    """The settings that a body names."""
    given = {name: getattr(asked, name) for name in QueueIn.__struct_fields__}
    return {name: _plain(value) for name, value in given.items() if value is not UNSET}


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
        summary="Counts and settings of every queue",
        answer=QueuesOut,
    ),
    Operation(
        method="GET",
        path="/api/queues/{queue}",
        name="get_queue",
        handler=get_queue,
        summary="Counts and settings of a queue; * is the whole harbor",
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
        answer=RulesView,
        problems=("malformed", "not-found", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    *(
        Operation(
            method="POST",
            path=f"/api/queues/{{queue}}/{verb}",
            name=f"{verb}_queue",
            handler=handler,
            summary=summary,
            answer=RulesView,
            problems=("not-found",),
        )
        for verb, handler, summary in (
            ("pause", pause, "Pause a queue: no more jobs start; running ones continue"),
            ("resume", resume, "Resume a queue"),
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
        summary="The number of workers a queue needs, for autoscalers",
        query=ScaleQuery,
        answer=ScaleOut,
        problems=("not-found",),
    ),
]
