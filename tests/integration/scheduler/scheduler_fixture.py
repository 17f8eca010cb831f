"""Workers and schedulers on any store: in this event loop, or in processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from taskharbor.drivers import connect
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.retry import RetryPolicy
from taskharbor.tasks import job_handler
from taskharbor.worker import Worker
from tests.integration.worker.processes import SLOW, ProcessHarness

AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0)


class SchedulerHarness(ProcessHarness):
    """One store of any kind."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url
        self.driver = connect(url)
        self._ids = Entropy()

    # ------------------------------------------------------------------ processes

    def start_worker(self, **options: Any) -> subprocess.Popen[bytes]:
        return self.run("tests.integration.scheduler.app", "worker", json.dumps(options))

    def start_scheduler(self, *, ttl: float = 15, dies: str = "") -> subprocess.Popen[bytes]:
        options = json.dumps({"ttl": ttl, "dies": dies})
        return self.run("tests.integration.scheduler.app", "scheduler", options)

    # ------------------------------------------------------------------ here

    @asynccontextmanager
    async def working(self, handler: Any, **options: Any) -> AsyncIterator[Worker]:
        """A worker in this loop with this handler for jobs of type `work`; `run_in` says where it runs."""
        run_in = options.pop("run_in", "auto")
        driver = self.driver.another()
        worker = Worker(driver, **{"retry": AT_ONCE, "lease": timedelta(seconds=60), **options})
        worker.add(job_handler("work", handler, run_in=run_in))
        task = asyncio.create_task(worker.arun())
        try:
            yield worker
        finally:
            worker.stop(now=True)
            await asyncio.wait_for(task, SLOW)

    async def add(self, type_name: str = "work", **fields: Any) -> str:
        [job_id] = await self.add_many(1, type_name, **fields)
        return job_id

    async def add_many(self, count: int, type_name: str = "work", **fields: Any) -> list[str]:
        now = SystemClock().now()
        jobs = [NewJob(id=self._ids.job_id(now), type=type_name, **fields) for _ in range(count)]
        await self.driver.enqueue(jobs)
        return [job.id for job in jobs]

    async def all_ended(self, ids: list[str]) -> list[JobRecord]:
        return [await self.ended(job_id) for job_id in ids]
