"""Probes: /livez and /readyz."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.testing.servers import free_port
from taskharbor.worker.health import HealthServer


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    return answer.partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /livez HTTP/1.1", b"HTTP/1.1 200 OK"),
        (b"HEAD /livez?verbose HTTP/1.1", b"HTTP/1.1 200 OK"),
        (b"GET /readyz HTTP/1.1", b"HTTP/1.1 503 Service Unavailable"),
        (b"GET /secrets HTTP/1.1", b"HTTP/1.1 404 Not Found"),
        (b"POST /livez HTTP/1.1", b"HTTP/1.1 405 Method Not Allowed"),
        (b"\xff\xfe", b"HTTP/1.1 404 Not Found"),
    ],
)
async def test_probes_are_answered(request_line, status):
    async with HealthServer("127.0.0.1", 0, lambda: True, lambda: False) as server:
        assert await ask(server.port, request_line + b"\r\nHost: x\r\n\r\n") == status


async def test_an_endless_request_is_cut_off():
    async with HealthServer("127.0.0.1", 0, lambda: True, lambda: True) as server:
        assert await ask(server.port, b"GET " + b"x" * 100_000) == b""


async def test_a_supervisor_is_ready_once_its_workers_run(harness):
    port = free_port()
    supervisor = harness.supervisor(health_port=port)

    async def is_ready() -> bool:
        try:
            return (await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")).endswith(b"200 OK")
        except OSError:
            return False

    async with asyncio.timeout(40):
        while not await is_ready():
            await asyncio.sleep(0.05)
    assert (await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")).endswith(b"200 OK")
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_silent_connections_are_few_and_do_not_stay():
    async with HealthServer("127.0.0.1", 0, lambda: True, lambda: True) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(60)]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        done, _ = await asyncio.wait(ends, timeout=30)
        assert len(done) == 60
        assert await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"
        for _, writer in silent:
            writer.close()
