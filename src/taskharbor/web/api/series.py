"""GET /api/series: numbers over time, from the logbook."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.errors import InvalidArgument
from taskharbor.model.log_series import window
from taskharbor.views import instant_text
from taskharbor.web.api.answers import MarkOut, SeriesOut
from taskharbor.web.api.schemas import SeriesQuery
from taskharbor.web.endpoint import Operation
from taskharbor.web.marks import Mark, marks_for
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.series import SeriesAnswer


async def series(request: Request) -> Response:
    """Series and marks of a window; without a logbook in the store there are none."""
    asked: SeriesQuery = request.query
    service = request.service
    look = await service.board.look()
    now = service.board.time_of(look)
    names = _names(request, asked)
    reader = await service.series()
    if reader is None:
        found = SeriesAnswer(*window(asked.window, now), [])
        return json_answer(_answer(found, [], is_kept=False))
    found = await reader.read(asked.window, now, by=asked.by, names=names, audience=request.principal.queues)
    service.marks.note(look.workers)
    seen = await service.marks.seen_by(request.principal)
    marks = marks_for(seen, names if asked.by == "queue" else None)
    return json_answer(_answer(found, marks, is_kept=True))


def _names(request: Request, asked: SeriesQuery) -> list[str] | None:
    if asked.names is None:
        return None
    if asked.by == "total":
        raise InvalidArgument("names are for by=queue and by=type")
    names = [name for name in asked.names.split(",") if name]
    if asked.by == "queue":
        for name in names:
            request.require_queue(name)
    return names


def _answer(found: SeriesAnswer, marks: list[Mark], *, is_kept: bool) -> SeriesOut:
    return SeriesOut(
        since=instant_text(found.since) or "",
        until=instant_text(found.until) or "",
        step_s=found.step.total_seconds(),
        series=found.series,
        marks=[
            MarkOut(at=instant_text(mark.at) or "", kind=mark.kind, text=mark.text, by=mark.by)
            for mark in sorted(marks, key=lambda one: one.at)
            if found.since <= mark.at < found.until
        ],
        is_kept=is_kept,
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/series",
        name="series",
        handler=series,
        summary="Numbers over time: arrivals, ends, waits and runs, by queue or type",
        query=SeriesQuery,
        answer=SeriesOut,
    ),
]
