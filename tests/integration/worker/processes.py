"""Real worker processes on a real store, usually a SQLite file, and waits for what they do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob

SLOW = 40.0  # how long to wait for something that should happen soon, on a busy machine
ROOT = Path(__file__).parents[3]


class ProcessHarness:
    """One store, worker processes on it, and the notes that their handlers leave."""

    def __init__(self, folder: Path, options: str = "", url: str = "") -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/jobs.db{options}"
        self.stdin: int | None = None  # of the processes started from now on
        self.processes: list[subprocess.Popen[bytes]] = []
        self.driver: Driver = connect(self.url)
        self._entropy = Entropy()

    # ------------------------------------------------------------------ processes

    def worker(self, **options: Any) -> subprocess.Popen[bytes]:
        """A worker process of its own."""
        return self.run("tests.integration.worker.app", json.dumps(options))

    def supervisor(self, **settings: Any) -> subprocess.Popen[bytes]:
        code = (
            "import json, logging, sys\n"
            "from taskharbor.worker.supervisor import SupervisorConfig, run_supervisor\n"
            "logging.basicConfig(level='INFO')\n"
            "sys.exit(run_supervisor(SupervisorConfig(**json.loads(sys.argv[1]))))\n"
        )
        settings = {"app": "tests.integration.worker.app:make_worker", **settings}
        return self._start([sys.executable, "-c", code, json.dumps(settings)])

    def run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._start([sys.executable, "-m", module, *arguments])

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        env = {**os.environ, "YARD": str(self.folder), "YARD_URL": self.url, "PYTHONPATH": str(ROOT)}
        with (self.folder / f"log-{len(self.processes)}").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=self.stdin, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"log-{self.processes.index(process)}").read_text(errors="replace")

    async def exit_code(self, process: subprocess.Popen[bytes]) -> int:
        await self.until(lambda: process.poll() is not None, "the process to end")
        code = process.returncode
        assert code is not None
        return code

    async def are_up(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Wait until each of these workers has reported to the store."""
        wanted = {process.pid for process in processes}
        async with asyncio.timeout(SLOW):
            while not wanted <= {info.report.pid for info in await self.driver.workers()}:
                await asyncio.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    # ------------------------------------------------------------------ jobs and notes

    async def put(self, type_name: str = "sleeper", payload: object = "", **fields: Any) -> str:
        job_id = self._entropy.job_id(SystemClock().now())
        new = NewJob(id=job_id, type=type_name, payload=str(payload).encode(), max_stalls=3, **fields)
        await self.driver.enqueue([new])
        return job_id

    async def job(self, job_id: str) -> JobRecord:
        [record] = await self.driver.get([job_id])
        assert record is not None
        return record

    async def when(self, job_id: str, is_so: Callable[[JobRecord], bool]) -> JobRecord:
        async with asyncio.timeout(SLOW):
            while not is_so(record := await self.job(job_id)):
                await asyncio.sleep(0.02)
        return record

    async def ended(self, job_id: str) -> JobRecord:
        return await self.when(job_id, lambda record: record.state.is_terminal)

    def notes(self, what: str, job_id: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("}")]
        return [note for note in notes if note["what"] == what and job_id in (None, note["job"])]

    async def note(self, what: str, job_id: str | None = None, nth: int = 1) -> dict[str, Any]:
        """Wait for a handler to have noted something, for the n-th time."""
        await self.until(lambda: len(self.notes(what, job_id)) >= nth, f"{what} ({nth})")
        return self.notes(what, job_id)[nth - 1]

    async def until(self, is_so: Callable[[], bool], what: str, seconds: float = SLOW) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            logs = "\n".join(self.log(process) for process in self.processes)
            raise AssertionError(f"waited in vain for {what}\n{logs}") from None


def is_alive(pid: int) -> bool:
    """Running, that is: a zombie is not."""
    if Path("/proc").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):  # the second: it ended while this was read
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has arrived: a moment ago the process may still have been running on another core."""
    try:
        stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile: so it still ran
        return False
    return {stat.rpartition(")")[2].split()[0] for stat in stats} <= {"T", "t"}
