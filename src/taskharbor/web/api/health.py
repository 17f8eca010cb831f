"""/livez and /readyz: health probes, without a token."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from taskharbor.errors import TaskHarborError
from taskharbor.web.api.answers import ProbeOut
from taskharbor.web.endpoint import Operation
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request

_PATIENCE_SECONDS = 5.0


async def livez(request: Request) -> Response:
    """The event loop runs. The store is not checked: restarting us would not bring it back."""
    return json_answer(ProbeOut(status="ok"))


async def readyz(request: Request) -> Response:
    """The store answers, and we are not about to stop."""
    if request.service.stopping.is_set():
        raise Problem("draining", "the server is stopping", headers={"Retry-After": "1"})
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await (await request.service.driver()).info()
        request.service.harbor.driver.outage.answered()
    except (TaskHarborError, TimeoutError) as error:
        request.service.harbor.driver.outage.failed("readyz", error)
        raise Problem(
            "store-unavailable", "the store does not answer", headers={"Retry-After": "1"}
        ) from None
    return json_answer(ProbeOut(status="ok"))


OPERATIONS = [
    Operation(
        method="GET",
        path="/livez",
        name="livez",
        handler=livez,
        summary="Whether the server is alive; the store is not checked",
        query=None,
        answer=ProbeOut,
    ),
    Operation(
        method="GET",
        path="/readyz",
        name="readyz",
        handler=readyz,
        summary="Whether requests can be served: the store answers",
        query=None,
        answer=ProbeOut,
    ),
]
