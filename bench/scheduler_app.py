"""The jobs of bench_scheduler.py: they sleep, so that nothing but the queue can make them slow.

The store is what TASKHARBOR_URL names.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskharbor import Harbor, JobContext, Speculate

SECONDS = 3.0
SLOW_FACTOR = 10
SLOW_ONE_IN = 20
RULE = Speculate(after=timedelta(seconds=2 * SECONDS), factor=2.0)

harbor = Harbor()


@harbor.task
async def even() -> None:
    """Always takes the same time."""
    await asyncio.sleep(SECONDS)


async def _uneven(ctx: JobContext) -> None:
    """One run in twenty takes ten times as long; which one is in the job's id, and a copy has its own."""
    is_slow = int(ctx.job.id[-6:], 16) % SLOW_ONE_IN == 0
    await asyncio.sleep(SECONDS * (SLOW_FACTOR if is_slow else 1))


@harbor.task
async def uneven(ctx: JobContext) -> None:
    await _uneven(ctx)


@harbor.task(speculate=RULE)
async def guarded(ctx: JobContext) -> None:
    await _uneven(ctx)
