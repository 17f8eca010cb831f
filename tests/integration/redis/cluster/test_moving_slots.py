"""A slot moves to another node of the cluster while the children of a family in it end."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import redis

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Settled
from taskharbor.errors import DriverUnavailable
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import MINUTE, START, get_one, new_job
from taskharbor.testing.servers import cluster_url

Answer = TypeVar("Answer")
CHILDREN = 300
QUEUES = ("kit", "far")


def nodes() -> list[redis.Redis]:
    places = cluster_url().removeprefix("redis+cluster://").split(",")
    return [redis.Redis(port=int(place.rpartition(":")[2]), decode_responses=True) for place in places]


class Move:
    """Moves the slot of a key, a few keys at a time, from the node that has it to the next one."""

    def __init__(self, key: str) -> None:
        self._nodes = nodes()
        self._ports = [node.connection_pool.connection_kwargs["port"] for node in self._nodes]
        self._ids = [node.execute_command("CLUSTER MYID") for node in self._nodes]
        self.slot = self._nodes[0].execute_command("CLUSTER KEYSLOT", key)

    def run(self, source: int, target: int) -> None:
        here, there = self._nodes[source], self._nodes[target]
        self._set(there, "IMPORTING", self._ids[source])
        self._set(here, "MIGRATING", self._ids[target])
        while keys := here.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 1):
            here.execute_command("MIGRATE", "127.0.0.1", self._ports[target], "", 0, 5000, "KEYS", *keys)
            time.sleep(0.02)  # steps meet a slot of which one node has some keys and the other the rest
        for node in (there, here, *self._nodes):
            self._set(node, "NODE", self._ids[target])

    def owner(self) -> int:
        """The node that answers for the slot."""
        for first, last, holder, *_ in self._nodes[0].execute_command("CLUSTER SLOTS"):
            if first <= self.slot <= last:
                return self._ports.index(holder[1])
        raise LookupError(self.slot)

    def _set(self, node: redis.Redis, *what: str) -> None:
        node.execute_command("CLUSTER SETSLOT", self.slot, *what)


class Run:
    """Several handles claim and end what there is, until the callback of the family has run."""

    def __init__(self, last: str) -> None:
        self.now = START
        self.ends: Counter[str] = Counter()
        self.refused = 0
        self._last = last

    async def work(self, driver: Driver, name: str) -> None:
        claim = Claim(queues=QUEUES, worker_id=name, limit=3, lease_for=MINUTE)
        while self._last not in self.ends:
            jobs = (await self._again(lambda: driver.reserve(claim, now=self.now))).jobs
            for job in jobs:
                [answer] = await self._again(partial(driver.settle, [Ack(job.lease)], now=self.now))
                self.ends[job.id] += isinstance(answer, Settled)
            if not jobs:
                # A claim whose reply was lost holds its jobs until their leases are over.
                self.now += timedelta(seconds=1)
                await self._again(lambda: driver.promote(now=self.now))
            await asyncio.sleep(0.01)

    async def _again(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Until the cluster answers: while keys of one step lie on two nodes, it asks to come back."""
        while True:
            try:
                return await call()
            except DriverUnavailable:
                self.refused += 1
                await asyncio.sleep(0.02)


def family() -> list[NewJob]:
    """A group whose children lie in two queues, and its callback."""
    root = new_job(bonds=Bonds(done_by="children"))
    kids = [new_job(queue=QUEUES[no % 2], bonds=Bonds(parent=root.id)) for no in range(CHILDREN)]
    return [root, *kids, new_job(bonds=Bonds(after=(root.id,)))]


async def test_a_slot_that_moves_under_a_family_loses_no_child_and_no_callback(driver: Any) -> None:
    root, *kids, then = jobs = family()
    await driver.enqueue(jobs, now=START)
    move, run = Move(f"{{{driver.address.namespace}:kit}}"), Run(then.id)
    source = move.owner()
    target = (source + 1) % 3
    async with AsyncExitStack() as stack:
        handles = [await stack.enter_async_context(driver.another()) for _ in range(4)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number, handle in enumerate(handles):
                tasks.create_task(run.work(handle, f"w{number}"))
            while len(run.ends) < CHILDREN // 10:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(move.run, source, target)
            ended_before = len(run.ends)
            assert move.owner() == target
    await asyncio.to_thread(move.run, target, source)  # other tests have the cluster next

    assert ended_before < CHILDREN
    assert run.refused, "no step met the slot while one node had some of its keys and another the rest"
    assert run.ends == Counter([then.id, *(kid.id for kid in kids)])
    parent = await get_one(driver, root.id)
    assert parent.family is not None
    assert (parent.state, parent.family.total, parent.family.open) == (JobState.COMPLETED, CHILDREN, 0)
    assert (await get_one(driver, then.id)).starts == 1
