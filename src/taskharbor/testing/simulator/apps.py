"""What the jobs of a simulated world are: the handlers of its workers, and who enqueues what and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from taskharbor.client.client import Client
from taskharbor.errors import Unrecoverable
from taskharbor.harbor.harbor import Harbor
from taskharbor.model.job import FAILURE_TYPE, Job, Update
from taskharbor.model.outcome import Snooze
from taskharbor.model.speculation import SPECULATE_HEADER, Speculate, header_of
from taskharbor.tasks.request import JobRequest
from taskharbor.testing.simulator.actors import LIMITED, THROTTLED, Producer
from taskharbor.testing.simulator.plan import Plan
from taskharbor.worker.attempt import JobContext
from taskharbor.worker.worker import Worker


class SimulatedApp(Protocol):
    """What a world works on."""

    def queues(self, plan: Plan) -> tuple[str, ...]:
        """The queues that its jobs go to."""
        ...

    def equip(self, worker: Worker) -> None:
        """Give a new worker its handlers."""
        ...

    async def traffic(self, producer: Producer, client: Client) -> None:
        """What one producer does from its start to its end. `producer.put` tries until it is stored."""
        ...


class HarborApp:
    """Your own harbor: its tasks, and the traffic that you write."""

    def __init__(self, harbor: Harbor, traffic: Callable[[Producer, Client], Awaitable[None]]) -> None:
        self._harbor = harbor
        self._traffic = traffic

    def queues(self, plan: Plan) -> tuple[str, ...]:
        return tuple(sorted({self._harbor.default_queue, *self._harbor.tasks.queues()}))

    def equip(self, worker: Worker) -> None:
        for handler in self._harbor.tasks.handlers():
            worker.add(handler)

    async def traffic(self, producer: Producer, client: Client) -> None:
        await self._traffic(producer, client)


class Chore(msgspec.Struct):
    """What one job of the usual app does: sleep so long, fail so often, then return."""

    number: int
    seconds: float = 0.0
    failures: int = 0
    end: str = ""  # "final": fail for good; "snooze": come back later; "stuck": never end


class UsualApp:
    """Jobs of every kind that the plan allows: fast, slow, failing, stuck, keyed, delayed, cancelled."""

    def queues(self, plan: Plan) -> tuple[str, ...]:
        return tuple(f"q{number}" for number in range(plan.queues))

    def equip(self, worker: Worker) -> None:
        for name in ("fast", "slow", FAILURE_TYPE):
            worker.register(name, do_chore)

    async def traffic(self, producer: Producer, client: Client) -> None:
        plan = producer.world.plan
        mine = max(plan.jobs // plan.producers, 1)
        pause = producer.world.busy_seconds / mine
        number = 0
        while number < mine:
            await producer.clock.sleep(producer.choices.seconds(0, 2 * pause))
            count = (
                producer.choices.whole(2, 5) if plan.has("batches") and producer.choices.chance(0.2) else 1
            )
            requests = [_request(producer, number + index) for index in range(count)]
            await producer.put(client, *requests)
            number += count


async def do_chore(ctx: JobContext, job: Job) -> Any:
    if job.type == FAILURE_TYPE:
        return None
    chore = msgspec.json.decode(job.payload, type=Chore)
    if chore.seconds:
        await ctx.clock.sleep(chore.seconds)
    if chore.end == "stuck":
        await ctx.clock.sleep(86_400)
    if chore.end == "final":
        raise Unrecoverable("no such thing")
    if chore.end == "snooze" and job.stalls == 0 and chore.number % 2 and ctx.attempt == 1:
        return Snooze(timedelta(seconds=1)) if ctx.clock.monotonic() < 20 else None
    if job.attempts < chore.failures:
        raise ValueError(f"failure {job.attempts + 1} of {chore.failures}")
    return None


def _request(producer: Producer, number: int) -> JobRequest:
    choices, world = producer.choices, producer.world
    plan = world.plan
    request: dict[str, Any] = {
        "type": choices.pick(("fast", "fast", "slow")),
        "queue": choices.pick(world.plain_queues),
        "max_attempts": choices.pick((0, 1, 2, 3)),
        "max_stalls": choices.pick((1, 3, 3, 3)) if not plan.is_calm else 3,
    }
    seconds = 0.0
    if request["type"] == "slow":
        seconds = plan.lease_seconds * choices.seconds(0.1, 2.5)
    elif choices.chance(0.5):
        seconds = choices.seconds(0, 0.5)
    chore = Chore(
        number=number,
        seconds=seconds,
        failures=choices.pick((0, 0, 0, 1, 2, 9)),
        end=choices.pick(("", "", "", "", "", "final", "snooze")),
    )
    if plan.has("timeouts") and choices.chance(0.15):
        request["timeout"] = timedelta(seconds=choices.seconds(0.2, 2.0))
        chore.end = choices.pick(("stuck", chore.end))
    if plan.has("delays") and choices.chance(0.3):
        request["delay"] = timedelta(seconds=choices.seconds(0.001, 5.0))
    if plan.has("priorities"):
        request["priority"] = choices.pick((-5, 0, 0, 7))
    if plan.has("lanes"):
        request["requires"] = choices.pick(("any", "cpu"))
    if plan.has("idempotency") and choices.chance(0.4):
        request["idempotency_key"] = f"once-{choices.below(10)}"
    _more(request, producer)
    return JobRequest(payload=chore, **request)


def _more(request: dict[str, Any], producer: Producer) -> None:
    choices, plan = producer.choices, producer.world.plan
    if plan.has("keys") and choices.chance(0.5):
        request["key"] = f"key-{choices.below(4)}"
        request["update"] = Update(
            data=choices.chance(0.7), run_at=choices.pick((True, False, "if_later", "if_earlier"))
        )
    elif plan.has("speculation") and choices.chance(0.5):
        rule = Speculate(after=timedelta(seconds=1), factor=1.5)
        request["headers"] = {SPECULATE_HEADER: header_of(rule)}
    elif plan.has("limits") and choices.chance(0.4):
        request["queue"] = LIMITED
    elif plan.has("rates") and choices.chance(0.4):
        request["queue"] = THROTTLED
