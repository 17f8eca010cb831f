"""The installed command in a process of its own, on a SQLite store in a folder of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers import Driver, connect
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.presence import WorkerReport
from taskharbor.model.schedule import Schedule
from taskharbor.testing.servers import free_port as find_free_port

APP = """
from datetime import timedelta
from taskharbor.harbor import Harbor
from taskharbor.worker.attempt import JobContext

harbor = Harbor("sqlite:///jobs.db")

@harbor.task(queue="mail", max_attempts=2, min_backoff="10ms", max_backoff="10ms")
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"

@harbor.task(max_attempts=1)
async def boom() -> None:
    raise RuntimeError("no luck")

@harbor.task(name="sleep_long")
async def sleep_long(ctx: JobContext) -> str:
    for _ in range(600):
        await ctx.clock.sleep(0.1)
    return "slept"

@harbor.task
async def nap(ctx: JobContext) -> str:
    await ctx.clock.sleep(1.0)
    return "napped"
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`taskharbor` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")},
            "TASKHARBOR_URL": "sqlite:///jobs.db",
        }

    def __call__(self, *args: str, stdin: str = "", timeout: float = 60) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "taskharbor", *args],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def put(self, type: str, queue: str = "default", payload: bytes = b"{}", **fields: Any) -> str:
        """Put a job in without a command; answers its id."""

        async def go(driver: Driver) -> str:
            job_id = Entropy().job_id(driver.clock.now())
            new = NewJob(id=job_id, type=type, queue=queue, payload=payload, **fields)
            await driver.enqueue([new])
            return job_id

        return str(asyncio.run(self._in_store(go)))

    def schedule(self, name: str, type: str, queue: str) -> None:
        """Put a schedule in, with a long rule in a zone with a long name."""
        template = NewJob(id="", type=type, queue=queue)
        zone = "America/Argentina/Buenos_Aires"
        schedule = Schedule(name=name, template=template, cron="*/5 8-18 * * mon-fri", timezone=zone)

        async def go(driver: Driver) -> None:
            await driver.put_schedule(schedule)

        asyncio.run(self._in_store(go))

    def workflow(self, *types: str) -> str:
        """Put a group of these in, each after the one before; answers the id of the whole."""

        async def go(driver: Driver) -> str:
            ids = [Entropy().job_id(driver.clock.now()) for _ in ("root", *types)]
            root, *parts = ids
            before: list[tuple[str, ...]] = [(), *((one,) for one in parts)]
            jobs = [
                NewJob(id=root, type="orders.monthly.report", queue="media", bonds=Bonds(done_by="children"))
            ]
            for type, job_id, after in zip(types, parts, before, strict=False):
                bonds = Bonds(parent=root, after=after)
                jobs.append(NewJob(id=job_id, type=type, queue="media", bonds=bonds))
            await driver.enqueue(jobs)
            return root

        return str(asyncio.run(self._in_store(go)))

    def report(self, report: WorkerReport) -> None:
        """Let a worker be alive for the next hour."""

        async def go(driver: Driver) -> None:
            await driver.report_worker(report, ttl=timedelta(hours=1))

        asyncio.run(self._in_store(go))

    def job(self, job_id: str) -> JobRecord:
        """Look at a job without a command."""

        async def go(driver: Driver) -> JobRecord:
            [job] = await driver.get([job_id])
            assert job is not None
            return job

        job: JobRecord = asyncio.run(self._in_store(go))
        return job

    async def _in_store(self, go: Callable[[Driver], Awaitable[Any]]) -> Any:
        async with connect(f"sqlite:///{self.folder}/jobs.db") as driver:
            return await go(driver)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """A command that goes on; its log is on stdout. The end of the test ends it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "taskharbor", *args],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def taskharbor(tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "app.py").write_text(APP)
    command = Command(tmp_path)
    yield command
    command.close()


@pytest.fixture
def free_port() -> int:
    return find_free_port()
