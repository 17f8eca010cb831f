"""Every verb of the contract as a table: those that need a lease, and all of them with arguments that fit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, Resolution
from taskharbor.drivers.one_job import RetryUpdate
from taskharbor.drivers.wire import VERBS, Verb
from taskharbor.errors import LeaseLost
from taskharbor.model.job import Lease, Note
from taskharbor.model.logbook import LogEntry
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

_ARGUMENTS: dict[str, Any] = {
    "jobs": [new_job()],
    "claim": claim(),
    "leases": [_LEASE],
    "lease_for": LEASE,
    "settlements": [Ack(_LEASE)],
    "ids": [UNKNOWN_ID],
    "queue": QUEUE,
    "queues": [QUEUE],
    "key": b"key",
    "settings": QueueSettings(queue=QUEUE, paused=False),
    "job_id": UNKNOWN_ID,
    "query": Query(),
    "report": WorkerReport(worker_id=WORKER),
    "ttl": LEASE,
    "worker_id": WORKER,
    "role": "leader",
    "holder": WORKER,
    "schedule": Schedule(name="nightly", template=new_job(), every=MINUTE),
    "name": "nightly",
    "tick": START,
    "now": START,
    "entries": [LogEntry(book="kit", at=START, by=WORKER, data=b"cell", until=START + MINUTE)],
    "book": "kit",
    "since": START,
    "until": START + MINUTE,
    "notes": [Note("step", b"data", lease=_LEASE)],
    "items": [Resolution(id=UNKNOWN_ID)],
}


def _called(verb: Verb) -> Callable[[Driver], Awaitable[object]]:
    """The verb with the arguments that it needs, at START."""
    fields = msgspec.structs.fields(verb.request)
    given = {field.name: _ARGUMENTS[field.name] for field in fields if field.required or field.name == "now"}
    return lambda driver: getattr(driver, verb.name)(**given)


EVERY_VERB: dict[str, Callable[[Driver], Awaitable[object]]] = {
    **{name: _called(verb) for name, verb in VERBS.items() if name not in ("hello", "wakeups")},
    "look": lambda driver: driver.get([UNKNOWN_ID], now=START, payloads=False),
    # The one-job forms use the verbs above.
    "reserve_one": lambda driver: driver.reserve_one(QUEUE, START, LEASE),
    "ack": lambda driver: driver.ack(UNKNOWN_ID, _LEASE.token, START),
    "retry": lambda driver: driver.retry(UNKNOWN_ID, _LEASE.token, START, RetryUpdate(attempts=1)),
    "fail": lambda driver: driver.fail(UNKNOWN_ID, _LEASE.token, START, "broken"),
    "extend_lease": lambda driver: driver.extend_lease(UNKNOWN_ID, _LEASE.token, START, LEASE),
}
