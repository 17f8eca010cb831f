"""A command line in this process, on a memory store of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.cli.main import run
from taskharbor.drivers import Driver, connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Settlement

_VARIABLES = (
    "TASKHARBOR_URL",
    "TASKHARBOR_APP",
    "TASKHARBOR_CONFIG",
    "TASKHARBOR_PROFILE",
    "TASKHARBOR_JSON",
    "TASKHARBOR_LOGS",
    "NO_COLOR",
    "FORCE_COLOR",
)
_numbers = itertools.count(1)
_entropy = Entropy(7)


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs commands, and reaches behind them into the same store."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, *args: str) -> Ran:
        depth = 1 if args[0] in ("enqueue", "doctor", "bench", "version") else 2
        self._capsys.readouterr()
        code = run([*args[:depth], "--url", self.url, *args[depth:]])
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    def bare(self, *args: str) -> Ran:
        """Without --url."""
        self._capsys.readouterr()
        code = run(list(args))
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    def store(self, work: Callable[[Driver], Awaitable[Any]]) -> Any:
        async def in_store() -> Any:
            async with connect(self.url) as driver:
                return await work(driver)

        return asyncio.run(in_store())

    def enqueue(self, type: str = "mail.send", **fields: Any) -> str:
        """Put a job in, and answer its id."""

        async def put(driver: Driver) -> str:
            job = NewJob(**{"id": _entropy.job_id(driver.clock.now()), "type": type, **fields})
            return (await driver.enqueue([job]))[0].id

        return str(self.store(put))

    def end(self, settlement: Callable[[JobRecord], Settlement], queue: str = "default") -> str:
        """Claim the next job of a queue and settle it; answers its id."""

        async def go(driver: Driver) -> str:
            [job] = (await driver.reserve(Claim(queues=(queue,), worker_id="w-1"))).jobs
            await driver.settle([settlement(job)])
            return job.id

        return str(self.store(go))

    def claim(self, queue: str = "default", lease_for: timedelta = timedelta(minutes=5)) -> JobRecord:
        async def go(driver: Driver) -> JobRecord:
            [job] = (await driver.reserve(Claim(queues=(queue,), worker_id="w-1", lease_for=lease_for))).jobs
            return job

        job: JobRecord = self.store(go)
        return job

    def get(self, job_id: str) -> JobRecord:
        job = self.find(job_id)
        assert job is not None
        return job

    def find(self, job_id: str) -> JobRecord | None:
        async def go(driver: Driver) -> JobRecord | None:
            return (await driver.get([job_id]))[0]

        job: JobRecord | None = self.store(go)
        return job


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Iterator[Shell]:
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a command sets is undone afterwards
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    level = root.level
    yield Shell(f"memory://cli-{next(_numbers)}", capsys)
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__name__ != "StderrHandler"]
    root.setLevel(level)
