"""GET /api/board: the whole harbor at one glance, and what needs a person; GET /api/store."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.errors import DriverUnavailable
from taskharbor.views import plain, store_view
from taskharbor.web.api.answers import StoreDetailsOut
from taskharbor.web.board import BoardLook
from taskharbor.web.board_view import BoardOut, board_view
from taskharbor.web.endpoint import Operation
from taskharbor.web.redaction import shown_to
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request


async def board(request: Request) -> Response:
    """The last look. While the store is away, what was seen before, and `is_away`."""
    shared = request.service.board
    return json_answer(board_view(shared, await _last_look(request), request.principal))


async def _last_look(request: Request) -> BoardLook:
    shared = request.service.board
    try:
        return await shared.look()
    except DriverUnavailable:
        if shared.last is None:
            raise
        return shared.last


async def store(request: Request) -> Response:
    service = request.service
    driver = await service.driver()
    begun = service.clock.monotonic()
    info = shown_to(request.principal, await driver.info())
    took = service.clock.monotonic() - begun
    about, can = plain(store_view(info)), plain(driver.capabilities)
    return json_answer(StoreDetailsOut(**about, answers_in_s=round(took, 6), capabilities=can))


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/board",
        name="board",
        handler=board,
        summary="Counts, rates, slots, and what needs a person; one look is shared by all callers",
        answer=BoardOut,
    ),
    Operation(
        method="GET",
        path="/api/store",
        name="store",
        handler=store,
        summary="The store: what it is, how durable, and what it can do",
        answer=StoreDetailsOut,
    ),
]
