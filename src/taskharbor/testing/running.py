"""Running what is due, in this process and to the end: what `drain` and `InlineHarbor` share."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from taskharbor.client.client import Client
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.errors import Parked
from taskharbor.events import AttemptFinished
from taskharbor.harbor.harbor import Harbor
from taskharbor.model.job import Job, JobRecord
from taskharbor.model.state import JobState
from taskharbor.tasks.handler import Handler
from taskharbor.testing.clock import SimulatedClock, running_job
from taskharbor.testing.pacing import keep_pace
from taskharbor.worker.worker import Worker

_USUAL_LANES = ("any", "cpu", "gpu")


class Ran(msgspec.Struct):
    """What one run of everything that was due came to."""

    attempts: list[AttemptFinished] = msgspec.field(default_factory=list)
    errors: list[BaseException] = msgspec.field(default_factory=list)
    """What handlers raised, in order."""


async def run_due(
    harbor: Harbor, *, concurrency: int = 1, max_jobs: int = 0, until: datetime | None = None
) -> Ran:
    """Run a real worker on every queue and lane until nothing is left that could run now.

    Everything happens in this process: blocking handlers in threads, also those that ask for a
    process of their own. Their errors take the usual way, and are noted. A simulated clock moves on,
    up to `until`, while every handler that runs is asleep on it.
    """
    harbor.import_tasks()
    if not len(harbor.tasks):
        return Ran()
    waiting = await jobs_in(harbor.client, JobState.READY, JobState.SCHEDULED)
    queues = {harbor.default_queue, *harbor.tasks.queues(), *(job.queue for job in waiting)}
    lanes = dict.fromkeys([*(job.requires for job in waiting), *_USUAL_LANES])
    ran = Ran()
    worker = harbor.worker(
        queues=sorted(queues), concurrency=concurrency, lanes=list(lanes), name="testing", max_jobs=max_jobs
    )
    for handler in harbor.tasks.handlers():
        worker.add(_at_home(handler, in_loop=harbor.clock is not None))
    running: dict[str, str] = {}
    working = asyncio.ensure_future(_work(worker, ran, running))
    try:
        if isinstance(harbor.clock, SimulatedClock):
            await keep_pace(harbor.clock, working, running, until)
        await working
    finally:
        working.cancel()
    return ran


async def _work(worker: Worker, ran: Ran, running: dict[str, str]) -> None:
    async def note(ctx: Any, job: Job, call_next: Callable[[Any, Job], Any]) -> Any:
        running[job.id] = job.type
        running_job.set(job.id)
        try:
            return await call_next(ctx, job)
        except Parked:
            raise
        except BaseException as error:
            ran.errors.append(error)
            raise
        finally:
            del running[job.id]

    worker.use(note)
    stop_listening = worker.events.listen(ran.attempts.append, AttemptFinished)
    try:
        await worker.arun(until_idle=True)
    finally:
        stop_listening()


def _at_home(handler: Handler, *, in_loop: bool) -> Handler:
    """The same handler without a process of its own.

    Under a simulated clock a worker runs everything in its event loop; a plain function goes to a
    thread all the same, where it may use the blocking twins.
    """
    if inspect.iscoroutinefunction(handler.function):
        return handler if handler.run_in != "process" else msgspec.structs.replace(handler, run_in="auto")
    if not in_loop:
        return msgspec.structs.replace(handler, run_in="thread")

    @functools.wraps(handler.function)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(handler.function, *args, **kwargs)

    return msgspec.structs.replace(handler, function=in_thread, run_in="loop")


async def jobs_in(client: Client, *states: JobState) -> list[JobRecord]:
    """Every job of these states, all pages of it; of all states when none is named."""
    query = Query(states=states or None, limit=MAX_PAGE)
    found: list[JobRecord] = []
    while True:
        page = await client.afind(query)
        found += page.jobs
        if page.next_cursor is None:
            return found
        query = msgspec.structs.replace(query, cursor=page.next_cursor)
