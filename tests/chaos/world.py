"""The world of one chaos case: a store, worker processes, jobs, and a record of what was done to them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from taskharbor import Client
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.errors import DriverError, DriverUnavailable
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.tasks import JobRequest
from taskharbor.tasks.request import Call
from taskharbor.testing.history import HistoryEvent, Terms, Verdict, check, read_history
from tests.chaos import app
from tests.chaos.proxy import Proxy
from tests.chaos.stores import Store
from tests.integration.worker.processes import is_stopped

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
SLOW = 60.0  # how long to wait for something that should happen soon, on a busy machine: a test
VERY_SLOW = 240.0  # the same for a run of its own, which has the time


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    jobs: int
    seconds: float
    injections: int
    lease: float

    @property
    def is_full(self) -> bool:
        return self.lease > SMOKE.lease


SMOKE = Size(jobs=60, seconds=3.0, injections=1, lease=2.0)
FULL_SECONDS = 15.0


def full(seconds: float = FULL_SECONDS) -> Size:
    """The size of a real run: a case loads the store for so many seconds."""
    return Size(jobs=int(seconds * 35), seconds=seconds, injections=max(2, int(seconds / 7.5)), lease=5.0)


@dataclass
class Injection:
    at: float
    what: str


@dataclass
class Run:
    """One execution of a handler, as it was noted."""

    job: str
    fence: int
    pid: int
    mark: str
    began: float
    ended: float | None = None
    how: str = ""


class World:
    """Everything of one case. Times are of this machine's wall clock, like those in the lines of handlers."""

    def __init__(self, store: Store, folder: Path, size: Size, seed: int) -> None:
        self.store = store
        self.folder = folder
        self.size = size
        self.seed = seed
        self.chance = random.Random(seed)
        self.driver: Driver = connect(store.url())
        """For looking: nothing of it is in the history."""
        self.client = Client(self.driver)
        self.recorded: Driver = app.recorded(store.url(), "harness", folder)
        """For everything that changes something, and for the last look."""
        self.proxy: Proxy | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.injections: list[Injection] = []
        self.acknowledged: dict[str, str] = {}
        """Job id → mark: every enqueue that the store has acknowledged."""
        self.unknown: dict[str, str] = {}
        """The same for those that were sent and never answered."""
        self.groups: list[str] = []
        """Jobs without arguments: they are done by their children."""
        self.cancelled: set[str] = set()
        self.keyed: set[str] = set()
        """Jobs of a key: newer ones may have replaced their arguments, or have become one with them."""
        self.recoveries: list[tuple[str, float]] = []
        self.late: list[str] = []
        self.facts: list[str] = []
        self.began = time.time()
        self.page = 500
        """How many records are asked for at a time."""
        self.given_up: dict[str, str] = {}
        """Jobs from before the store lost data: the case itself says what must have become of them."""
        self._marks = 0
        self._moves = 0
        self._open = AsyncExitStack()

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[World]:
        with closing(sqlite3.connect(self.folder / "effects.db", isolation_level=None)) as db:
            db.execute("pragma journal_mode = wal")
            db.execute("create table effect (n integer primary key autoincrement, job text, fence int)")
            db.execute("create index effect_job on effect (job)")
        try:
            async with self._open:
                await self._enter_store()
                yield self
        finally:
            self.close()

    async def _enter_store(self) -> None:
        self._open.push_async_callback(self.store.close)
        await self.store.prepare()
        if self.store.has_network:
            self.proxy = await self._open.enter_async_context(
                Proxy(self.store.port, type(self.store).framing)
            )
        await self._open.enter_async_context(self.driver)
        await self._open.enter_async_context(self.recorded)
        # A clock that jumps must not let what is judged at the end be forgotten.
        kept = Retention(completed=timedelta(days=30))
        await self.recorded.configure_queue(QueueSettings(queue="default", retention=kept))

    async def move(self, store: Store) -> None:
        """Do everything from now on in another store: one that this case may break by itself."""
        assert not self.acknowledged, "too late"
        self.store, self.proxy = store, None
        self._take_up()
        await self._enter_store()

    async def come_back(self) -> None:
        """The store is somewhere else now: open it there."""
        for one in (self.driver, self.recorded):
            await one.close()
        self._take_up()
        await self._open.enter_async_context(self.driver)
        await self._open.enter_async_context(self.recorded)

    def _take_up(self) -> None:
        self._moves += 1
        self.driver = connect(self.store.url())
        self.client = Client(self.driver)
        self.recorded = app.recorded(self.store.url(), f"harness {self._moves}", self.folder)

    def keeps(self, context: AbstractContextManager[T]) -> T:
        """Enter something that lasts until the verdict is spoken."""
        return self._open.enter_context(context)

    def forget_jobs(self) -> dict[str, str]:
        """The store has lost data: the usual verdict is about what comes from here on.

        What was acknowledged before comes back, for the case to judge: it alone knows what may be gone.
        """
        before = {**self.unknown, **self.acknowledged}
        self.given_up |= before | dict.fromkeys(self.groups, "")
        self.acknowledged, self.unknown, self.groups = {}, {}, []
        self.cancelled, self.keyed = set(), set()
        return before

    @property
    def network(self) -> Proxy:
        assert self.proxy is not None, "this store has no network"
        return self.proxy

    # ------------------------------------------------------------------ processes

    def worker(
        self,
        *flags: str,
        through: bool = False,
        clock: Path | None = None,
        lease: float | None = None,
        rate: float | None = None,
    ) -> subprocess.Popen[bytes]:
        """A real worker process of the command line; `through` the proxy if asked for.

        `clock`: a file that says how far off its clock is. `rate`: how fast its clock runs.
        """
        url = self.store.url(self.network.port if through else None)
        span = self.size.lease if lease is None else lease
        command = [sys.executable, "-m", "taskharbor", "worker", "tests.chaos.app:harbor"]
        command += ["--lease", f"{span:g}s", "--heartbeat", f"{span * 0.3:g}s", "--grace", "3s", *flags]
        more = {} if clock is None else {"CHAOS_CLOCK": str(clock)}
        if rate is not None:
            more["CHAOS_RATE"] = str(rate)
        return self.program(command, url, more)

    def program(
        self, command: list[str], url: str | None = None, more: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process that ends with this world at the latest."""
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        env = {**os.environ, "CHAOS_FOLDER": str(self.folder), "PYTHONPATH": path, **(more or {})}
        env |= {"CHAOS_URL": url or self.store.url()}
        kept = os.environ.get("PYTHONPYCACHEPREFIX") or _bytecode()
        env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": kept}
        with self._log(len(self.processes)).open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    async def workers_at_work(self, count: int) -> None:
        """Until so many workers have reported to the store."""

        async def are_there() -> bool:
            return len(await self.driver.workers()) >= count

        await self.until(are_there, f"{count} workers to be at work")

    def inject(self, what: str) -> float:
        at = time.time()
        self.injections.append(Injection(at, what))
        return at

    def kill(self, process: subprocess.Popen[bytes], what: str = "") -> float:
        at = self.inject(what or f"kill -9 of worker {process.pid}")
        process.kill()
        process.wait()
        return at

    async def freeze(self, process: subprocess.Popen[bytes]) -> float:
        """SIGSTOP at a moment when it holds no lock of a file that would stop everybody else."""
        for _ in range(400):
            process.send_signal(signal.SIGSTOP)
            await self.until(lambda: is_stopped(process.pid), f"worker {process.pid} to stop")
            if self.store.is_free():
                return self.inject(f"SIGSTOP of worker {process.pid}")
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.005)
        raise AssertionError("it always held a lock")

    def thaw(self, process: subprocess.Popen[bytes]) -> float:
        at = self.inject(f"SIGCONT of worker {process.pid}")
        process.send_signal(signal.SIGCONT)
        return at

    async def exit_code(self, process: subprocess.Popen[bytes], seconds: float | None = None) -> int:
        await self.until(lambda: process.poll() is not None, f"worker {process.pid} to end", seconds)
        assert process.returncode is not None
        return process.returncode

    async def stop_workers(self) -> None:
        """SIGTERM to all that are left; they have nothing to do any more, and so they end at once."""
        left = [process for process in self.processes if process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in left:
            await self.exit_code(process)

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return self._log(self.processes.index(process)).read_text(errors="replace")

    def _log(self, number: int) -> Path:
        return self.folder / f"worker-{number}.log"

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    # ------------------------------------------------------------------ jobs

    def request(self, task: str = "work", **arguments: Any) -> Call[Any]:
        self._marks += 1
        mark = f"{self.seed}-{self._marks}"
        request: Call[Any] = getattr(app, task).call(mark=mark, **arguments)
        return request

    def some_work(self, longest: float = 0.05) -> JobRequest:
        """A job of a size and a fate that chance picks."""
        fate = self.chance.choices(["", "fails once", "fails"], [88, 10, 2])[0]
        return self.request(seconds=round(self.chance.uniform(0, longest), 4), fate=fate)

    async def put(self, *requests: JobRequest, driver: Driver | None = None) -> list[str]:
        """Enqueue, with the same ids again for as long as the store does not answer."""
        return await self.put_jobs([self.client._new_job(request) for request in requests], driver)

    async def put_jobs(self, jobs: list[NewJob], driver: Driver | None = None) -> list[str]:
        """The same for jobs as they are; those without arguments, like a group, have no mark."""
        marks = {job.id: json.loads(job.payload)["mark"] for job in jobs if job.payload}
        self.groups += [job.id for job in jobs if not job.payload]
        self.unknown |= marks
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    await (driver or self.recorded).enqueue(jobs)
                except DriverError:
                    await asyncio.sleep(0.05)
                else:
                    break
        for job_id, mark in marks.items():
            self.acknowledged[job_id] = mark
            self.unknown.pop(job_id, None)
        return list(marks)

    async def produce(self, count: int, seconds: float, longest: float = 0.05, batch: int = 1) -> None:
        """So many jobs, spread over so many seconds."""
        for _ in range(0, count, batch):
            await self.put(*(self.some_work(longest) for _ in range(batch)))
            await asyncio.sleep(seconds * batch / count)

    async def records(self, ids: Sequence[str] | None = None) -> dict[str, JobRecord | None]:
        wanted = list(self.acknowledged) if ids is None else list(ids)
        found: list[JobRecord | None] = []
        for start in range(0, len(wanted), self.page):
            found += await self._got(self.driver, wanted[start : start + self.page])
        return dict(zip(wanted, found, strict=True))

    async def drained(self, seconds: float) -> float:
        """Until every acknowledged job is terminal; how long that took."""
        began = time.monotonic()
        left = list(self.acknowledged)

        async def all_over() -> bool:
            records = await self.records(left)
            left[:] = [job_id for job_id, job in records.items() if job and not job.state.is_terminal]
            return not left

        await self.until(all_over, "every job to end", seconds)
        return time.monotonic() - began

    async def last_look(self) -> dict[str, JobRecord | None]:
        """The records of everything that was ever sent, as the last thing in the history."""
        wanted = [*self.acknowledged, *self.unknown, *self.groups]
        found: list[JobRecord | None] = []
        for start in range(0, len(wanted), self.page):
            found += await self._got(self.recorded, wanted[start : start + self.page])
        return dict(zip(wanted, found, strict=True))

    async def _got(self, driver: Driver, ids: list[str]) -> list[JobRecord | None]:
        """Looking is no part of any case: a connection that was cut is made again."""
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    return await driver.get(ids)
                except DriverUnavailable:
                    await asyncio.sleep(0.1)

    def check_history(self) -> Verdict:
        """What the checker says about every call of every process."""
        events = [
            one
            for one in read_history(*sorted(self.folder.glob("history-*")))
            if one.job not in self.given_up
        ]
        whole = sorted([*events, *_unanswered(events)], key=lambda event: event.t)
        return check(whole, Terms(is_drained=True, longer_leases=self.store.longer_leases))

    # ------------------------------------------------------------------ what handlers noted

    def lines(self, what: str | None = None, job_id: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "runs"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be on its way
        events = [json.loads(line) for line in whole.splitlines()]
        return [line for line in events if what in (None, line["what"]) and job_id in (None, line["job"])]

    async def line(
        self, what: str, job_id: str, nth: int = 1, seconds: float | None = None
    ) -> dict[str, Any]:
        """Wait for the n-th time that a handler of this job notes this."""
        await self.until(lambda: len(self.lines(what, job_id)) >= nth, f"{what} of {job_id} ({nth})", seconds)
        return self.lines(what, job_id)[nth - 1]

    def runs(self) -> list[Run]:
        runs: dict[tuple[str, int], Run] = {}
        for line in self.lines():
            key = (line["job"], line["fence"])
            if line["what"] == "begin":
                runs[key] = Run(*key, line["pid"], line["mark"], line["at"])
            elif key in runs:
                runs[key].ended, runs[key].how = line["at"], line["what"]
        return [run for run in runs.values() if run.job not in self.given_up]

    def effects(self) -> list[tuple[str, int]]:
        """What the guarded table let in, in that order."""
        with closing(sqlite3.connect(self.folder / "effects.db", timeout=30)) as db:
            return db.execute("select job, fence from effect order by n").fetchall()

    # ------------------------------------------------------------------ waiting

    @property
    def patience(self) -> float:
        return VERY_SLOW if self.size.is_full else SLOW

    async def until(self, is_so: Callable[[], Any], what: str, seconds: float | None = None) -> None:
        seconds = self.patience if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                while not await _answer(is_so):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            tails = "\n".join(f"--- {p.pid}\n{self.log(p)[-3000:]}" for p in self.processes)
            raise AssertionError(f"waited {seconds:g} s in vain for {what}\n{tails}") from None

    def recovered(self, what: str, since: float, most: float) -> None:
        """Something works again; whether that took longer than promised is kept apart from broken promises.

        The bound is about a machine that has time: the smoke run in the tests, which shares its machine with
        others, does not ask for it.
        """
        took = time.time() - since
        self.recoveries.append((what, took))
        if took > most:
            self.late.append(f"{what} took {took:.2f} s, more than the promised {most:.2f} s")


async def _answer(is_so: Callable[[], Any]) -> Any:
    try:
        answer = is_so()
        return await answer if asyncio.iscoroutine(answer) else answer
    except DriverError:
        return False  # the store is down, which is what some cases are about


def _unanswered(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """A process that was killed during a call could not record that its outcome is unknown."""
    answered = {(one.process, one.call, one.op, one.job) for one in events if one.kind != "invoke"}
    return [
        replace(one, kind="unknown", t=one.t + 1)
        for one in events
        if one.kind == "invoke" and (one.process, one.call, one.op, one.job) not in answered
    ]


@cache
def _bytecode() -> str:
    """One cache of compiled modules for all workers of this run: they start often."""
    folder = tempfile.TemporaryDirectory(prefix="taskharbor-bytecode-")
    _kept.append(folder)
    return folder.name


_kept: list[tempfile.TemporaryDirectory[str]] = []
