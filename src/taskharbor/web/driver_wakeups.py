"""Wake-ups as lines of an answer that does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from msgspec.structs import replace

from taskharbor.drivers import wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, Wakeup, WakeupKind
from taskharbor.model.state import JobState
from taskharbor.web.service import Service

SIGN_OF_LIFE_SECONDS = 10.0
_MOST_PAGES = 20


async def wakeup_lines(
    service: Service, driver: Driver, queues: list[str], worker_id: str
) -> AsyncIterator[bytes]:
    """Everything that may have been missed while nobody listened, then hints as they come.

    It ends when the server stops or the caller goes; now and then comes an empty line, so that both
    ends notice when the other is not there any more.
    """
    hints = driver.wakeups(queues, worker_id)
    stopping = asyncio.ensure_future(service.stopping.wait())
    hint: asyncio.Future[Wakeup] | None = None
    try:
        for queue in queues:
            yield _line(Wakeup(WakeupKind.WORK, queue=queue))
        for job_id in await _cancelled(service, driver, worker_id):
            yield _line(Wakeup(WakeupKind.CANCEL, job_id=job_id))
        while not stopping.done():
            hint = hint or asyncio.ensure_future(hints.__anext__())
            await asyncio.wait((hint, stopping), timeout=SIGN_OF_LIFE_SECONDS, return_when="FIRST_COMPLETED")
            if hint.done():
                with suppress(StopAsyncIteration):
                    yield _line(hint.result())
                    hint = None
                    continue
                return
            yield b"\n"
    finally:
        stopping.cancel()
        if hint is not None:
            hint.cancel()
        await hints.aclose()


def _line(hint: Wakeup) -> bytes:
    return wire.encode(hint) + b"\n"


async def _cancelled(service: Service, driver: Driver, worker_id: str) -> list[str]:
    """The jobs of this worker that should stop: it may not have heard of it."""
    query = Query(states=(JobState.RUNNING,), claimed_by=worker_id, limit=1000)
    found: list[str] = []
    for _ in range(_MOST_PAGES):
        page = await driver.find(query, now=service.now())
        found += [job.id for job in page.jobs if job.cancel_requested]
        if page.cursor is None:
            break
        query = replace(query, cursor=page.cursor)
    return found
