"""A real store that goes and comes back, under a worker with heartbeat, wake-ups and scheduler."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from taskharbor import Harbor
from taskharbor.model.state import JobState
from taskharbor.testing.http_server import HttpServer
from taskharbor.testing.servers.postgres import PostgresServer, migrate_blocking
from taskharbor.testing.servers.valkey import ValkeyServer

SLOW = 40.0
SERVERS = {
    "http": lambda folder: HttpServer(f"sqlite:///{folder}/jobs.db"),
    "postgres": lambda _: PostgresServer(durable=True),
    "valkey": lambda _: ValkeyServer(durable=True),
}


@pytest.fixture(params=sorted(SERVERS))
def server(request, tmp_path):
    with SERVERS[request.param](tmp_path) as server:
        yield server


async def until(is_so) -> None:
    async with asyncio.timeout(SLOW):
        while not await is_so():
            await asyncio.sleep(0.05)


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_one_line_when_it_goes_and_one_when_it_is_back(server, caplog):
    caplog.set_level(logging.INFO)
    if isinstance(server, PostgresServer):
        await asyncio.to_thread(migrate_blocking, server.url)
    harbor = Harbor(server.url)

    @harbor.task
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    worker = harbor.worker(lease="20s", heartbeat=timedelta(seconds=1))
    working = asyncio.create_task(worker.arun())
    try:
        first = await nap.aenqueue(0.0)
        await first.aresult(timeout=SLOW)
        held = await nap.aenqueue(8.0)
        await until(lambda: in_state(held, JobState.RUNNING))
        caplog.clear()

        await asyncio.to_thread(server.stop)
        await asyncio.sleep(5)
        await asyncio.to_thread(server.start)
        await until(lambda: is_logged(caplog, "answers again"))
        await held.aresult(timeout=SLOW)
        later = await nap.aenqueue(0.0)
        await later.aresult(timeout=SLOW)
    finally:
        worker.stop(now=True)
        await asyncio.wait_for(working, SLOW)
        await harbor.aclose()

    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    gone, back = [line for line in messages if "the store" in line]
    assert "does not answer" in gone
    assert "answers again after" in back
    assert messages == [gone, back]


async def in_state(handle, state) -> bool:
    return (await handle.arefresh()).state is state


async def is_logged(caplog, words) -> bool:
    return any(words in record.getMessage() for record in caplog.records)
