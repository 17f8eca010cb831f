"""drain: run jobs until nothing is due, and with a simulated clock until nothing is left to wait for."""

from __future__ import annotations

from datetime import datetime

from taskharbor.events import AttemptFinished
from taskharbor.harbor.harbor import Harbor
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.entropy import Entropy
from taskharbor.model.schedule import ticks
from taskharbor.model.state import JobState
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.fire_cron import FireCron
from taskharbor.testing.clock import SimulatedClock
from taskharbor.testing.running import jobs_in, run_due

MAX_ATTEMPTS = 1000


def drain(
    harbor: Harbor,
    *,
    within: Duration | None = None,
    expire_leases: bool = False,
    max_attempts: int = MAX_ATTEMPTS,
    concurrency: int = 1,
) -> list[AttemptFinished]:
    """Run jobs with a real worker until nothing is due; answers every attempt, in order.

    When the harbor has a SimulatedClock, the clock jumps to what is waited for next: a delay, a backoff or a
    deadline of a workflow. It does so until nothing is waited for any more. It moves on while a handler
    sleeps on it. `within` bounds how far it may go. `expire_leases` lets it jump to the end of leases, too,
    as if their workers had died. Schedules fire when their ticks come; since that never ends, the clock jumps
    to their ticks only with `within`.

    Raises:
        AssertionError: more than `max_attempts` attempts, as by a job that snoozes for ever; or a
            handler that sleeps beyond `within`. It names the job.
    """
    return harbor.client._block(
        adrain,
        harbor,
        within=within,
        expire_leases=expire_leases,
        max_attempts=max_attempts,
        concurrency=concurrency,
    )


async def adrain(
    harbor: Harbor,
    *,
    within: Duration | None = None,
    expire_leases: bool = False,
    max_attempts: int = MAX_ATTEMPTS,
    concurrency: int = 1,
) -> list[AttemptFinished]:
    """The same for async code: handlers run in this event loop."""
    clock = harbor.clock
    span = optional_duration(within, "within")
    until = clock.now() + span if clock is not None and span is not None else None
    attempts: list[AttemptFinished] = []
    while True:
        await _fire_schedules(harbor)
        most = max_attempts + 1 - len(attempts)
        ran = await run_due(harbor, concurrency=concurrency, max_jobs=most, until=until)
        attempts += ran.attempts
        if len(attempts) > max_attempts:
            raise AssertionError(
                f"still not drained after {max_attempts} attempts; the last was {attempts[-1]}"
            )
        if not isinstance(clock, SimulatedClock):
            return attempts
        next_at = await _next_event(
            harbor, clock.now(), expire_leases=expire_leases, has_end=until is not None
        )
        if next_at is None or (until is not None and next_at > until):
            return attempts
        clock.advance_to(next_at)


async def _fire_schedules(harbor: Harbor) -> None:
    """Make the jobs of the ticks that have come, as the scheduler beside a worker does."""
    driver = await harbor.client.adriver()
    await harbor.schedules.astore()
    clock = harbor.client.clock
    await FireCron(driver, Now(driver, clock), Entropy(), events=harbor.events).run_once()


async def _next_event(
    harbor: Harbor, now: datetime, *, expire_leases: bool, has_end: bool
) -> datetime | None:
    """The next instant at which something can run that cannot run now."""
    scheduled = await jobs_in(harbor.client, JobState.SCHEDULED)
    instants = [job.run_at for job in scheduled if job.run_at is not None]
    if harbor.driver.capabilities.workflows:
        live = [*scheduled, *await jobs_in(harbor.client, JobState.BLOCKED, JobState.READY)]
        deadlines = [job.bonds.deadline for job in live if job.bonds is not None]
        instants += [at for at in deadlines if at is not None]
    if expire_leases:
        running = await jobs_in(harbor.client, JobState.RUNNING)
        instants += [job.lease_expires_at for job in running if job.lease_expires_at is not None]
    if has_end:
        entries = await harbor.schedules.alist()
        coming = [next(ticks(entry.schedule, now), None) for entry in entries if not entry.paused]
        instants += [tick for tick in coming if tick is not None]
    return min((at for at in instants if at > now), default=None)
