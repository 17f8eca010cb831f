"""The app of `taskharbor demo`: small tasks that succeed, fail, snooze, crash and can be cancelled.

The demo's worker processes load it like any other app: `taskharbor worker taskharbor.cli.demo_app:harbor`.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

from taskharbor.errors import Unrecoverable
from taskharbor.harbor import Harbor
from taskharbor.model.outcome import Snooze
from taskharbor.model.retry import RetryPolicy
from taskharbor.worker.attempt import JobContext

IMAGES, CALLS, REPORTS = QUEUES = ("demo-images", "demo-calls", "demo-reports")

TIMES_SLOWER = "DEMO_TIMES_SLOWER"
"""How many times as long jobs take in this process: on a terminal the demo has one slow worker."""
_SLOWER = float(os.environ.get(TIMES_SLOWER, "1"))

harbor = Harbor(retry=RetryPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=1)))


@harbor.task(queue=IMAGES)
async def resize_image(ctx: JobContext, number: int) -> str:
    """Simply succeeds."""
    await ctx.clock.sleep(0.05 * _SLOWER)
    return f"image {number} is 640 px wide"


@harbor.task(queue=CALLS, max_attempts=5)
async def call_flaky_service(ctx: JobContext, failures: int) -> str:
    """Fails a few times, then succeeds."""
    await ctx.clock.sleep(0.02 * _SLOWER)
    if ctx.attempt <= failures:
        raise ConnectionError(f"the service hung up (attempt {ctx.attempt})")
    return f"answered at attempt {ctx.attempt}"


@harbor.task(queue=CALLS, max_attempts=2)
async def call_dead_service(ctx: JobContext, order: int, plan: str = "free") -> None:
    """Uses up its attempts."""
    await ctx.clock.sleep(0.02 * _SLOWER)
    raise ConnectionError(f"no answer from 10.0.7.{order % 2 + 1}:8443")


@harbor.task(queue=CALLS)
async def charge_unknown_card(card: str) -> None:
    """Fails for good at once."""
    raise Unrecoverable(f"there is no card {card}")


@harbor.task(queue=REPORTS)
async def sync_account(account: int, change: int) -> str:
    """Keyed: while it waits, newer data takes the place of older."""
    return f"account {account} is at change {change}"


@harbor.task(queue=REPORTS)
async def send_reminder(number: int) -> str:
    """Scheduled for later."""
    return f"reminder {number} went out"


@harbor.task(queue=REPORTS)
async def await_upload(ctx: JobContext) -> str | Snooze:
    """Looks whether its time has come and, if not, asks to be run again later."""
    waited = ctx.clock.now() - ctx.job.created_at
    return "the file is there" if waited >= timedelta(seconds=1) else Snooze(timedelta(milliseconds=300))


@harbor.task(queue=REPORTS, timeout="1m")
async def write_long_report(ctx: JobContext) -> None:
    """Runs until it is cancelled."""
    for part in range(600):
        ctx.progress(part / 600, "writing")
        await ctx.clock.sleep(0.1)


@harbor.task(queue=IMAGES)
async def lose_the_worker(ctx: JobContext) -> str:
    """Kills its whole worker, once: the lease runs out and another worker takes the job over."""
    if ctx.job.stalls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return "taken over"


@harbor.task(queue=IMAGES, run_in="process")
def decode_broken_image(ctx: JobContext, number: int) -> str:
    """Kills the process it runs in, once; the worker and its other jobs live on."""
    if ctx.job.stalls == 0:
        os._exit(139)
    return f"image {number} decoded at the second try"
