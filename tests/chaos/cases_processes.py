"""Workers that are killed, frozen and asked to leave."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from taskharbor.model.state import JobState
from tests.chaos.case import NETWORKED, case
from tests.chaos.world import World

HAND_OVER_SECONDS = 2.0  # beyond the lease: until somebody else has started the job
DRAIN_SECONDS = 10.0  # beyond the lease and the work that is left
PATIENCE_SECONDS = 240.0  # beyond any promise: what takes longer than this will never end


async def drain(world: World, work_left: float = 20.0) -> None:
    """All faults are over: every job ends, and within the promised time.

    The smoke fails there. A full run waits on: a job may be late and not lost.
    """
    most = world.size.lease + DRAIN_SECONDS + work_left
    took = await world.drained(most + (PATIENCE_SECONDS if world.size.is_full else 0.0))
    world.recoveries.append(("drain after the faults", took))
    if took > most:
        world.late.append(f"the jobs that were left took {took:.1f} s, more than the promised {most:.1f} s")


async def is_being_done(world: World, count: int) -> None:
    await world.until(lambda: len(world.lines("begin")) >= count, f"{count} jobs to have begun")


@case("C01", "kill -9 of a worker in the middle of a job")
async def killed_in_the_middle(world: World) -> None:
    workers = [world.worker("-c", "2") for _ in range(2)]
    await world.workers_at_work(2)
    for _ in range(world.size.injections):
        [job_id] = await world.put(world.request(seconds=world.size.lease * 2))
        begun = await world.line("begin", job_id)
        [victim] = [worker for worker in workers if worker.pid == begun["pid"]]
        died = world.kill(victim)
        await world.line("begin", job_id, 2)
        world.recovered("job of a killed worker begun again", died, world.size.lease + HAND_OVER_SECONDS)
        record = (await world.records([job_id]))[job_id]
        assert record is not None
        assert (record.stalls, record.attempts) == (1, 0)
        workers[workers.index(victim)] = world.worker("-c", "2")
        await world.drained(60)


@case("C03", "kill -9 of all workers, new ones after the leases are over")
async def all_killed(world: World) -> None:
    workers = [world.worker("-c", "8") for _ in range(2)]
    ids = await world.put(*(world.request(seconds=3.0) for _ in range(16)))
    await is_being_done(world, 16)
    for worker in workers:
        world.kill(worker)
    await asyncio.sleep(world.size.lease * (3 if world.size.is_full else 1))
    world.worker("-c", "16")
    await drain(world)
    for record in (await world.records(ids)).values():
        assert record is not None
        assert (record.stalls, record.starts) == (1, 2), f"{record.stalls} stalls, {record.starts} starts"


@case("C04", "kill -9 of random workers again and again", smoke=("postgres",))
async def random_kills(world: World) -> None:
    workers = [world.worker("-c", "8") for _ in range(3)]
    await world.workers_at_work(2)
    producing = asyncio.create_task(world.produce(world.size.jobs, world.size.seconds))
    began = time.time()
    while not producing.done():
        await asyncio.sleep(world.chance.uniform(1.0, 5.0) if world.size.is_full else 1.0)
        place = world.chance.randrange(len(workers))
        world.kill(workers[place])
        workers[place] = world.worker("-c", "8")
    await producing
    await drain(world)
    _worked_all_the_time(world, began, time.time())


def _worked_all_the_time(world: World, began: float, ended: float) -> None:
    """Something was done in every ten seconds between the first and the last job.

    That is a bound in seconds, for a machine that has the time to start workers; a minute is one for any.
    """
    ends = sorted(line["at"] for line in world.lines("end"))
    longest = max(later - earlier for earlier, later in zip([began, *ends], ends, strict=False))
    assert longest <= 60.0, f"nothing was done for {longest:.1f} s"
    if longest > 10.0:
        world.late.append(f"nothing was done for {longest:.1f} s, more than the promised 10 s")
    assert ends[-1] <= ended


@case("C08", "SIGTERM to a whole process tree, SIGKILL after the grace time", smoke=("sqlite",))
async def stopped_like_a_container(world: World) -> None:
    """Twice: with time enough to hand jobs back, and with the kill in the middle of that."""
    await _stop_tree(world, grace=1.0, is_cut=False)
    await _stop_tree(world, grace=0.0, is_cut=True)


async def _stop_tree(world: World, grace: float, is_cut: bool) -> None:
    supervisor = world.worker("--processes", "2", "-c", "1", "--grace", f"{grace:g}s")
    ids = await world.put(*(world.request(seconds=2.5) for _ in range(2)))
    for job_id in ids:
        await world.line("begin", job_id)
    tree = [supervisor.pid, *_descendants(supervisor.pid)]
    world.inject(f"SIGTERM to {len(tree)} processes" + (", SIGKILL at once" if is_cut else ""))
    _signal_all(tree, signal.SIGTERM)
    if is_cut:
        _signal_all(tree, signal.SIGKILL)
    else:
        assert await world.exit_code(supervisor) == 0
    await world.until(lambda: not _alive(tree), "all of them to be gone")
    for record in (await world.records(ids)).values():
        assert record is not None
        assert record.attempts == 0
        if not is_cut:
            assert (record.state, record.stalls) == (JobState.READY, 0), record.state
    helper = world.worker("-c", "4")
    await drain(world)
    helper.terminate()
    await world.exit_code(helper)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _state(pid) not in ("", "Z")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@case("C11", "SIGSTOP of a worker for longer than its lease, then SIGCONT")
async def frozen_and_back(world: World) -> None:
    """Its writes are refused, its handler stops in time, the guarded table keeps the other's rows."""
    frozen = world.worker("-c", "2")
    [job_id] = await world.put(world.request("grind", seconds=world.size.lease * 3))
    old = await world.line("begin", job_id)
    await world.freeze(frozen)
    other = world.worker("-c", "2")
    new = await world.line("begin", job_id, 2)
    assert new["fence"] > old["fence"]
    back = world.thaw(frozen)
    stopped = await world.line("stopped", job_id)
    world.recovered("handler of the frozen worker stopped", back, world.size.lease * 0.3 + 1.0)
    assert (stopped["fence"], stopped["reason"]) == (old["fence"], "lease_lost")
    await drain(world)
    [record] = (await world.records([job_id])).values()
    assert record is not None
    assert (record.stalls, record.starts, record.state) == (1, 2, JobState.COMPLETED)
    for worker in (frozen, other):
        worker.terminate()
        assert await world.exit_code(worker) == 0


@case("C12", "SIGSTOP of the supervisor alone", smoke=("sqlite",))
async def frozen_supervisor(world: World) -> None:
    """Workers hold their own leases: they go on as if nothing had happened, and obey it afterwards."""
    supervisor = world.worker("--processes", "2", "-c", "2")
    ids = await world.put(*(world.request(seconds=world.size.lease * 1.5) for _ in range(4)))
    for job_id in ids:
        await world.line("begin", job_id)
    await world.freeze(supervisor)
    await drain(world)
    assert all(record and record.stalls == 0 for record in (await world.records()).values())
    world.thaw(supervisor)
    supervisor.terminate()
    assert await world.exit_code(supervisor) == 0


@case("C14", "SIGSTOP while a settlement is on the wire", stores=NETWORKED, smoke=("postgres",))
async def frozen_in_the_middle_of_an_ack(world: World) -> None:
    """Stored once, counted once, also when the answer is read long after the lease is over."""
    worker = world.worker("-c", "1", through=True)
    for turn in range(world.size.injections):
        [job_id] = await world.put(world.request("grind", seconds=0.5, until=f"held-{turn}"))
        await world.line("begin", job_id)
        held = world.network.hold_after(world.store.ack_request)
        (world.folder / f"held-{turn}").touch()
        await world.line("end", job_id)
        await asyncio.wait_for(held.has_sprung.wait(), 30)
        await world.freeze(worker)
        held.let_go.set()
        await asyncio.sleep(world.size.lease * 1.2)
        [record] = (await world.records([job_id])).values()
        assert record is not None
        assert (record.state, record.starts) == (JobState.COMPLETED, 1)
        world.thaw(worker)
    [again] = await world.put(world.request())
    await world.line("begin", again)  # it works again
    await drain(world)


@case("C15", "SIGSTOP and SIGCONT around the end of the lease, ±50 ms", smoke=("sqlite",))
async def flapping(world: World) -> None:
    lease = 0.8
    workers = [world.worker("-c", "2", lease=lease) for _ in range(3)]
    await world.workers_at_work(3)
    # Three workers each: 500 freezes in a run of a minute a case.
    rounds = int(world.size.seconds * 2.8) if world.size.is_full else 3
    for _ in range(rounds):
        await world.put(*(world.request("grind", seconds=lease / 2) for _ in range(4)))
        for worker in workers:
            await world.freeze(worker)
            await asyncio.sleep(world.chance.uniform(0.0, 0.05))
        await asyncio.sleep(lease + world.chance.uniform(-0.05, 0.05) - 0.1)
        for worker in workers:
            world.thaw(worker)
            await asyncio.sleep(world.chance.uniform(0.0, 0.05))
        await asyncio.sleep(0.3)
    await drain(world)


@case("C23", "8 worker processes with CPU-bound handlers on few cores", smoke=("sqlite",), alone=True)
async def busy_machine(world: World) -> None:
    """Nobody loses a lease because the machine is busy."""
    lease = 5.0
    supervisor = world.worker("--processes", "8" if world.size.is_full else "3", "-c", "2", lease=lease)
    count, seconds = (48, 4.0) if world.size.is_full else (6, 2.0)
    ids = await world.put(*(world.request("crunch", seconds=seconds) for _ in range(count)))
    await world.drained(240)
    records = await world.records(ids)
    stalled = [record.id for record in records.values() if record and record.stalls]
    assert not stalled, f"{len(stalled)} leases were lost on a busy machine"
    supervisor.terminate()
    assert await world.exit_code(supervisor) == 0


@case("C27", "kill -9 between the end of the handler and its settlement", smoke=("postgres",))
async def killed_before_the_ack(world: World) -> None:
    """At least once: it runs again, and the run that did not count is named with its expired lease."""
    victim = world.worker("-c", "1", through=world.store.has_network)
    [job_id] = await world.put(world.request("grind", seconds=0.5, until="deaf"))
    first = await world.line("begin", job_id)
    async with _no_settlements(world):
        (world.folder / "deaf").touch()  # a handler that ended by itself could settle before
        await world.line("end", job_id)
        world.kill(victim)
    world.worker("-c", "1")
    second = await world.line("begin", job_id, 2)
    await drain(world)
    [record] = (await world.records([job_id])).values()
    assert record is not None
    assert (record.starts, record.stalls, record.attempts) == (2, 1, 0)
    assert second["fence"] > first["fence"]


@asynccontextmanager
async def _no_settlements(world: World) -> AsyncIterator[None]:
    """Nothing that the worker says arrives: on the network it is swallowed, a file is locked."""
    if world.store.has_network:
        world.network.is_deaf = True
        yield
        world.network.heal()
        return
    path = world.folder / "jobs.db"
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
        db.execute("begin immediate")
        yield
        db.execute("rollback")
