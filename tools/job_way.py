"""Which files does one job pass through?

Runs a worker, enqueues one plain job, and lists the files of src/taskharbor with a function that was called
from the enqueue to the answer of the settlement; starting, stopping and the heartbeat are left out, and no
listener observes the job. The claim that takes a job may have been sent before the job was enqueued (a
parked claim on Redis), when the job before it ended: so two jobs in a row are traced, and that claim with
them. ARCHITECTURE.md has the list.

    python tools/job_way.py                     # memory and SQLite
    python tools/job_way.py postgresql://… redis://…
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import taskharbor
from taskharbor import Harbor

_PACKAGE = str(Path(taskharbor.__file__).parent)


class Trace:
    """The files with a function that was called while `is_on`, but for calls of the task that waits."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False
        self.waiting: asyncio.Task[Any] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if self.is_on and event == "call" and name.startswith(_PACKAGE) and not self._is_beside(frame):
            self.files.add(name.removeprefix(_PACKAGE + "/"))

    def _is_beside(self, frame: FrameType) -> bool:
        if frame.f_code.co_name == "<module>" or threading.current_thread().name == "taskharbor-heartbeat":
            return True
        return self.waiting is not None and self.waiting is _current_task()


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


async def way_of_a_job(url: str) -> set[str]:
    """The files that one job passes through on this store."""
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        return await _run(url, trace)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _run(url: str, trace: Trace) -> set[str]:
    harbor = Harbor(url)

    @harbor.task
    async def hello(name: str) -> None: ...

    async with harbor:
        worker = harbor.worker(scheduler=False, logbook=False)
        working = asyncio.ensure_future(worker.arun())
        ways: list[set[str]] = []
        for _ in range(3):
            await asyncio.sleep(0.5)
            finished = worker.counts.get("finished", 0)
            trace.files, trace.is_on = set(), True
            for number in (1, 2):
                trace.waiting = None
                await hello.aenqueue("Ada")
                trace.waiting = asyncio.current_task()
                while worker.counts["finished"] < finished + number:  # noqa: ASYNC110 - an event would need a listener
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.1)  # the claim for the next job is on its way
            trace.is_on, trace.waiting = False, None
            ways.append(trace.files)
        worker.stop()
        await working
    # Not the first: it makes what is made at first use. What only one of the others has comes by the clock.
    return ways[1] & ways[2]


def main(urls: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for url in urls or ["memory://", f"sqlite:///{folder}/jobs.db"]:
            files = asyncio.run(way_of_a_job(url))
            print(f"{url.partition(':')[0]}: {len(files)} files")
            print(*(f"    {name}" for name in sorted(files)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
