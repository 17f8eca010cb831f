"""Handlers that every worker has: nodes that make their children when they run, and nodes that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.errors import StepError
from taskharbor.model.codec import Codec
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import Job, NewJob
from taskharbor.model.workflow import SPAWN_TYPE, WAIT_TYPE, placed
from taskharbor.tasks.handler import Handler, job_handler
from taskharbor.worker.durable import BATCH, Durable


def built_in_handlers(codec: Codec) -> list[Handler]:
    return [
        job_handler(SPAWN_TYPE, _spawn, codec=codec),
        job_handler(WAIT_TYPE, _wait, codec=codec),
    ]


async def _spawn(ctx: Any, job: Job) -> None:
    """Store the nodes of a workflow, or one job for each item of a map, as children of this job.

    Its own work ends with that; it is over with its children. Repeated, it stores nothing twice.
    """
    durable: Durable = ctx._durable
    payload = durable.tools.codec.decode(job.payload)
    if "nodes" in payload:
        template = [msgspec.convert(node, NewJob) for node in payload["nodes"]]
        await durable.store(placed(template, job.id))
        return
    each = msgspec.convert(payload["each"], NewJob)
    items = payload["over"]
    if not isinstance(items, list):
        raise StepError(f"a map goes over a list, not over {type(items).__name__}")
    # Children are stored in order: what is there already need not be stored again.
    stored = family_of((await durable.get([job.id]))[job.id]).total
    for start in range(stored, len(items), BATCH):
        jobs = _jobs_of(durable, each, payload["parameter"], items, start)
        await durable.store(placed(jobs, job.id))


def _jobs_of(
    durable: Durable, each: NewJob, parameter: str, items: list[Any], start: int
) -> Iterator[NewJob]:
    for index in range(start, min(start + BATCH, len(items))):
        data = durable.tools.codec.encode({parameter: items[index]})
        yield replace(each, id=f"[{index}]", payload=data)


async def _wait(ctx: Any, job: Job) -> Any:
    """Wait for an event; its value is the result of this job."""
    durable: Durable = ctx._durable
    asked = durable.tools.codec.decode(job.payload)
    return await ctx.aevent(asked["name"], timeout=asked["timeout"])
