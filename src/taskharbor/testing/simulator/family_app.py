"""Workflows in a simulated world: graphs, groups and durable handlers, and people who interfere with them.

Roots are in the usual queues and are kept; all that is below them is in a queue of its own, which keeps
ended jobs for a second only. The producers also cancel, retry, delete and prune, as the plan
allows, and send events.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.client.groups import Group
from taskharbor.client.workflow import NodeOptions, Workflow
from taskharbor.drivers.messages import Query, Resolution
from taskharbor.errors import DriverError, EventTimeout, TaskHarborError, Unrecoverable
from taskharbor.model.entropy import child_id
from taskharbor.model.family_steps import bonds_of
from taskharbor.model.job import Job, JobRecord, NewJob, Note
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.tasks.request import Call
from taskharbor.testing.simulator.actors import Producer
from taskharbor.testing.simulator.apps import UsualApp
from taskharbor.worker.attempt import JobContext
from taskharbor.worker.worker import Worker

if TYPE_CHECKING:
    from taskharbor.testing.simulator.choices import Choices
    from taskharbor.testing.simulator.family_watch import FamilyWatch

KIN = "kin"
"""The queue of all jobs that have a parent."""
EVENT = "go"
_OPTIONS = NodeOptions(queue=KIN)
_MOST_MEDDLINGS = 4
_OPEN = tuple(state for state in JobState if state not in TERMINAL)


class Part(msgspec.Struct):
    """What a job of a family does: sleep, then fail, or not."""

    seconds: float = 0.0
    fails: bool = False


class Saga(msgspec.Struct):
    """What a durable job does: `timeout` is how long it waits for its event."""

    parts: list[Part]
    sleep: float
    timeout: float
    levels: int = 0


@dataclass
class PartTask:
    """The task `part`, as `ctx.amap` needs it."""

    name: str = "part"

    def call(self, item: Part) -> Call[None]:
        return part_call(item)

    def read_result(self, data: bytes) -> None:
        return None


def part_call(part: Part) -> Call[None]:
    return Call[None](type="part", payload=part, queue=KIN, max_attempts=2, max_stalls=50)


def saga_call(saga: Saga) -> Call[Any]:
    return Call[Any](type="saga", payload=saga, queue=KIN, max_attempts=2, max_stalls=50)


@dataclass
class FamilyApp(UsualApp):
    """The usual jobs, and families among them."""

    roots: list[str] = field(default_factory=list)
    _watch: FamilyWatch | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def equip(self, worker: Worker) -> None:
        super().equip(worker)
        worker.register("part", do_part)
        worker.register("saga", self._do_saga)

    # ------------------------------------------------------------------ what is stored

    async def traffic(self, producer: Producer, client: Client) -> None:
        self._watch = producer.world.watch
        plan = producer.world.plan
        families = max(plan.jobs // plan.producers // 10, 3)
        pause = producer.world.busy_seconds / families
        for _ in range(families):
            await producer.clock.sleep(producer.choices.seconds(0, pause))
            await self._store(producer, _family(producer.choices, client, pause, self._root_queue(producer)))
            for _ in range(producer.choices.whole(1, _MOST_MEDDLINGS)):
                await producer.clock.sleep(producer.choices.seconds(0, pause / _MOST_MEDDLINGS))
                await self._meddle(producer, client)
        await super().traffic(producer, client)
        await self._answer_all(producer)

    async def _answer_all(self, producer: Producer) -> None:
        """An event that was run again has no timeout any more: somebody must come."""
        for root in self.roots:
            while True:
                try:
                    await _resolve_open(producer, root)
                    break
                except DriverError:
                    await producer.clock.sleep(producer.choices.seconds(0.05, 0.5))

    def _root_queue(self, producer: Producer) -> str:
        return producer.choices.pick(self.queues(producer.world.plan))

    async def _store(self, producer: Producer, jobs: list[NewJob]) -> None:
        """Again with the same ids, until it is known to be stored."""
        producer.world.note_ids([job.id for job in jobs])
        while True:
            try:
                await producer.line.enqueue(jobs)
                self.roots.append(jobs[0].id)
                return
            except DriverError:
                await producer.clock.sleep(producer.choices.seconds(0.05, 0.5))

    # ------------------------------------------------------------------ who interferes

    async def _meddle(self, producer: Producer, client: Client) -> None:
        """One thing that people do to a family. Whether it comes too late is the store's business."""
        choices = producer.choices
        root = self.roots[-1 - choices.below(min(len(self.roots), 5))]
        plan = producer.world.plan
        actions = [_send, _send, _prune]
        actions += [_cancel_tree, _cancel_twice, _cancel_member] * plan.has("cancels")
        actions += [_retry, _requeue_member] * plan.has("requeues")
        actions += [_delete] * plan.has("deletes")
        try:
            await choices.pick(actions)(producer, client, root)
        except TaskHarborError:
            return

    # ------------------------------------------------------------------ a durable handler

    async def _do_saga(self, ctx: JobContext, job: Job) -> Any:
        """Steps, a sleep, an event, children by all verbs, and perhaps a saga below."""
        saga = msgspec.json.decode(job.payload, type=Saga)
        first = await ctx.astep("first", self._step, ctx, "first")
        await self._note_again(ctx)
        await ctx.asleep("a while", saga.sleep)
        await ctx.aspawn(part_call(saga.parts[0]), name="beside")
        event = await self._wait(ctx, saga.timeout)
        await ctx.amap(PartTask(), saga.parts, name="mapped", tolerate=None)
        if saga.levels:
            below = msgspec.structs.replace(saga, levels=saga.levels - 1)
            await ctx.acall(saga_call(below), name="below")
        await ctx.agather([part_call(Part(seconds=part.seconds)) for part in saga.parts])
        second = await ctx.astep("second", self._step, ctx, "second")
        return [first, event, second]

    def _step(self, ctx: JobContext, name: str) -> int:
        """Another value in each run, so that a note that changes is seen."""
        if self._watch is not None:
            self._watch.ran_step(ctx.job.id, ctx.fence, name)
        return next(self._numbers)

    async def _note_again(self, ctx: JobContext) -> None:
        """A second value under a name that is taken: the first one stays."""
        durable = ctx._durable
        async with durable.tools.lease_of(durable.leased) as lease:
            await durable.tools.driver.note([Note("first", b"-1", lease=lease)], now=durable.now())

    async def _wait(self, ctx: JobContext, timeout: float) -> Any:
        try:
            value = await ctx.aevent(EVENT, timeout=timeout)
        except EventTimeout:
            value = None
        if self._watch is not None:
            data = None if value is None else msgspec.json.encode(value)
            self._watch.got_event(child_id(ctx.job.id, EVENT), data)
        return value


async def do_part(ctx: JobContext, job: Job) -> None:
    part = msgspec.json.decode(job.payload, type=Part)
    await ctx.clock.sleep(part.seconds)
    if part.fails:
        raise Unrecoverable("no such thing")


# ------------------------------------------------------------------ families


def _family(choices: Choices, client: Client, pause: float, queue: str) -> list[NewJob]:
    """A durable job, a group with callbacks, or a graph; its root in this queue."""
    kind = choices.pick(("saga", "saga", "group", "graph", "graph"))
    if kind == "saga":
        jobs = [client._new_job(saga_call(_saga(choices, pause)))]
    elif kind == "group":
        jobs = _group(choices, client, pause)._jobs()
    else:
        jobs = _graph(choices, client, pause)._jobs()
    return [replace(jobs[0], queue=queue), *jobs[1:]]


def _part(choices: Choices) -> Part:
    return Part(seconds=choices.seconds(0, 1.0), fails=choices.chance(0.1))


def _saga(choices: Choices, pause: float) -> Saga:
    return Saga(
        parts=[_part(choices) for _ in range(choices.whole(1, 3))],
        sleep=choices.seconds(0.01, 0.1) * pause,
        timeout=choices.seconds(0.1, 0.8) * pause,
        levels=int(choices.chance(0.2)),
    )


def _group(choices: Choices, client: Client, pause: float) -> Group[Any]:
    then, on_failure, always = (part_call(Part()) for _ in range(3))
    return Group[Any](
        client,
        "group",
        [part_call(_part(choices)) for _ in range(choices.whole(2, 8))],
        then=then,
        on_failure=on_failure,
        always=always,
        tolerate=choices.pick((0, 0, 1, None)),
        fail_fast=choices.chance(0.3),
        deadline=choices.pick((None, None, choices.seconds(0.2, 1.0) * pause)),
        options=_OPTIONS,
    )


def _graph(choices: Choices, client: Client, pause: float) -> Workflow[Any]:
    """Layers of jobs, a group inside, and a node that waits for an event."""
    flow = Workflow[Any](client, "graph", tolerate=choices.pick((0, 0, 1)), options=_OPTIONS)
    last: list[Any] = []
    for _ in range(choices.whole(2, 4)):
        last = [
            flow.add(part_call(_part(choices)), after=last, optional=choices.chance(0.2))
            for _ in range(choices.whole(1, 3))
        ]
    if choices.chance(0.5):
        last = [flow.add(_group(choices, client, pause), after=last)]
    if choices.chance(0.5):
        timeout = timedelta(seconds=choices.seconds(0.1, 0.8) * pause)
        last = [flow.event(EVENT, after=last, timeout=timeout, optional=choices.chance(0.5))]
        flow.add(part_call(_part(choices)), after=last)
    flow.on_failure(part_call(Part()))
    flow.always(part_call(Part()))
    return flow


# ------------------------------------------------------------------ what people do


async def _member(producer: Producer, root: str) -> JobRecord | None:
    """Some job of this family, at any depth."""
    [job] = await producer.line.get([root])
    while job is not None and producer.choices.chance(0.8):
        page = await producer.line.find(Query(parent=job.id, limit=50))
        if not page.jobs:
            break
        job = producer.choices.pick(page.jobs)
    return job


async def _send(producer: Producer, client: Client, root: str) -> None:
    await (await client.aget(root)).asend(EVENT, producer.choices.below(1_000_000))


async def _prune(producer: Producer, client: Client, root: str) -> None:
    await producer.line.promote(producer.choices.whole(1, 5))
    await producer.line.prune(producer.choices.whole(1, 20))


async def _resolve_open(producer: Producer, job_id: str) -> None:
    """Answer the open events of this job and below it."""
    page = await producer.line.find(Query(parent=job_id, states=_OPEN, limit=200, payloads=False))
    for child in page.jobs:
        if bonds_of(child).done_by == "call":
            await producer.line.resolve([Resolution(id=child.id, result=b"0")])
        await _resolve_open(producer, child.id)


async def _cancel_tree(producer: Producer, client: Client, root: str) -> None:
    await client.acancel(root)


async def _cancel_twice(producer: Producer, client: Client, root: str) -> None:
    """The second one takes what the first one spared."""
    await client.acancel(root)
    await client.acancel(root)


async def _cancel_member(producer: Producer, client: Client, root: str) -> None:
    if (job := await _member(producer, root)) is not None:
        await client.acancel(job.id)


async def _retry(producer: Producer, client: Client, root: str) -> None:
    await (await client.aget(root)).aretry()


async def _requeue_member(producer: Producer, client: Client, root: str) -> None:
    if (job := await _member(producer, root)) is not None:
        await producer.line.requeue([job.id], reset_counts=producer.choices.chance(0.8))


async def _delete(producer: Producer, client: Client, root: str) -> None:
    if (job := await _member(producer, root)) is not None:
        await producer.line.delete([job.id])
