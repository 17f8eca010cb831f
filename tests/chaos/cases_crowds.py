"""Very many at once: slow clients, large payloads, workers that all come back in the same second."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from taskharbor.drivers.contract import Driver
from tests.chaos.case import case
from tests.chaos.cases_processes import DRAIN_SECONDS, drain
from tests.chaos.stores import HttpStore
from tests.chaos.world import World

LIMIT_BYTES = 1 << 20
_ENDLESS = b"POST /api/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n" + b" " * 1000
SLOW_CLIENTS = 200
FILLING = 48
"""So many payloads, one at a time, fill the page cache of its SQLite (32 MiB) before anything is measured."""


# ------------------------------------------------------------------ HTTP


@case("C61", "200 clients that send a byte at a time", stores=("http",), alone=True)
async def slow_clients(world: World) -> None:
    """The others are served as before: they wait for nobody."""
    rounds = 300 if world.size.is_full else 60
    async with world.driver.another() as driver:
        before = await _times(driver, rounds)
        crowd = [asyncio.create_task(_dribble(world.store.port)) for _ in range(SLOW_CLIENTS)]
        world.inject(f"{SLOW_CLIENTS} slow clients")
        await asyncio.sleep(0.5)
        during = await _times(driver, rounds)
        for client in crowd:
            client.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
    usual, crowded = (sorted(times)[int(len(times) * 0.99)] for times in (before, during))
    world.facts.append(
        f"99 of 100 looks within {usual * 1000:.1f} ms, beside slow clients {crowded * 1000:.1f} ms"
    )
    if crowded > max(usual * 2, usual + 0.01):
        world.late.append(f"99 of 100 looks took {crowded / usual:.1f} times as long beside slow clients")
    world.worker("-c", "4")
    await world.put(*(world.some_work() for _ in range(20)))
    await drain(world)


async def _times(driver: Driver, rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await driver.count()
        times.append(time.perf_counter() - began)
    return times


async def _dribble(port: int) -> None:
    """A request that never ends; a caller that is cut off comes again."""
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in _ENDLESS:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.2)
            writer.close()
        await asyncio.sleep(0.1)


@case("C62", "1,000 payloads at the limit, and one over it", stores=("http",))
async def large_payloads(world: World) -> None:
    """The server holds a few of them at a time, and says no to what is too large without reading it."""
    assert isinstance(world.store, HttpStore)
    at_once, count = 8, 1000 if world.size.is_full else 16
    world.page = 16  # records that are looked at together: a few MiB, not half a GiB
    cargo = "x" * (LIMIT_BYTES - 200)
    for _ in range(FILLING if world.size.is_full else 4):
        await world.put(world.request(cargo=cargo))
    before = _peak_bytes(world.store.pid)
    for _ in range(0, count, at_once):
        await asyncio.gather(*(world.put(world.request(cargo=cargo)) for _ in range(at_once)))
    grown = _peak_bytes(world.store.pid) - before
    most = 4 * LIMIT_BYTES * at_once
    world.inject(f"{count} payloads of 1 MiB, {at_once} at a time")
    world.facts.append(
        f"the server grew by {grown / LIMIT_BYTES:.0f} MiB for {at_once} payloads of 1 MiB at a time"
    )
    assert grown <= most, f"the server grew by {grown:,} bytes, more than {most:,}"
    status = await _announce(world.store.port, LIMIT_BYTES * 2)
    assert status == 413, f"a payload over the limit was answered {status}"
    world.worker("-c", "4", lease=30.0)  # every claim brings some MiB: this is not about leases
    # By number: to read them all takes long.
    await world.until(lambda: _have_ended(world), "all of them to end", 600.0)


async def _have_ended(world: World) -> bool:
    return (await world.driver.count(["default"]))["default"].completed == len(world.acknowledged)


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(peak) * 1024


async def _announce(port: int, size: int) -> int:
    """The status that a body of this size is answered, before any of it was sent."""
    head = "POST /api/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {size}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    return int(answer.split()[1])


# ------------------------------------------------------------------ workers


@case("C64", "200 workers that all come back after an outage", stores=("valkey", "http"), alone=True)
async def everybody_at_once(world: World) -> None:
    """They come back one by one, and the store has time for its work."""
    processes, workers = (4, 50) if world.size.is_full else (2, 10)
    crowd = [_crowd(world, workers) for _ in range(processes)]
    await world.until(lambda: _are_there(world, processes * workers), "all workers to be there", 180.0)
    await world.store.crash()
    world.inject(f"the store is down for {processes * workers} workers")
    await asyncio.sleep(world.size.lease)
    await world.store.revive()
    back = time.time()
    await world.put(*(world.some_work() for _ in range(40)))
    await world.drained(world.size.lease + DRAIN_SECONDS + 60)
    world.recovered("work of a crowd after the outage", back, 10.0)
    await asyncio.sleep(max(0.0, back + 10.0 - time.time()))
    busy = await _busy_share(world.store.pid)
    world.facts.append(
        f"{processes * workers} workers: the store is {busy:.0%} busy ten seconds after the outage"
    )
    if busy >= 1.0:
        world.late.append(f"the store was {busy:.0%} busy ten seconds after the outage")
    for process in crowd:
        process.terminate()


def _crowd(world: World, workers: int) -> subprocess.Popen[bytes]:
    return world.program([sys.executable, "-m", "tests.chaos.crowd", str(workers), f"{world.size.lease:g}"])


async def _are_there(world: World, count: int) -> bool:
    return len(await world.driver.workers()) >= count


async def _busy_share(pid: int, seconds: float = 2.0) -> float:
    """How much of a core this process and its children use."""
    before = _ticks(pid)
    await asyncio.sleep(seconds)
    return (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / seconds


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
