"""/livez and /readyz: what probes ask, without a token."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import Response

from taskharbor.errors import TaskHarborError
from taskharbor.web.api.answers import ProbeOut
from taskharbor.web.call import Call
from taskharbor.web.endpoint import Operation
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer

_PATIENCE_SECONDS = 5.0
_log = logging.getLogger("taskharbor.server")


async def livez(call: Call) -> Response:
    """The event loop turns. The store is not asked: restarting us would not bring it back."""
    return json_answer({"status": "ok"})


async def readyz(call: Call) -> Response:
    """The store answers, and we are not about to stop."""
    if call.service.stopping.is_set():
        raise Problem("draining", "the server is stopping", headers={"Retry-After": "1"})
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await (await call.service.driver()).info()
    except (TaskHarborError, TimeoutError) as error:
        if call.service.seldom.may("not ready"):
            _log.warning("not ready: %s", str(error) or "the store does not answer in time")
        raise Problem(
            "store-unavailable", "the store does not answer", headers={"Retry-After": "1"}
        ) from None
    return json_answer({"status": "ok"})


OPERATIONS = [
    Operation(
        method="GET",
        path="/livez",
        name="livez",
        handler=livez,
        summary="Whether the server itself is alive; the store is not asked",
        answer=ProbeOut,
    ),
    Operation(
        method="GET",
        path="/readyz",
        name="readyz",
        handler=readyz,
        summary="Whether requests can be served: the store answers",
        answer=ProbeOut,
    ),
]
