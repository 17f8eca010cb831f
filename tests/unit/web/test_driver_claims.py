"""Jobs that were handed out to callers who are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers import wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claimed
from taskharbor.model.clock import SystemClock
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import claim, new_job
from taskharbor.web.app import create_app


class Door:
    """A server in this event loop, whose callers leave before they are answered."""

    def __init__(self) -> None:
        self.app = create_app(Harbor("memory://"), local_callers_are_admin=True)
        self.grace_is_over = asyncio.Event()
        self.app.service.pause = self._pause  # type: ignore[method-assign]

    async def _pause(self, seconds: float) -> None:
        await self.grace_is_over.wait()

    async def driver(self) -> Driver:
        return await self.app.service.driver()

    async def reserve(self, *, stays: bool, repeat: bytes = b"") -> list[JobRecord]:
        body = wire.encode({"claim": claim()})
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": body}]
        if not stays:
            messages.append({"type": "http.disconnect"})
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [
            (b"content-type", b"application/json"),
            (b"taskharbor-call", b"1"),
            (b"host", b"localhost"),
        ]
        if repeat:
            headers.append((b"taskharbor-repeat", repeat))
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/driver/reserve",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
        }
        await self.app(scope, receive, send)
        assert sent[0]["status"] == 200, sent
        claimed: Claimed = wire.read_answer("reserve", sent[1]["body"])
        return claimed.jobs

    async def grace_ends(self) -> None:
        self.grace_is_over.set()
        for _ in range(10):
            await SystemClock().sleep(0)


@pytest.fixture
async def door() -> Door:
    door = Door()
    await (await door.driver()).enqueue([new_job()])
    return door


async def state(door: Door, job: JobRecord) -> tuple[JobState, int, int]:
    [record] = await (await door.driver()).get([job.id])
    assert record is not None
    return record.state, record.starts, record.stalls


async def test_they_wait_again_after_a_while(door):
    [job] = await door.reserve(stays=False)
    assert await state(door, job) == (JobState.RUNNING, 1, 0)

    await door.grace_ends()

    assert await state(door, job) == (JobState.READY, 1, 0)


async def test_a_caller_who_comes_back_in_time_keeps_them(door):
    [job] = await door.reserve(stays=False)
    [again] = await door.reserve(stays=True, repeat=b"? 0.1")

    await door.grace_ends()

    assert again == job
    assert await state(door, job) == (JobState.RUNNING, 1, 0)


async def test_a_caller_who_comes_back_too_late_gets_a_new_claim(door):
    [job] = await door.reserve(stays=False)
    await door.grace_ends()

    [again] = await door.reserve(stays=True, repeat=b"? 0.1")

    assert (again.id, again.starts) == (job.id, 2)
    assert again.token != job.token


async def test_a_caller_who_stays_keeps_them(door):
    [job] = await door.reserve(stays=True)

    await door.grace_ends()

    assert await state(door, job) == (JobState.RUNNING, 1, 0)
