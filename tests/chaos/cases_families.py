"""Groups with a callback, while workers and stores die: the callback fires once, and every child counts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.workflow import placed_id
from taskharbor.testing.servers import ValkeyServer
from tests.chaos import app
from tests.chaos.case import NETWORKED, case
from tests.chaos.cases_network import works_again
from tests.chaos.cases_processes import PATIENCE_SECONDS, drain
from tests.chaos.cases_stores import SERVER_BACK_SECONDS
from tests.chaos.cases_valkey import asking, follow, has_all, own_valkey
from tests.chaos.own_stores import begun
from tests.chaos.world import World

MANY = 9_990
"""Nearly as many as one call may store, with the group and its callback."""


@dataclass(frozen=True)
class Group:
    root: str
    children: int

    @property
    def members(self) -> str:
        return placed_id(self.root, "members")

    @property
    def callback(self) -> str:
        return placed_id(self.root, "then")


async def put_group(world: World, children: int) -> Group:
    flow = app.harbor.group([world.request() for _ in range(children)], then=world.request())
    jobs = flow._jobs()
    await world.put_jobs(jobs)
    return Group(jobs[0].id, children)


async def at_most_open(world: World, group: Group, most: int) -> None:
    """Until the store counts no more open children than these."""

    async def are_few() -> bool:
        [members] = await world.driver.get([group.members], payloads=False)
        return members is not None and members.family is not None and members.family.open <= most

    await world.until(are_few, f"{most} open children", PATIENCE_SECONDS)


async def fired_once(world: World, group: Group) -> JobRecord:
    """The group is completed, every child is counted, and the callback began once; its record."""
    ids = [group.root, group.members, group.callback]

    async def is_over() -> bool:
        [root] = await world.driver.get([group.root], payloads=False)
        return root is not None and root.state.is_terminal

    await world.until(is_over, "the group to be over", PATIENCE_SECONDS)
    root, members, callback = (record for record in await world.driver.get(ids) if record is not None)
    assert root.state is members.state is callback.state is JobState.COMPLETED, (root.state, members.state)
    counts = members.family
    assert counts is not None
    assert (counts.total, counts.open, counts.failed) == (group.children, 0, 0), counts
    begun_runs = {line["fence"] for line in world.lines("begin", group.callback)}
    assert 1 <= len(begun_runs) <= callback.starts == callback.stalls + 1, (begun_runs, callback.starts)
    return callback


@case("C70", "kill -9 of a worker in the last second of a large group", smoke=("sqlite",), alone=True)
async def killed_in_the_last_second(world: World) -> None:
    """The worker that counts the last children dies: the callback fires once, after all of them."""
    children = MANY if world.size.is_full else 200
    workers = [world.worker("-c", "20") for _ in range(2)]
    await world.workers_at_work(2)
    for _ in range(world.size.injections):
        began = time.monotonic()
        group = await put_group(world, children)
        await at_most_open(world, group, children // 2)
        a_second = children / 2 / (time.monotonic() - began)
        await at_most_open(world, group, int(world.chance.uniform(0.1, 0.9) * min(a_second, children / 4)))
        victim = world.chance.randrange(len(workers))
        died = world.kill(workers[victim])
        workers[victim] = world.worker("-c", "20")
        await fired_once(world, group)
        world.recovered("callback after the kill", died, world.size.lease + SERVER_BACK_SECONDS)
    await drain(world, work_left=120.0)


@case("C71", "fail-over to a replica behind, in the middle of a group", stores=("valkey",), smoke=("valkey",))
async def fail_over_in_a_group(world: World) -> None:
    """The replica knows fewer ends than there were: those children run again, and the callback fires once."""
    children = 2_000 if world.size.is_full else 200
    store = await own_valkey(world)
    replica = ValkeyServer()
    store.others.append(await begun(replica, replica.start))
    async with asking(store.server) as first, asking(replica) as second:
        await follow(world, first, second, store.server.port)
        for _ in range(2):
            world.worker("-c", "8", through=True)
        await world.workers_at_work(2)
        group = await put_group(world, children)
        await at_most_open(world, group, children // 2)
        await world.until(lambda: has_all(first, second), "the replica to have the group")
        await second.replicaof("NO", "ONE")
        world.inject("the replica hears nothing any more")
        await at_most_open(world, group, children // 3)
        world.inject("the primary is killed")
        await asyncio.to_thread(store.server.kill)
    ended = {line["job"] for line in world.lines("end")}
    store.hand_over_to(replica)
    world.network.target_port = replica.port
    world.inject("the replica takes its place")
    world.forget_jobs()
    await world.come_back()
    await fired_once(world, group)
    runs = [line["job"] for line in world.lines("end")]
    again = {job for job in ended if runs.count(job) > 1}
    world.facts.append(
        f"{len(ended)} of {children:,} children had ended when the primary died; {len(again)} of them ran "
        "again, because the replica had not heard of their end"
    )
    await works_again(world, time.time(), "work after the fail-over")
    await drain(world)


@case("C72", "kill -9 of the server in the middle of a group", stores=NETWORKED, smoke=("postgres",))
async def server_killed_in_a_group(world: World) -> None:
    """An end and its count are one step: after the restart neither is there without the other."""
    children = 3_000 if world.size.is_full else 200
    for _ in range(2):
        world.worker("-c", "8", lease=5.0)
    await world.workers_at_work(2)
    for _ in range(world.size.injections):
        group = await put_group(world, children)
        await at_most_open(world, group, int(children * world.chance.uniform(0.2, 0.8)))
        world.inject("kill -9 of the server")
        await world.store.crash()
        await world.store.revive()
        await works_again(world, time.time(), "work after the restart", SERVER_BACK_SECONDS * 4)
        await fired_once(world, group)
    await drain(world)
