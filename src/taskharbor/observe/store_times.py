"""Times every call to a store, on whatever driver, and counts the jobs that go in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.wire import VERBS
from taskharbor.errors import DriverError
from taskharbor.model.job import NewJob
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter

OPS = ("open", "enqueue_in", *(verb for verb in VERBS if verb not in ("hello", "wakeups")))
_MARK = "_taskharbor_timed"


def time_store(driver: Driver, meter: Meter, *, counts_jobs: bool = True) -> Driver:
    """Time every call of this handle, and of every handle made from it, from now on; returns it.

    The verbs of this one handle are replaced. A `Relay` in front of it would not do: the harbor and its
    client have the handle already, and it keeps its class and its capabilities. Without metrics nothing is
    replaced, and a call costs nothing more. `counts_jobs=False` is for a handle on a TaskHarbor server,
    which counts the jobs that go in itself.
    """
    if getattr(driver, _MARK, None) is meter:
        return driver
    setattr(driver, _MARK, meter)
    for op in OPS:
        setattr(driver, op, _timed(getattr(driver, op), op, driver, meter, counts_jobs))
    _time_blocking(driver, meter, counts_jobs)
    make_another = driver.another

    def another() -> Driver:
        return time_store(make_another(), meter, counts_jobs=counts_jobs)

    driver.another = another  # type: ignore[method-assign]
    return driver


def _timed(
    verb: Callable[..., Any], op: str, driver: Driver, meter: Meter, counts_jobs: bool
) -> Callable[..., Any]:
    is_enqueue = op in ("enqueue", "enqueue_in")
    labels = ("enqueue" if is_enqueue else op,)
    counts = counts_jobs and is_enqueue
    monotonic = driver.clock.monotonic

    @functools.wraps(verb)
    async def call(*args: Any, **kwargs: Any) -> Any:
        started = monotonic()
        try:
            answer = await verb(*args, **kwargs)
        except (DriverError, TimeoutError):
            meter.add(metric_names.STORE_ERRORS, labels)
            raise
        finally:
            meter.observe(metric_names.STORE_OP, labels, monotonic() - started)
            if driver.orphans:
                meter.add(metric_names.ORPHANS, (), driver.orphans.take())
        if counts:
            _count(meter, args[0] if args else kwargs["jobs"], answer)
        elif op == "exchange" and answer.error is not None:
            meter.add(metric_names.STORE_ERRORS, labels)
        return answer

    return call


def _time_blocking(driver: Driver, meter: Meter, counts_jobs: bool) -> None:
    """Blocking enqueues count as enqueues."""
    verb = driver.enqueue_blocking
    labels = ("enqueue",)
    monotonic = driver.clock.monotonic

    @functools.wraps(verb)
    def call(jobs: Sequence[NewJob], **options: Any) -> list[Enqueued]:
        started = monotonic()
        try:
            answers = verb(jobs, **options)
        except DriverError:
            meter.add(metric_names.STORE_ERRORS, labels)
            raise
        finally:
            meter.observe(metric_names.STORE_OP, labels, monotonic() - started)
        if counts_jobs:
            _count(meter, jobs, answers)
        return answers

    driver.enqueue_blocking = call  # type: ignore[method-assign]


def _count(meter: Meter, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
    """Neighbours of one queue and task are counted together: most calls bring nothing else."""
    queue, task, count = "", "", 0
    for job, answer in zip(jobs, answers, strict=True):
        if answer.result not in _STORED:
            continue
        if job.type != task or job.queue != queue:
            if count:
                meter.add_job(metric_names.JOBS_ENQUEUED, queue, task, count)
            queue, task, count = job.queue, job.type, 0
        count += 1
    if count:
        meter.add_job(metric_names.JOBS_ENQUEUED, queue, task, count)


_STORED = (EnqueueResult.CREATED, EnqueueResult.BLOCKED)
