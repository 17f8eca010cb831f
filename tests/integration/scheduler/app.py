"""What runs in processes of its own here: `python -m tests.integration.scheduler.app ROLE OPTIONS`.

`worker` runs jobs whose handlers leave notes (see tests.integration.worker.app); `scheduler` leads, and
dies where its options say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.scheduler import Scheduler
from taskharbor.tasks import job_handler
from taskharbor.worker import Worker
from tests.integration.worker.app import note

VISIBLE_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")


async def hold(ctx, job):
    """Sleeps for as many seconds as its payload says, and returns which process it was."""
    note("started", job.id, copy=job.payload.decode())
    try:
        await asyncio.sleep(float(job.payload or b"0"))
    except asyncio.CancelledError:
        note("stopped", job.id, reason=ctx.cancelled.reason)
        raise
    note("ended", job.id)
    return os.getpid()


def grind(ctx, job):
    """The same in a process of its own, deaf to everything but signals."""
    note("started", job.id, visible=VISIBLE_AT_IMPORT, gpu=ctx.gpu and ctx.gpu.id)
    time.sleep(float(job.payload or b"0"))
    note("ended", job.id)
    return [VISIBLE_AT_IMPORT, ctx.gpu and ctx.gpu.id, ctx.gpu and ctx.gpu.ordinal]


def make_worker(driver: Driver, **options: Any) -> Worker:
    for name in ("lease", "grace", "heartbeat", "patience"):
        if isinstance(options.get(name), int | float):
            options[name] = timedelta(seconds=options[name])
    worker = Worker(driver, **options)
    worker.register("hold", hold)
    worker.add(job_handler("grind", grind, run_in="process"))
    return worker


def scheduler(driver: Driver, ttl: float, dies: str) -> None:
    """Lead. `dies` names where it is killed: before_ or after_ the first call of some verb."""

    def fatal(verb: str, *, is_late: bool) -> None:
        original = getattr(driver, verb)

        async def last_words(*args: Any, **options: Any) -> Any:
            if is_late:
                await original(*args, **options)
            note("dies", "", where=dies)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(driver, verb, last_words)

    if dies:
        when, _, verb = dies.partition("_")
        fatal(verb, is_late=when == "after")

    async def lead() -> None:
        async with driver:
            await Scheduler(driver, ttl=timedelta(seconds=ttl)).arun()

    asyncio.run(lead())


def main() -> None:
    logging.basicConfig(level="INFO")
    role, options = sys.argv[1], json.loads(sys.argv[2])
    driver = connect(os.environ["YARD_URL"])
    if role == "worker":
        make_worker(driver, **options).run()
    else:
        scheduler(driver, **options)


if __name__ == "__main__":
    # Under its own name, so that handler processes can import what is here.
    from tests.integration.scheduler import app

    app.main()
