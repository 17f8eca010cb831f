"""Wake-ups as lines of an answer that does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from msgspec.structs import replace
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from taskharbor.drivers import wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, Wakeup, WakeupKind
from taskharbor.model.state import JobState
from taskharbor.web.call import Call
from taskharbor.web.streams import Place
from taskharbor.web.welcome import Welcome

SIGN_OF_LIFE_SECONDS = 10.0
CHECK_SECONDS = 2.0
"""How often a silent stream asks whether its caller is still welcome."""
_MOST_PAGES = 20


class HintStream(StreamingResponse):
    """The open stream, and its place among the others."""

    def __init__(self, lines: AsyncIterator[bytes], place: Place, headers: dict[str, str]) -> None:
        super().__init__(lines, headers=headers, media_type="application/x-ndjson")
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.leave()


async def wakeup_lines(call: Call, driver: Driver, queues: list[str], worker_id: str) -> AsyncIterator[bytes]:
    """Everything that may have been missed while nobody listened, then hints as they come.

    It ends when the server stops, the caller goes or is not welcome any more; now and then comes an empty
    line, so that both ends notice when the other is not there any more.
    """
    service, welcome = call.service, Welcome(call)
    hints = driver.wakeups(queues, worker_id)
    stopping = asyncio.ensure_future(service.stopping.wait())
    hint: asyncio.Future[Wakeup] | None = None
    try:
        for queue in queues:
            yield _line(Wakeup(WakeupKind.WORK, queue=queue))
        for job_id in await _cancelled(call, driver, worker_id):
            yield _line(Wakeup(WakeupKind.CANCEL, job_id=job_id))
        told_at = service.clock.monotonic()
        while not stopping.done():
            hint = hint or asyncio.ensure_future(hints.__anext__())
            await asyncio.wait((hint, stopping), timeout=CHECK_SECONDS, return_when="FIRST_COMPLETED")
            if not await welcome.holds():
                return
            if hint.done():
                try:
                    told = hint.result()
                except StopAsyncIteration:
                    return
                hint = None
                if await _concerns(call, driver, told):
                    yield _line(told)
                    told_at = service.clock.monotonic()
            elif service.clock.monotonic() >= told_at + SIGN_OF_LIFE_SECONDS - CHECK_SECONDS / 2:
                yield b"\n"
                told_at = service.clock.monotonic()
    finally:
        stopping.cancel()
        if hint is not None:
            hint.cancel()
        await hints.aclose()


def _line(hint: Wakeup) -> bytes:
    return wire.encode(hint) + b"\n"


async def _concerns(call: Call, driver: Driver, hint: Wakeup) -> bool:
    """Whether the caller may hear of it: a job of another queue is not there for a token of some."""
    if hint.job_id is None or call.principal.queues is None:
        return True
    [job] = await driver.get([hint.job_id], payloads=False, now=call.service.now())
    return job is not None and call.principal.may_use(job.queue)


async def _cancelled(call: Call, driver: Driver, worker_id: str) -> list[str]:
    """The jobs of this worker that should stop: it may not have heard of it."""
    query = Query(states=(JobState.RUNNING,), worker_id=worker_id, limit=1000, payloads=False)
    found: list[str] = []
    for _ in range(_MOST_PAGES):
        page = await driver.find(query, now=call.service.now())
        found += [job.id for job in page.jobs if job.cancel_requested and call.principal.may_use(job.queue)]
        if page.cursor is None:
            break
        query = replace(query, cursor=page.cursor)
    return found
