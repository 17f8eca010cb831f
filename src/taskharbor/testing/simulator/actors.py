"""The processes of a simulated world: producers, workers, schedulers and an operator.

They all run the real code; only their clock, random choices and connection to the store are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from taskharbor.client.client import Client
from taskharbor.drivers.contract import Driver
from taskharbor.errors import DriverError, JobNotFound, RateLimited, TaskHarborError
from taskharbor.model.job import Job
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.retry import RetryPolicy
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.fire_cron import FireCron
from taskharbor.scheduler.housekeeping import promote, prune, sweep
from taskharbor.scheduler.scheduler import Scheduler
from taskharbor.scheduler.speculate import SpeculateOnStragglers
from taskharbor.tasks.request import JobRequest
from taskharbor.testing.history.recorder import recorded_runs
from taskharbor.testing.simulator.choices import Choices
from taskharbor.testing.simulator.loop import Process
from taskharbor.worker.worker import Worker

if TYPE_CHECKING:
    from taskharbor.testing.simulator.world import World

RETRY = RetryPolicy(max_attempts=5, base=timedelta(seconds=0.5), maximum=timedelta(seconds=4))
LIMITED, THROTTLED = "limited", "throttled"


class Actor:
    """One process with its own clock, choices and connection to the store."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.choices: Choices = world.choices.split(process.name)
        self.clock = world.clock_of(process.name)
        self.line: Driver = world.line_of(process)

    async def live(self) -> None:
        raise NotImplementedError


class Producer(Actor):
    """Enqueues jobs. Tries again with the same id until the job is known to be stored."""

    async def live(self) -> None:
        world = self.world
        async with self.line:
            client = Client(self.line, clock=self.clock, entropy=self.choices.entropy("ids"))
            await world.app.traffic(self, client)
            world.has_ended(self)

    async def put(self, client: Client, *requests: JobRequest) -> None:
        named = [replace(request, id=client._new_id()) for request in requests]
        self.world.note_ids([request.id for request in named if request.id is not None])
        while True:
            try:
                await (client.aenqueue_many(named) if len(named) > 1 else client.aenqueue(named[0]))
                return
            except RateLimited as error:
                await self.clock.sleep(error.retry_after.total_seconds() + 0.001)
            except DriverError:
                await self.clock.sleep(self.choices.seconds(0.05, 0.5))


class WorkerActor(Actor):
    """A worker. When it ends, another one of the same name starts."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process)
        self.worker: Worker | None = None

    async def live(self) -> None:
        while True:
            self.worker = self._new_worker()
            await self.worker.arun()
            await self.clock.sleep(self.choices.seconds(0.01, 1.0))

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop(now=self.choices.chance(0.2))

    def _new_worker(self) -> Worker:
        plan = self.world.plan
        queues = self.world.queue_names
        worker = Worker(
            self.line,
            queues=self.choices.pick((queues, queues, tuple(reversed(queues)))),
            concurrency=plan.slots,
            lease=timedelta(seconds=plan.lease_seconds),
            grace=timedelta(seconds=plan.grace_seconds),
            poll=None if plan.poll_seconds is None else timedelta(seconds=plan.poll_seconds),
            report_every=plan.poll_seconds or 5.0,  # a quiet year has no use for six million reports
            name=self.process.name,
            lanes=self.choices.pick((("any", "cpu"), ("cpu", "any"))) if plan.has("lanes") else None,
            prefetch=2 if plan.has("prefetch") else None,
            retry=RETRY,
            clock=self.clock,
            entropy=self.choices.entropy("worker"),
        )
        worker.use(self._points)
        worker.use(recorded_runs(self.world.recorder_of(self.process.name)))
        self.world.app.equip(worker)
        return worker

    async def _points(self, ctx: Any, job: Job, call_next: Callable[..., Any]) -> Any:
        points = self.world.points
        await points.pass_by("handler.starts", self.process)
        result = await call_next(ctx, job)
        await points.pass_by("handler.ended", self.process)
        return result


class SchedulerActor(Actor):
    """A scheduler with small pages, so that a duty needs more than one."""

    async def live(self) -> None:
        clock = self.world.store_clock  # schedules go by the store's clock, as in production
        now = Now(self.line, clock)
        entropy = self.choices.entropy("scheduler")
        duties = [
            sweep(self.line, now, batch=5),
            promote(self.line, now, batch=10),
            FireCron(self.line, now, entropy),
            SpeculateOnStragglers(self.line, now),
            prune(self.line, now),
        ]
        async with self.line:
            scheduler = Scheduler(
                self.line,
                name=self.process.name,
                duties=duties,
                ttl=timedelta(seconds=5),
                clock=clock,
                entropy=entropy,
            )
            await scheduler.arun()


class Operator(Actor):
    """Cancels, requeues, deletes and changes the settings of queues, until the faults are over."""

    async def live(self) -> None:
        actions = [action for feature, action in self._actions() if self.world.plan.has(feature)]
        async with self.line:
            client = Client(self.line, clock=self.clock, entropy=self.choices.entropy("ids"))
            while actions and self.world.is_busy:
                await self.clock.sleep(self.choices.seconds(0.2, 3.0) * (self.world.plan.poll_seconds or 1.0))
                try:
                    await self.choices.pick(actions)(client)
                except TaskHarborError:
                    continue  # too late, unknown, or unreachable: all of it is in the history

    def _actions(self) -> list[tuple[str, Callable[[Client], Any]]]:
        return [
            ("cancels", self._cancel),
            ("cancels", self._cancel_waiting),
            ("requeues", self._requeue),
            ("deletes", self._delete),
            ("limits", self._limit),
            ("pauses", self._pause),
        ]

    async def _cancel(self, client: Client) -> None:
        await client.acancel(self._some_job())

    async def _cancel_waiting(self, client: Client) -> None:
        key = f"key-{self.choices.below(4)}".encode()
        await self.line.cancel_waiting(self.choices.pick(self.world.queue_names), key)

    async def _requeue(self, client: Client) -> None:
        await self.line.requeue([self._some_job()], reset_counts=self.choices.chance(0.8))

    async def _delete(self, client: Client) -> None:
        await self.line.delete([self._some_job()])

    async def _limit(self, client: Client) -> None:
        most = self.choices.pick((1, 2, 3, None))
        await self.line.configure_queue(QueueSettings(queue=LIMITED, max_running=most))

    async def _pause(self, client: Client) -> None:
        queue = self.choices.pick(self.world.queue_names)
        await self.line.configure_queue(QueueSettings(queue=queue, paused=self.choices.chance(0.4)))

    def _some_job(self) -> str:
        ids = self.world.ids
        if not ids:
            raise JobNotFound("none yet")
        return ids[-1 - self.choices.below(min(len(ids), self.choices.pick((3, 10, 30))))]


RATE = RateLimit(6, timedelta(seconds=3))
