"""What can happen to a Valkey or Redis alone: full, emptied, cut short, failed over to a replica behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.errors import LeaseLost, StoreFull, StoreRefused
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack
from taskharbor.testing.servers import ValkeyServer
from tests.chaos.case import case
from tests.chaos.cases_network import no_stalls, works_again
from tests.chaos.cases_processes import drain
from tests.chaos.own_stores import OwnValkey, begun
from tests.chaos.world import World

NOTICED_SECONDS = 1.0  # beyond a heartbeat


@asynccontextmanager
async def asking(server: ValkeyServer) -> AsyncIterator[Any]:
    import redis.asyncio as redis

    async with redis.Redis(port=server.port) as admin:
        yield admin


async def own_valkey(world: World) -> OwnValkey:
    store = await OwnValkey.begin(world.folder)
    await world.move(store)
    return store


@case("C36", "fail-over to a replica that lags behind", stores=("valkey",))
async def lagging_replica(world: World) -> None:
    """What had reached the replica is there, what had not is named, and no lease of before writes."""
    store = await own_valkey(world)
    replica = ValkeyServer()
    store.others.append(await begun(replica, replica.start))
    async with asking(store.server) as first, asking(replica) as second:
        await follow(world, first, second, store.server.port)
        reached, behind, stale = await _lag_and_die(world, store, first, second)
    store.hand_over_to(replica)
    world.network.target_port = replica.port
    world.inject("the replica takes its place")
    world.forget_jobs()
    await world.come_back()
    await _judge_fail_over(world, reached, behind, stale)
    await works_again(world, time.time(), "work after the fail-over")
    await drain(world)


async def follow(world: World, first: Any, second: Any, port: int) -> None:
    await first.config_set("repl-diskless-sync-delay", 0)
    await second.replicaof("127.0.0.1", port)
    await world.until(lambda: has_all(first, second), "the replica to have everything")


async def has_all(first: Any, second: Any) -> bool:
    there, here = await first.info("replication"), await second.info("replication")
    is_linked = here.get("master_link_status") == "up"
    return bool(is_linked and here["slave_repl_offset"] == there["master_repl_offset"])


async def _lag_and_die(
    world: World, store: OwnValkey, first: Any, second: Any
) -> tuple[list[str], list[str], list[JobRecord]]:
    """The jobs that have reached the replica, those that have not, and what was claimed in between."""
    world.worker("-c", "4", through=True)
    await world.workers_at_work(1)
    reached = await world.put(*(world.some_work() for _ in range(20)))
    reached += await world.put(*(world.request(seconds=world.size.lease) for _ in range(3)))
    for job_id in reached[-3:]:
        await world.line("begin", job_id)
    await world.until(lambda: has_all(first, second), "the replica to have what was acknowledged")
    await second.replicaof("NO", "ONE")
    world.inject("the replica hears nothing any more")
    behind = await world.put(*(world.some_work() for _ in range(20)))
    claim = Claim(queues=("default",), worker_id="harness", limit=1, lease_for=timedelta(minutes=1))
    stale = (await world.driver.reserve(claim)).jobs
    world.inject("the primary is killed")
    await asyncio.to_thread(store.server.kill)
    return reached, behind, stale


async def _judge_fail_over(
    world: World, reached: list[str], behind: list[str], stale: list[JobRecord]
) -> None:
    there = await world.records(reached)
    gone = [job_id for job_id, record in there.items() if record is None]
    assert not gone, f"{len(gone)} jobs that had reached the replica are gone"
    lost = [job_id for job_id, record in (await world.records(behind)).items() if record is None]
    assert lost, "the replica was not behind at all"
    for job in stale:
        [answer] = await world.driver.settle([Ack(job.lease)])
        assert isinstance(answer, LeaseLost), f"a lease of before was accepted: {answer}"
    info = await world.driver.info()
    assert "took_over" in info.details, "nothing reports that a replica has taken over"
    world.facts.append(
        f"{len(lost)} of {len(behind)} jobs that had not reached it are lost; class {info.durability}; "
        f"took over {info.details['took_over']}"
    )
    await world.until(lambda: _all_over(world, reached), "what had reached the replica to end", 60.0)


async def _all_over(world: World, ids: list[str]) -> bool:
    return all(record and record.state.is_terminal for record in (await world.records(ids)).values())


@case("C51", "no memory left: maxmemory without eviction", stores=("valkey",))
async def no_memory(world: World) -> None:
    """New jobs are refused by name; those that are there are still claimed, extended and ended."""
    store = await own_valkey(world)
    async with asking(store.server) as admin:
        world.worker("-c", "4")
        await world.workers_at_work(1)
        for _ in range(world.size.injections):
            await world.put(*(world.request(seconds=world.size.lease * 0.5) for _ in range(8)))
            await admin.config_set("maxmemory", "1mb")
            world.inject("maxmemory below what is used")
            refused = await _refused(world, 5)
            await drain(world)
            await admin.config_set("maxmemory", 0)
            await works_again(world, time.time(), "new jobs after there was room again")
            world.facts.append(
                f"{refused} enqueues refused as StoreFull; all jobs that were there have ended"
            )
    await no_stalls(world)


async def _refused(world: World, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            await world.driver.enqueue([world.client._new_job(world.request(cargo="x" * 1000))])
        except StoreFull:
            count += 1
    assert count == tries, f"{tries - count} jobs were taken by a full store"
    return count


@case("C52", "the eviction policy changed while workers run", stores=("valkey",))
async def eviction_allowed(world: World) -> None:
    """Nobody new is let in, `info` names the policy, and connected clients can neither enqueue nor claim."""
    store = await own_valkey(world)
    async with asking(store.server) as admin:
        world.worker("-c", "4")
        await world.workers_at_work(1)
        producing = asyncio.create_task(world.produce(min(world.size.jobs, 300), world.size.seconds))
        await admin.config_set("maxmemory-policy", "allkeys-lru")
        changed = world.inject("maxmemory-policy allkeys-lru")
        try:
            async with connect(store.url()):
                raise AssertionError("a new client was let in")
        except StoreRefused as refused:
            world.facts.append(f"a new client gets: {refused}")
        assert (await world.driver.info()).details["maxmemory_policy"] == "allkeys-lru"
        world.recovered("the policy shown by info", changed, 10.0)
        await world.until(lambda: _is_refused(world), "claims to be refused", 60.0)
        world.recovered("claims refused", changed, 10.0)
        await admin.config_set("maxmemory-policy", "noeviction")
        await producing
    await drain(world)


async def _is_refused(world: World) -> bool:
    try:
        await world.driver.reserve(Claim(queues=("nobody",), worker_id="nobody"))
    except StoreRefused:
        return True
    return False


@case("C53", "FLUSHALL while handlers run", stores=("valkey",), smoke=("valkey",))
async def emptied(world: World) -> None:
    """Handlers are stopped within a heartbeat, nothing is written again, and new jobs run."""
    store = await own_valkey(world)
    async with asking(store.server) as admin:
        world.worker("-c", "4")
        await world.workers_at_work(1)
        for _ in range(world.size.injections):
            ids = await world.put(*(world.request(seconds=world.size.lease * 4) for _ in range(4)))
            for job_id in ids:
                await world.line("begin", job_id)
            await admin.flushall()
            since = world.inject("FLUSHALL")
            for job_id in ids:
                stopped = await world.line("stopped", job_id)
                assert stopped["reason"] == "lease_lost", stopped
            world.recovered(
                "handlers stopped after FLUSHALL", since, world.size.lease * 0.3 + NOTICED_SECONDS
            )
            gone = world.forget_jobs()
            await works_again(world, time.time(), "work after FLUSHALL")
            await asyncio.sleep(world.size.lease)  # a late writer has had the time to
            there = [one for one in (await world.records(list(gone))).values() if one is not None]
            assert not there, f"{len(there)} jobs were written again by somebody who came too late"
    await drain(world)


@case("C55", "the end of the append-only file cut off", stores=("valkey",))
async def file_cut(world: World) -> None:
    """It starts, what is there is whole, and what is gone is what came last."""
    store = await own_valkey(world)
    for _ in range(world.size.injections):
        ids = []
        for _ in range(60):
            ids += await world.put(world.some_work())
        await asyncio.to_thread(store.server.kill)
        cut = await asyncio.to_thread(_cut, store.server.folder, world.chance.randrange(1, 20_000))
        world.inject(f"{cut} bytes cut off")
        await store.revive()
        await world.until(world.driver.count, "the server to answer")
        before = world.forget_jobs()
        records = await world.records(ids)
        there = [record is not None for record in records.values()]
        kept = there.index(False) if False in there else len(there)
        assert not any(there[kept:]), "a job is gone although a later one is there"
        world.facts.append(
            f"{cut} bytes cut: {len(there) - kept} of the last {len(ids)} jobs gone, none before"
        )
        world.acknowledged = {job_id: before[job_id] for job_id in ids[:kept]}
        for job_id in world.acknowledged:
            world.given_up.pop(job_id)
        worker = world.worker("-c", "4")
        await drain(world)
        worker.terminate()
        assert await world.exit_code(worker) == 0


def _cut(folder: Path, most: int) -> int:
    """Take bytes from the end of the newest increment; how many."""
    [newest] = sorted(folder.glob("appendonlydir/*.incr.aof"))[-1:]
    size = newest.stat().st_size
    cut = min(most, size - 1)
    with newest.open("r+b") as file:
        file.truncate(size - cut)
    return cut
