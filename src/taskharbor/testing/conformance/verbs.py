"""Every verb of the contract as a table: those that need a lease, and all of them with arguments that fit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.drivers.one_job import RetryUpdate
from taskharbor.errors import LeaseLost
from taskharbor.model.job import Lease
from taskharbor.model.presence import WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.testing.conformance.kit import (
    ENDS,
    LEASE,
    MINUTE,
    QUEUE,
    START,
    UNKNOWN_ID,
    WORKER,
    claim,
    new_job,
)

LeasedVerb = Callable[[Driver, Lease, datetime], Awaitable[object]]
"""Called with a lease; the answer, or the lease error as a value."""


def _settles(end: type[Settlement]) -> LeasedVerb:
    async def call(driver: Driver, lease: Lease, now: datetime) -> object:
        [answer] = await driver.settle([end(lease)], now=now)
        return answer

    return call


def _exchanges(end: type[Settlement]) -> LeasedVerb:
    async def call(driver: Driver, lease: Lease, now: datetime) -> object:
        answers = await driver.exchange([end(lease)], claim(queues=("kit-nothing-here",)), now=now)
        assert (answers.claimed, answers.error) == ([], None)
        [answer] = answers.settled
        return answer

    return call


async def _extends(driver: Driver, lease: Lease, now: datetime) -> object:
    [answer] = await driver.extend_leases([lease], LEASE, now=now)
    return answer


def _one_job(call: LeasedVerb) -> LeasedVerb:
    """The one-job forms raise; here the error becomes a value like everywhere else."""

    async def caught(driver: Driver, lease: Lease, now: datetime) -> object:
        try:
            return await call(driver, lease, now)
        except LeaseLost as error:
            return error

    return caught


LEASED_VERBS: dict[str, LeasedVerb] = {
    **{f"settle {name}": _settles(end) for name, end in ENDS.items()},
    **{f"exchange {name}": _exchanges(end) for name, end in ENDS.items()},
    "extend_leases": _extends,
    "ack": _one_job(lambda driver, lease, now: driver.ack(lease.job_id, lease.token, now)),
    "retry": _one_job(
        lambda driver, lease, now: driver.retry(lease.job_id, lease.token, now, RetryUpdate(attempts=1))
    ),
    "fail": _one_job(lambda driver, lease, now: driver.fail(lease.job_id, lease.token, now, "broken")),
    "extend_lease": _one_job(
        lambda driver, lease, now: driver.extend_lease(lease.job_id, lease.token, now, LEASE)
    ),
}

_LEASE = Lease(UNKNOWN_ID, "0" * 32)

EVERY_VERB: dict[str, Callable[[Driver], Awaitable[object]]] = {
    "enqueue": lambda driver: driver.enqueue([new_job()], now=START),
    "reserve": lambda driver: driver.reserve(claim(), now=START),
    "extend_leases": lambda driver: driver.extend_leases([_LEASE], LEASE, now=START),
    "settle": lambda driver: driver.settle([Ack(_LEASE)], now=START),
    "exchange": lambda driver: driver.exchange([Ack(_LEASE)], claim(), now=START),
    "reclaim": lambda driver: driver.reclaim(now=START),
    "promote": lambda driver: driver.promote(now=START),
    "prune": lambda driver: driver.prune(now=START),
    "cancel": lambda driver: driver.cancel([UNKNOWN_ID], now=START),
    "cancel_waiting": lambda driver: driver.cancel_waiting(QUEUE, b"key", now=START),
    "requeue": lambda driver: driver.requeue([UNKNOWN_ID], now=START),
    "delete": lambda driver: driver.delete([UNKNOWN_ID], now=START),
    "configure_queue": lambda driver: driver.configure_queue(
        QueueSettings(queue=QUEUE, paused=False), now=START
    ),
    "speculate": lambda driver: driver.speculate(UNKNOWN_ID, now=START),
    "get": lambda driver: driver.get([UNKNOWN_ID], now=START),
    "look": lambda driver: driver.get([UNKNOWN_ID], now=START, payloads=False),
    "find": lambda driver: driver.find(Query(), now=START),
    "count": lambda driver: driver.count(now=START),
    "queues": lambda driver: driver.queues(now=START),
    "info": lambda driver: driver.info(),
    "report_worker": lambda driver: driver.report_worker(WorkerReport(worker_id=WORKER), now=START),
    "forget_worker": lambda driver: driver.forget_worker(WORKER, now=START),
    "workers": lambda driver: driver.workers(now=START),
    "types": lambda driver: driver.types(now=START),
    "hold_role": lambda driver: driver.hold_role("leader", WORKER, LEASE, now=START),
    "release_role": lambda driver: driver.release_role("leader", WORKER, now=START),
    "put_schedule": lambda driver: driver.put_schedule(
        Schedule(name="nightly", template=new_job(), every=MINUTE), now=START
    ),
    "advance_schedule": lambda driver: driver.advance_schedule("nightly", START, now=START),
    "delete_schedule": lambda driver: driver.delete_schedule("nightly", now=START),
    "schedules": lambda driver: driver.schedules(now=START),
    "pending_migrations": lambda driver: driver.pending_migrations(),
    "migrate": lambda driver: driver.migrate(),
    # The one-job forms stand on the verbs above.
    "reserve_one": lambda driver: driver.reserve_one(QUEUE, START, LEASE),
    "ack": lambda driver: driver.ack(UNKNOWN_ID, _LEASE.token, START),
    "retry": lambda driver: driver.retry(UNKNOWN_ID, _LEASE.token, START, RetryUpdate(attempts=1)),
    "fail": lambda driver: driver.fail(UNKNOWN_ID, _LEASE.token, START, "broken"),
    "extend_lease": lambda driver: driver.extend_lease(UNKNOWN_ID, _LEASE.token, START, LEASE),
}
