"""Orderly ends by the clock, and everything at random: limits and keys hold whatever is done to workers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from msgspec.structs import replace

from taskharbor.cli.exit_codes import UNREACHABLE
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.state import JobState
from taskharbor.testing.history import read_history
from tests.chaos.case import case
from tests.chaos.cases_processes import drain
from tests.chaos.world import World

GRACE_SECONDS = 3.0  # of every worker in these runs
CLAIMS_STOP_SECONDS = 0.2


@case("C06", "SIGTERM with jobs longer than the grace time, once and twice")
async def asked_to_leave(world: World) -> None:
    """No claim afterwards, gone in time, jobs handed back and not counted."""
    await _leave(world, is_twice=False, most=GRACE_SECONDS + 1.0)
    await _leave(world, is_twice=True, most=1.0)


async def _leave(world: World, is_twice: bool, most: float) -> None:
    worker = world.worker("-c", "4")
    ids = await world.put(*(world.request(seconds=8.0) for _ in range(8)))
    await world.until(lambda: _begun(world, ids) >= 4, "four of them to have begun")
    stopped_at, injected = time.monotonic(), world.inject("SIGTERM")
    worker.terminate()
    if is_twice:
        await asyncio.sleep(1.2)  # sooner it would be the same wish
        injected = world.inject("SIGTERM again")
        worker.terminate()
    assert await world.exit_code(worker) == 0
    world.recovered(f"exit after {'the second' if is_twice else 'one'} SIGTERM", injected, most)
    _claimed_nothing_after(world, worker.pid, stopped_at + CLAIMS_STOP_SECONDS)
    for record in (await world.records(ids)).values():
        assert record is not None
        assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)
    helper = world.worker("-c", "8")
    await world.drained(90)
    helper.terminate()
    assert await world.exit_code(helper) == 0


def _begun(world: World, ids: list[str]) -> int:
    return len([line for line in world.lines("begin") if line["job"] in ids])


def _claimed_nothing_after(world: World, pid: int, instant: float) -> None:
    events = read_history(world.folder / f"history-worker-{pid}")
    late = [event for event in events if event.op == "grant" and event.t > instant * 1e6]
    assert not late, f"{len(late)} jobs were claimed more than {CLAIMS_STOP_SECONDS} s after SIGTERM"


@case("C66", "everything at random, with limits, rates and keys")
async def everything(world: World) -> None:
    """Kills, freezes, stops, resets, cuts and restarts drawn by the seed; limits and keys hold throughout."""
    await world.recorded.configure_queue(
        QueueSettings(
            queue="default",
            max_running=6,
            execute_rate=RateLimit(60, timedelta(seconds=1)),
            retention=Retention(completed=timedelta(days=30)),
        )
    )
    workers = [_hire(world) for _ in range(3)]
    staffing = asyncio.create_task(_keep_staffed(world, workers))
    try:
        await world.workers_at_work(2)
        producing = asyncio.create_task(_produce(world))
        acts = _acts(world)
        while not producing.done():
            await asyncio.sleep(world.chance.uniform(0.5, 2.0))
            await world.chance.choice(acts)(world, workers)
        await producing
        if world.store.has_network:
            world.network.heal()
        await drain(world, work_left=world.size.seconds + 30.0)
    finally:
        staffing.cancel()


async def _keep_staffed(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    """One that begins while the store is away ends and says so; what looks after it starts another."""
    while True:
        for place, worker in enumerate(workers):
            if worker.poll() == UNREACHABLE:
                workers[place] = _hire(world)
        await asyncio.sleep(0.2)


def _hire(world: World) -> subprocess.Popen[bytes]:
    return world.worker("-c", "4", through=world.store.has_network)


async def _produce(world: World) -> None:
    """Half of them with one of five keys: jobs of a key follow one another, and newer ones replace older."""
    count = min(world.size.jobs, int(world.size.seconds * 20))
    for number in range(count):
        request = world.some_work(longest=0.2)
        if number % 2:
            key = f"key-{world.chance.randrange(5)}"
            world.keyed.update(await world.put(replace(world.request(seconds=0.1), key=key)))
        else:
            await world.put(request)
        await asyncio.sleep(world.size.seconds / count)


Act = Callable[[World, list[subprocess.Popen[bytes]]], Awaitable[None]]


def _acts(world: World) -> list[Act]:
    acts: list[Act] = [_kill_one, _freeze_one, _stop_one]
    if world.store.has_network:
        acts += [_reset_lines, _cut_replies, _restart_server]
    return acts


async def _kill_one(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    place = world.chance.randrange(len(workers))
    world.kill(workers[place])
    workers[place] = _hire(world)


async def _stop_one(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    place = world.chance.randrange(len(workers))
    world.inject("SIGTERM of a worker")
    workers[place].terminate()
    code = await world.exit_code(workers[place])
    # The others while it was still starting.
    assert code in (0, -signal.SIGTERM, UNREACHABLE), f"it ended with {code}"
    workers[place] = _hire(world)


async def _freeze_one(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    worker = world.chance.choice(workers)
    await world.freeze(worker)
    await asyncio.sleep(world.size.lease * world.chance.choice([0.1, 0.9, 1.0, 1.1, 1.5]))
    world.thaw(worker)


async def _reset_lines(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    world.network.reset_all()
    world.inject("all connections reset")


async def _cut_replies(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    world.network.cut_after(".*", times=world.chance.randint(1, 5))
    world.inject("replies lost after the store acted")


async def _restart_server(world: World, workers: list[subprocess.Popen[bytes]]) -> None:
    world.inject("kill -9 of the server")
    await world.store.crash()
    await world.store.revive()
