"""Many workers in one process: `python -m tests.chaos.crowd 50 5` runs fifty with leases of five seconds.

Each has its own handle on the store, its own heartbeat and its own name, as if it had a process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from taskharbor.worker.worker import Worker
from tests.chaos import app


async def main(count: int, lease: float) -> None:
    folder, url = Path(os.environ["CHAOS_FOLDER"]), os.environ["CHAOS_URL"]
    workers = []
    for number in range(count):
        worker = Worker(
            app.recorded(url, f"worker {os.getpid()} {number}", folder),
            concurrency=1,
            lease=timedelta(seconds=lease),
            grace=timedelta(seconds=1),
            name=f"crowd-{os.getpid()}-{number}",
        )
        for handler in app.harbor.tasks.handlers():
            worker.add(handler)
        workers.append(worker)

    def stop() -> None:
        for worker in workers:
            worker.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(worker.arun() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
