"""Wake-ups as a stream of JSON lines."""

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
from taskharbor.web.auth import AccessCheck
from taskharbor.web.limits import StreamSlot
from taskharbor.web.request import Request

KEEPALIVE_SECONDS = 10.0
CHECK_SECONDS = 2.0
"""How often an idle stream checks the caller's access."""
_MOST_PAGES = 20


class WakeupStream(StreamingResponse):
    """An open stream and the slot it occupies."""

    def __init__(self, lines: AsyncIterator[bytes], slot: StreamSlot, headers: dict[str, str]) -> None:
        super().__init__(lines, headers=headers, media_type="application/x-ndjson")
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slot.release()


async def wakeup_lines(
    request: Request, driver: Driver, queues: list[str], worker_id: str
) -> AsyncIterator[bytes]:
    """First everything that may have been missed before, then wake-ups as they come.

    It ends when the server stops, the caller disconnects or loses access. Empty lines are sent as keep-alive,
    so that both ends notice when the other is gone.
    """
    service, access = request.service, AccessCheck(request)
    wakeups = driver.wakeups(queues, worker_id)
    stopping = asyncio.ensure_future(service.stopping.wait())
    coming: asyncio.Future[Wakeup] | None = None
    try:
        for queue in queues:
            yield _line(Wakeup(WakeupKind.WORK, queue=queue))
        for job_id in await _cancelled(request, driver, worker_id):
            yield _line(Wakeup(WakeupKind.CANCEL, job_id=job_id))
        sent_at = service.clock.monotonic()
        while not stopping.done():
            coming = coming or asyncio.ensure_future(wakeups.__anext__())
            await asyncio.wait((coming, stopping), timeout=CHECK_SECONDS, return_when="FIRST_COMPLETED")
            if not await access.holds():
                return
            if coming.done():
                try:
                    wakeup = coming.result()
                except StopAsyncIteration:
                    return
                coming = None
                if await _concerns(request, driver, wakeup):
                    yield _line(wakeup)
                    sent_at = service.clock.monotonic()
            elif service.clock.monotonic() >= sent_at + KEEPALIVE_SECONDS - CHECK_SECONDS / 2:
                yield b"\n"
                sent_at = service.clock.monotonic()
    finally:
        stopping.cancel()
        if coming is not None:
            coming.cancel()
        await wakeups.aclose()


def _line(wakeup: Wakeup) -> bytes:
    return wire.encode(wakeup) + b"\n"


async def _concerns(request: Request, driver: Driver, wakeup: Wakeup) -> bool:
    """Whether the caller may see it: a limited token sees no jobs of other queues."""
    if wakeup.job_id is None or request.principal.queues is None:
        return True
    [job] = await driver.get([wakeup.job_id], payloads=False, now=request.service.now())
    return job is not None and request.principal.may_use(job.queue)


async def _cancelled(request: Request, driver: Driver, worker_id: str) -> list[str]:
    """Running jobs of this worker with a cancel request, which it may have missed."""
    query = Query(states=(JobState.RUNNING,), worker_id=worker_id, limit=1000, payloads=False)
    found: list[str] = []
    for _ in range(_MOST_PAGES):
        page = await driver.find(query, now=request.service.now())
        found += [
            job.id for job in page.jobs if job.cancel_requested and request.principal.may_use(job.queue)
        ]
        if page.next_cursor is None:
            break
        query = replace(query, cursor=page.next_cursor)
    return found
