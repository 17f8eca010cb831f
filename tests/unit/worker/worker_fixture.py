"""Workers on a real memory store whose calls can be made to fail, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Extended
from taskharbor.events import Event, EventBus
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.testing.clock import SimulatedClock
from taskharbor.worker import Worker


class FaultyDriver(MemoryDriver):
    """The memory store; every call is recorded, and can be made to fail before or after it took effect."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, Any]] = []
        self.before: dict[str, Callable[[], Any]] = {}
        self.after: dict[str, Callable[[], Any]] = {}
        self.rotates_tokens = False

    def named(self, verb: str) -> list[Any]:
        return [call for name, call in self.calls if name == verb]

    async def do_reserve(self, claim, now):
        return await self._through("reserve", (claim, now), super().do_reserve(claim, now))

    async def do_settle(self, settlements, now):
        return await self._through("settle", (list(settlements), now), super().do_settle(settlements, now))

    async def do_exchange(self, settlements, claim, now):
        self.calls.append(("reserve", (claim, now)))
        call = super().do_exchange(settlements, claim, now)
        return await self._through("settle", (list(settlements), now), call)

    async def do_extend_leases(self, leases, lease_for, progress, now):
        call = super().do_extend_leases(leases, lease_for, progress, now)
        answers = await self._through("extend_leases", (list(leases), now), call)
        return [self._rotated(answer) for answer in answers] if self.rotates_tokens else answers

    def _rotated(self, answer):
        if not isinstance(answer, Extended):
            return answer
        records = self._store
        record = msgspec.structs.replace(records.jobs[answer.lease.job_id], token=self.entropy.token())
        records.put(record)
        return Extended(record.lease, answer.cancel_requested, answer.at, answer.version)

    async def _through(self, verb: str, call: Any, doing: Any) -> Any:
        self.calls.append((verb, call))
        try:
            await _maybe(self.before.get(verb))
        except BaseException:
            doing.close()
            raise
        answer = await doing
        await _maybe(self.after.get(verb))
        return answer


async def _maybe(hook: Callable[[], Any] | None) -> None:
    if hook is not None:
        result = hook()
        if asyncio.iscoroutine(result):
            await result


class WorkerHarness:
    """One store, its jobs and its workers, on a simulated clock."""

    def __init__(self, driver: FaultyDriver, clock: SimulatedClock) -> None:
        self.driver = driver
        self.clock = clock
        self.events: list[Event] = []
        self._entropy = Entropy(2)
        self._tasks: list[tuple[Worker, asyncio.Task[None]]] = []

    def worker(self, handlers: dict[str, Any] | None = None, **options: Any) -> Worker:
        bus = EventBus()
        bus.listen(self.events.append)
        defaults: dict[str, Any] = {"clock": self.clock, "entropy": self._entropy.split("w"), "events": bus}
        worker = Worker(self.driver, **{**defaults, **options})
        for name, handler in (handlers or {}).items():
            worker.register(name, handler)
        return worker

    async def put(self, type_name: str = "work", **fields: Any) -> str:
        job_id = self._entropy.job_id(self.clock.now())
        await self.driver.enqueue([NewJob(id=job_id, type=type_name, **fields)], now=self.clock.now())
        return job_id

    async def put_many(self, count: int, type_name: str = "work", **fields: Any) -> list[str]:
        return [await self.put(type_name, **fields) for _ in range(count)]

    async def job(self, job_id: str) -> JobRecord:
        [record] = await self.driver.get([job_id], now=self.clock.now())
        assert record is not None
        return record

    async def pass_time(self, seconds: float) -> None:
        await self.clock.pass_time(timedelta(seconds=seconds))

    def start(self, worker: Worker, **options: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(worker.arun(**options))
        self._tasks.append((worker, task))
        return task

    @asynccontextmanager
    async def at_work(self, worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
        task = self.start(worker)
        await self.pass_time(0)
        yield task
        worker.stop(now=True)
        await self.until_done(task)

    async def until_done(self, task: asyncio.Task[None], most_seconds: float = 120.0) -> None:
        """Let time pass until the worker has stopped."""
        over = self.clock.monotonic() + most_seconds
        while not task.done() and self.clock.monotonic() < over:
            await self.pass_time(0.1)
        assert task.done(), "the worker did not stop"
        await task

    async def run_until_idle(self, worker: Worker) -> None:
        await self.until_done(self.start(worker, until_idle=True))

    def heard(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def close(self) -> None:
        for worker, task in self._tasks:
            if not task.done():
                worker.stop(now=True)
                await self.until_done(task)
