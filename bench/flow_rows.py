"""The measurements of bench_workflows.py on one open store; each answers one row, or several."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from taskharbor import Harbor, JobContext
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Query, Resolution
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack, Park
from taskharbor.model.state import JobState

BATCH = 1000
PAYLOAD = b'{"number":12345}'
CLAIM = Claim(queues=("default",), worker_id="bench", limit=1, lease_for=timedelta(minutes=5))
_entropy = Entropy()


class App:
    """A harbor with the tasks of every row, on a store of its own."""

    def __init__(self, url: str, concurrency: int) -> None:
        self.harbor = Harbor(url)
        self.concurrency = concurrency
        self.waits: list[float] = []
        """Seconds from the line before a call of a child to the line after it."""
        self.step_seconds = 0.0
        self._asked: dict[int, float] = {}
        harbor = self.harbor

        @harbor.task
        async def noop(number: int) -> None:
            return None

        @harbor.task
        async def returns(number: int) -> dict[str, int]:
            return {"number": number}

        @harbor.task
        async def link(number: int = 0) -> int:
            return number + 1

        @harbor.task
        async def steps(ctx: JobContext, count: int) -> None:
            await ctx.astep("first", int)  # perhaps on a connection that must be opened for it
            began = time.perf_counter()
            for number in range(count):
                await ctx.astep(f"step {number}", int)
            self.step_seconds = time.perf_counter() - began

        @harbor.task
        async def caller(ctx: JobContext, count: int) -> None:
            for number in range(count):
                asked = self._asked.setdefault(number, time.perf_counter())
                await ctx.acall(noop.call(number))
                if len(self.waits) == number:  # not on a later run, which remembers this one
                    self.waits.append(time.perf_counter() - asked)

        self.noop, self.returns, self.link, self.steps, self.caller = noop, returns, link, steps, caller

    async def driver(self) -> Driver:
        return await self.harbor.client.adriver()

    async def drain(self, concurrency: int | None = None) -> float:
        """Seconds until one worker has nothing left to do."""
        gc.collect()
        worker = self.harbor.worker(concurrency=concurrency or self.concurrency, scheduler=False)
        began = time.perf_counter()
        await worker.arun(until_idle=True)
        return time.perf_counter() - began

    def new(self, type: str = "noop", **bonds: Any) -> NewJob:
        job_id = _entropy.job_id(self.harbor.client.clock.now())
        return NewJob(id=job_id, type=type, payload=PAYLOAD, bonds=Bonds(**bonds) if bonds else None)


async def completed(app: App, jobs: int) -> None:
    """A rate of jobs that were lost on the way says nothing."""
    counts = (await (await app.driver()).count(["default"]))["default"]
    assert counts.completed == jobs, counts


async def plain(app: App, count: int, type: str = "noop") -> dict[str, float]:
    driver = await app.driver()
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        await driver.enqueue([app.new(type) for _ in range(size)])
    filled = time.perf_counter() - began
    with Rss() as rss:
        drained = await app.drain()
    await completed(app, count)
    return {"fill": count / filled, "drain": count / drained, "rss": rss.grown}


async def fan_in(app: App, count: int) -> dict[str, float]:
    """Children of one open node, stored a thousand a call, and a callback after it."""
    driver = await app.driver()
    root = app.new("root", done_by="children")
    members = app.new("members", parent=root.id, done_by="call")
    callback = app.new("noop", parent=root.id, after=(members.id,))
    began = time.perf_counter()
    await driver.enqueue([root, members, callback])
    for start in range(0, count, BATCH):
        await driver.enqueue([app.new(parent=members.id) for _ in range(min(BATCH, count - start))])
    await driver.resolve([Resolution(id=members.id)])
    filled = time.perf_counter() - began
    with Rss() as rss:
        drained = await app.drain()
    late = await callback_delay(driver, root.id, members.id, callback.id)
    return {"fill": count / filled, "drain": count / drained, "late": late, "rss": rss.grown}


async def callback_delay(driver: Driver, root_id: str, members_id: str, callback_id: str) -> float:
    """Seconds from the end of the last child to the start of the callback, by the clock of the store."""
    root, callback = (record for record in await driver.get([root_id, callback_id]) if record)
    assert root.state is callback.state is JobState.COMPLETED, (root.state, callback.state)
    assert callback.starts == 1
    assert callback.started_at is not None
    return (callback.started_at - await _last_end(driver, members_id)).total_seconds()


async def _last_end(driver: Driver, parent: str) -> datetime:
    """Of the children of this node: later than it comes the end of the node itself."""
    wanted = Query(parent=parent, order_by="ended", newest_first=True, limit=1, payloads=False)
    page = await driver.find(wanted)
    while not page.jobs:
        assert page.next_cursor is not None, f"no child of {parent} has ended"
        page = await driver.find(replace(wanted, cursor=page.next_cursor))
    finished = page.jobs[0].finished_at
    assert finished is not None
    return finished


async def group(app: App, count: int) -> dict[str, float]:
    """`harbor.group(…, then=…)` of children that return a result."""
    flow = app.harbor.group([app.returns.call(number) for number in range(count)], then=app.noop.call(0))
    began = time.perf_counter()
    handle = await flow.aenqueue()
    filled = time.perf_counter() - began
    drained = await app.drain()
    assert (await handle.arefresh()).state is JobState.COMPLETED
    return {"fill": count / filled, "drain": count / drained}


async def graphs(app: App, count: int, per_call: int) -> dict[str, float]:
    """Graphs of 10 nodes and 14 edges; stored so many in one call of the driver, then run by one worker."""
    stored = [_graph(app)._jobs() for _ in range(count)]
    driver = await app.driver()
    began = time.perf_counter()
    for start in range(0, count, per_call):
        await driver.enqueue([job for jobs in stored[start : start + per_call] for job in jobs])
    filled = time.perf_counter() - began
    drained = await app.drain()
    roots = await driver.get([jobs[0].id for jobs in stored[:1000]], payloads=False)
    assert all(root is not None and root.state is JobState.COMPLETED for root in roots)
    return {"fill": 10 * count / filled, "drain": 10 * count / drained}


def _graph(app: App) -> Any:
    """One, three, three, two, one; each layer after some of the one before."""
    flow = app.harbor.workflow("graph")
    add = flow.add
    first = add(app.noop.call(0))
    left, middle, right = (add(app.noop.call(0), after=[first]) for _ in range(3))
    a = add(app.noop.call(0), after=[left, middle])
    b = add(app.noop.call(0), after=[middle, right])
    c = add(app.noop.call(0), after=[right])
    d = add(app.noop.call(0), after=[a, b])
    e = add(app.noop.call(0), after=[b, c])
    add(app.noop.call(0), after=[d, e])
    return flow


async def chain(app: App, count: int) -> dict[str, float]:
    """Links of a chain, and as many plain jobs: each by an exchange that acks one and claims the next."""
    driver = await app.driver()
    await driver.enqueue([app.new() for _ in range(count)])
    bare = await _one_by_one(driver, count)
    links = [app.link.call(), *(app.link for _ in range(count - 1))]
    began = time.perf_counter()
    jobs = app.harbor.chain(*links)._jobs()
    await driver.enqueue(jobs)
    filled = time.perf_counter() - began
    linked = await _one_by_one(driver, count)
    handle = await app.harbor.chain(*links).aenqueue()
    worker = await app.drain(concurrency=4)
    assert await handle.aresult(timeout=60) == count
    return {"bare": bare / count, "link": linked / count, "worker": worker / count, "fill": filled}


async def _one_by_one(driver: Driver, count: int) -> float:
    began = time.perf_counter()
    taken = (await driver.reserve(CLAIM)).jobs
    done = 0
    while taken:
        done += 1
        taken = (await driver.exchange([Ack(taken[0].lease, result=b"1")], CLAIM)).claimed
    assert done == count, done
    return time.perf_counter() - began


async def steps(app: App, count: int) -> dict[str, float]:
    """Steps of one handler, one after the other."""
    handle = await app.steps.aenqueue(count)
    await app.drain(concurrency=1)
    assert len((await handle.arefresh()).steps) == count + 1
    return {"steps": count / app.step_seconds}


async def parks(app: App, count: int) -> dict[str, float]:
    """Park for a child, and come back when it is over: two exchanges; and the same by a worker."""
    driver = await app.driver()
    times = [await _park_once(app, driver) for _ in range(count)]
    calls = min(count, 20)  # each runs the handler again from the top
    await app.caller.aenqueue(calls)
    await app.drain(concurrency=1)
    assert len(app.waits) == calls
    return {"park": statistics.median(times), "call": statistics.median(app.waits)}


async def _park_once(app: App, driver: Driver) -> float:
    parent = app.new()
    await driver.enqueue([parent])
    [running] = (await driver.reserve(CLAIM)).jobs
    child = app.new(parent=parent.id, optional=True)
    await driver.enqueue([child], by=running.lease)
    began = time.perf_counter()
    [taken] = (await driver.exchange([Park(running.lease, (child.id,))], CLAIM)).claimed
    assert taken.id == child.id
    [again] = (await driver.exchange([Ack(taken.lease)], CLAIM)).claimed
    took = time.perf_counter() - began
    assert again.id == parent.id
    await driver.settle([Ack(again.lease)])
    return took


async def cancel(app: App, count: int) -> dict[str, float]:
    """Cancel a parent of so many waiting children: until the answer, and until the last is cancelled."""
    driver = await app.driver()
    root = app.new("root", done_by="call")
    await driver.enqueue([root])
    for start in range(0, count, BATCH):
        await driver.enqueue([app.new(parent=root.id) for _ in range(min(BATCH, count - start))])
    began = time.perf_counter()
    await driver.cancel([root.id])
    marked = time.perf_counter() - began
    assert not (await driver.reserve(CLAIM)).jobs, "a child was handed out after its parent was cancelled"
    while (await driver.promote()).count:
        pass
    took = time.perf_counter() - began
    await _all_cancelled(driver, root.id, count)
    return {"mark": marked, "all": took}


async def _all_cancelled(driver: Driver, root_id: str, count: int) -> None:
    [root] = await driver.get([root_id])
    assert root is not None
    assert root.state is JobState.CANCELLED, root.state
    assert root.family is not None
    assert (root.family.open, root.family.cancelled) == (0, count), root.family
    waiting = await driver.find(Query(parent=root_id, states=(JobState.READY,), limit=1))
    assert not waiting.jobs


class Rss:
    """How much memory this process has taken while something ran, in MB: the most of samples."""

    def __enter__(self) -> Rss:
        gc.collect()
        self._first = self._most = _rss()
        self._sampling = asyncio.get_running_loop().create_task(self._sample())
        return self

    def __exit__(self, *_: object) -> None:
        self._sampling.cancel()
        self._most = max(self._most, _rss())

    @property
    def grown(self) -> float:
        return self._most - self._first

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            self._most = max(self._most, _rss())


def _rss() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
