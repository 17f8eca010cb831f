"""An app of a simulated world with groups, graphs and durable handlers beside the usual jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec

from taskharbor.client.client import Client
from taskharbor.client.groups import Group
from taskharbor.client.workflow import Workflow
from taskharbor.errors import DriverError, Unrecoverable
from taskharbor.model.job import Job, NewJob
from taskharbor.model.state import TERMINAL
from taskharbor.tasks.request import Call
from taskharbor.testing.history.events import SETTLEMENTS, HistoryEvent
from taskharbor.testing.simulator import Outcome
from taskharbor.testing.simulator.actors import Producer
from taskharbor.testing.simulator.apps import UsualApp
from taskharbor.worker.attempt import JobContext
from taskharbor.worker.worker import Worker

OVER = frozenset(state.value for state in TERMINAL)


class Part(msgspec.Struct):
    """What a job of a family does: sleep, then fail, or not."""

    seconds: float = 0.0
    fails: bool = False


class FamilyApp(UsualApp):
    """The usual jobs, and families among them; what was stored is kept for the verdict."""

    def __init__(self) -> None:
        self.stored: list[list[NewJob]] = []

    def equip(self, worker: Worker) -> None:
        super().equip(worker)
        worker.register("part", do_part)
        worker.register("durable", do_durable)

    async def traffic(self, producer: Producer, client: Client) -> None:
        plan = producer.world.plan
        families = max(plan.jobs // plan.producers // 10, 3)
        pause = producer.world.busy_seconds / families
        for _ in range(families):
            await producer.clock.sleep(producer.choices.seconds(0, 2 * pause))
            await self._store(producer, self._family(producer, client))
        await super().traffic(producer, client)

    def _family(self, producer: Producer, client: Client) -> list[NewJob]:
        choices = producer.choices
        queue = choices.pick(producer.world.app.queues(producer.world.plan))

        def part() -> Call[None]:
            work = Part(seconds=choices.seconds(0, 1.0), fails=choices.chance(0.05))
            return Call[None](type="part", payload=work, queue=queue, max_attempts=2, max_stalls=50)

        if choices.chance(0.3):
            return [client._new_job(Call[None](type="durable", payload=None, queue=queue, max_stalls=50))]
        if choices.chance(0.5):
            calls = [part() for _ in range(choices.whole(2, 8))]
            then, on_failure, always = (
                Call[None](type="part", payload=Part(), queue=queue) for _ in range(3)
            )
            return Group[Any](
                client,
                "group",
                calls,
                then=then,
                on_failure=on_failure,
                always=always,
                fail_fast=choices.chance(0.3),
            )._jobs()
        flow = Workflow[Any](client, "graph")
        last: list[Any] = []
        for _ in range(choices.whole(2, 4)):
            last = [flow.add(part(), after=last) for _ in range(choices.whole(1, 3))]
        flow.on_failure(Call[None](type="part", payload=Part(), queue=queue))
        return flow._jobs()

    async def _store(self, producer: Producer, jobs: list[NewJob]) -> None:
        """Again with the same ids, until it is known to be stored."""
        producer.world.note_ids([job.id for job in jobs])
        while True:
            try:
                await producer.line.enqueue(jobs)
                self.stored.append(jobs)
                return
            except DriverError:
                await producer.clock.sleep(producer.choices.seconds(0.05, 0.5))


async def do_part(ctx: JobContext, job: Job) -> None:
    part = msgspec.json.decode(job.payload, type=Part)
    await ctx.clock.sleep(part.seconds)
    if part.fails:
        raise Unrecoverable("no such thing")


async def do_durable(ctx: JobContext, job: Job) -> int:
    first: int = await ctx.astep("first", lambda: 1)
    await ctx.asleep("a while", 1.0)
    calls = [
        Call[None](type="part", payload=Part(seconds=0.2), queue=job.queue, max_stalls=50) for _ in range(2)
    ]
    await ctx.agather(calls)
    second: int = await ctx.astep("second", lambda: 2)
    return first + second


def broken_families(app: FamilyApp, outcome: Outcome) -> list[str]:
    """What the history says against families: too early, twice, or never."""
    grants: dict[str, list[HistoryEvent]] = defaultdict(list)
    over_at: dict[str, int] = {}
    released: Counter[str] = Counter()
    last: dict[str, HistoryEvent] = {}
    for event in outcome.history:
        if event.kind != "ok":
            continue
        if event.op == "grant":
            grants[event.job].append(event)
        released[event.job] += event.op == "release"
        is_end = event.op in SETTLEMENTS and event.state in OVER
        if is_end or (event.op == "reclaim" and event.result == "failed"):
            over_at.setdefault(event.job, event.t)
        if event.op == "look":
            last[event.job] = event
    found: list[str] = []
    for jobs in app.stored:
        for job in jobs:
            end = last.get(job.id)
            if end is None or end.state not in OVER:
                found.append(f"F5: {job.type} {job.id} is {'nowhere' if end is None else end.state} at rest")
            for before in job.bonds.after if job.bonds is not None else ():
                early = [one for one in grants[job.id] if before in over_at and one.t < over_at[before]]
                if early:
                    found.append(f"F1: {job.type} {job.id} was handed out before {before} was over")
            if end is not None and end.facts is not None and job.bonds is not None and job.bonds.after:
                explained = 1 + end.facts.stalls + end.facts.attempts + released[job.id]
                if len(grants[job.id]) > explained:
                    found.append(f"F3: {job.type} {job.id} ran {len(grants[job.id])} times without a reason")
    return found
