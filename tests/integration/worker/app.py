"""An app for worker processes of their own: `python -m tests.integration.worker.app OPTIONS`.

Handlers leave lines in a folder, so that a test can wait for what they do: `started`, `ended`,
`cancelled`, each with the job's id and the process's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from taskharbor.drivers import connect
from taskharbor.worker import Worker

FOLDER = Path(os.environ.get("YARD", "."))
TICKS = os.open(FOLDER / "ticks", os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "YARD" in os.environ else -1
HANDLERS = ("sleeper", "stubborn", "leaver", "threaded", "quitter", "tick", "writer")


def note(what: str, job_id: str, **more: Any) -> None:
    line = (
        json.dumps({"what": what, "job": job_id, "pid": os.getpid(), "at": time.monotonic(), **more}) + "\n"
    )
    with (FOLDER / "notes").open("a") as file:
        file.write(line)


async def sleeper(ctx, job):
    """Sleeps for as many seconds as its payload says."""
    note("started", job.id, attempt=ctx.attempt)
    try:
        await asyncio.sleep(float(job.payload or b"0"))
    except asyncio.CancelledError:
        note("cancelled", job.id, reason=ctx.cancelled.reason)
        raise
    note("ended", job.id)
    return os.getpid()


async def stubborn(ctx, job):
    """Ignores every cancellation."""
    note("started", job.id)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("cancelled", job.id, reason=ctx.cancelled.reason)


async def leaver(ctx, job):
    """Raises what its payload names in tasks of its own, in a group and in a gathering."""
    error = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[job.payload.decode()]

    async def leave():
        await asyncio.sleep(0)
        raise error("leaving")

    try:
        await asyncio.gather(leave(), asyncio.sleep(0.05))
    except error:
        note("seen", job.id)
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())
        group.create_task(asyncio.sleep(3600))


async def threaded(ctx, job):
    """Leaves a thread behind that nobody can stop."""
    note("started", job.id)
    await asyncio.to_thread(time.sleep, float(job.payload))


async def quitter(ctx, job):
    """Ends its whole process."""
    note("started", job.id)
    os._exit(int(job.payload))


async def tick(ctx, job):
    """As little as can be counted: one line, appended as a whole."""
    os.write(TICKS, f"{os.getpid()} {job.id}\n".encode())


def writer(ctx, job):
    """Writes again and again into a table that refuses a lower fence, until it is asked to stop."""
    note("started", job.id, fence=ctx.fence)
    turns = 0
    with sqlite3.connect(FOLDER / "fenced.db", timeout=30) as db:
        db.execute("create table if not exists fenced (job text primary key, fence int, turns int)")
        while not ctx.cancelled.is_set() and turns < float(job.payload):
            turns += 1
            db.execute(
                "insert into fenced values (?, ?, ?) on conflict (job) do update"
                " set fence = excluded.fence, turns = excluded.turns where excluded.fence >= fenced.fence",
                (job.id, ctx.fence, turns),
            )
            db.commit()
            time.sleep(0.02)
    note("stopped", job.id, reason=ctx.cancelled.reason, turns=turns)


def make_worker(**options: Any) -> Worker:
    for name in ("lease", "grace", "heartbeat", "patience"):
        if isinstance(options.get(name), int | float):
            options[name] = timedelta(seconds=options[name])
    worker = Worker(connect(os.environ["YARD_URL"]), **options)
    for name in HANDLERS:
        worker.register(name, globals()[name])
    return worker


not_a_worker = 42


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    why = make_worker(**json.loads(sys.argv[1])).run()
    note("worker ended", "", why=why)
