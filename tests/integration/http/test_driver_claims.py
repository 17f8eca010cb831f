"""Claims over HTTP by callers who may have disconnected before the answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers import connect, wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.http import HttpDriver
from taskharbor.drivers.messages import Claim, WakeupKind
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import claim, new_job, new_jobs
from taskharbor.testing.http_server import HttpServer
from tests.integration.http.http_fixture import SLOW, record_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder: Path = tmp_path_factory.mktemp("store")
    with HttpServer(f"sqlite:///{folder}/jobs.db?durability=normal") as server:
        yield server


@pytest.fixture
async def driver(server: HttpServer) -> AsyncIterator[HttpDriver]:
    async with HttpDriver.from_url(server.url) as driver:
        yield driver


@pytest.fixture
def mine(request: pytest.FixtureRequest) -> Claim:
    """A claim for a queue of the test's own."""
    return claim(queues=(request.node.name[:100].replace("[", "-").replace("]", "-"),))


def request_of(verb: str, **arguments: object) -> bytes:
    body = wire.encode(arguments)
    return (
        f"POST /api/driver/{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"TaskHarbor-Call: by-hand\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def until_ready(driver: Driver, job_id: str) -> None:
    async with asyncio.timeout(SLOW):
        while (await record_of(driver, job_id)).state is not JobState.READY:
            await asyncio.sleep(0.02)


async def test_calls_written_by_hand_work_as_the_reference_shows_them(server, driver, mine):
    def post(verb: str, arguments: object) -> Any:
        caller = HTTPConnection("127.0.0.1", server.port)
        caller.request(
            "POST", f"/api/driver/{verb}", json.dumps(arguments), {"Content-Type": "application/json"}
        )
        answer = json.loads(caller.getresponse().read())
        caller.close()
        return answer

    [enqueued] = await driver.enqueue([new_job(queue=mine.queues[0])])
    claim = {"queues": [mine.queues[0]], "worker_id": "by-hand", "lease_for": "PT60S"}
    [job] = (await asyncio.to_thread(post, "reserve", {"claim": claim}))["jobs"]
    ack = {"type": "Ack", "lease": {"job_id": job["id"], "token": job["token"]}, "result": "eyJvayI6dHJ1ZX0="}
    [settled] = await asyncio.to_thread(post, "settle", {"settlements": [ack]})

    assert (settled["type"], settled["state"]) == ("Settled", "completed")
    assert (await record_of(driver, enqueued.id)).result == b'{"ok":true}'


async def test_a_job_claimed_for_a_caller_who_is_gone_is_given_back_without_a_stall(server, driver, mine):
    """The server is stopped while the caller asks and dies; then it hands out a job to nobody."""
    [enqueued] = await driver.enqueue([new_job(queue=mine.queues[0], max_stalls=1)])
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(request_of("reserve", claim=mine))
    finally:
        os.kill(server.pid, signal.SIGCONT)

    async with asyncio.timeout(SLOW):
        while (record := await record_of(driver, enqueued.id)).starts == 0:
            await asyncio.sleep(0.02)
    await until_ready(driver, enqueued.id)

    record = await record_of(driver, enqueued.id)
    assert (record.starts, record.stalls, record.attempts) == (1, 0, 0)
    [job] = (await driver.reserve(mine)).jobs
    assert job.id == enqueued.id


async def test_a_claim_that_a_task_gave_up_is_given_back(driver, mine):
    [enqueued] = await driver.enqueue([new_job(queue=mine.queues[0], max_stalls=1)])
    for steps in range(6):
        call = asyncio.ensure_future(driver.reserve(mine))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    record = await record_of(driver, enqueued.id)

    assert (record.state, record.stalls) == (JobState.READY, 0)


async def test_a_listener_hears_of_a_cancel_that_it_missed(driver, mine):
    [enqueued] = await driver.enqueue([new_job(queue=mine.queues[0])])
    await driver.reserve(mine)
    await driver.cancel([enqueued.id])

    wakeups = driver.wakeups(mine.queues, mine.worker_id)
    async with asyncio.timeout(SLOW):
        async for hint in wakeups:
            if hint.kind is WakeupKind.CANCEL:
                break
    await wakeups.aclose()

    assert hint.job_id == enqueued.id


async def test_hints_go_on_after_a_restart_of_the_server(tmp_path):
    with HttpServer(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as server:
        async with connect(server.url) as driver:
            wakeups = driver.wakeups(("kit",), "w")
            async with asyncio.timeout(SLOW):
                await anext(wakeups)  # every new listener gets a hint to look
                server.kill()
                await asyncio.to_thread(server.start)
                await anext(wakeups)
                await driver.enqueue(new_jobs(1))
                await anext(wakeups)
            await wakeups.aclose()


async def test_a_server_stops_cleanly_while_callers_listen(tmp_path):
    with HttpServer(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as server:
        driver = await HttpDriver.from_url(server.url).open()
        wakeups = driver.wakeups(("kit",), "w")
        await asyncio.wait_for(anext(wakeups), SLOW)

        await asyncio.wait_for(asyncio.to_thread(server.stop), SLOW)

        await wakeups.aclose()
        await driver.close()
