"""A call of a verb as data: made on a store, and played on the reference model.

`play` brings the model to the state after the call and returns what the model answers. `plain` makes two
answers comparable: it leaves out tokens, instants and the words of errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.error_codec import Failure, failure_of
from taskharbor.drivers.messages import Claimed, Exchanged, Extended, Reclaimed, Settled, Speculated
from taskharbor.errors import (
    DriverError,
    JobNotInflight,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    TaskHarborError,
)
from taskharbor.model.job import JobRecord, Lease
from taskharbor.model.settlement import Ack
from taskharbor.testing.reference import ReferenceModel
from taskharbor.testing.reference.jobs import Record
from taskharbor.testing.reference.jobs import plain as plain_update

HOUR = timedelta(hours=1)


class Call(msgspec.Struct, frozen=True):
    """One call: its verb, and what it is given."""

    verb: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = {}

    async def make(self, driver: Driver, now: datetime | None) -> Any:
        """The answer of the store; an error of ours that says no is an answer, too."""
        try:
            if self.verb == "transaction":
                return [await _transaction(driver, *self.args, now=now)]
            if self.verb == "enqueue_blocking":
                return await asyncio.to_thread(driver.enqueue_blocking, *self.args, now=now)
            return await getattr(driver, self.verb)(*self.args, **self.options, now=now)
        except DriverError:
            raise
        except TaskHarborError as error:
            return error


async def _transaction(driver: Driver, lease: Lease, *, now: datetime | None) -> Settled | LeaseLost:
    """The ack of a handler that writes to the store itself."""
    settled: list[Settled] = []
    try:
        async with driver.transaction(lease, now=now, on_settled=settled.append):
            pass
    except LeaseLost as error:
        return error
    return settled[0]


class Answer(msgspec.Struct, frozen=True):
    """What a racer was answered, between which instants of the machine's clock."""

    call: Call
    answer: Any
    sent: float = 0.0
    got: float = 0.0


# ------------------------------------------------------------------ on the model


def play(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    """Make the call on the model. What the contract leaves to the store is taken from its answer."""
    return _PLAYS[call.verb](model, call, answer, at)


def _enqueue(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    return model.enqueue(call.args[0], at)


def _reserve(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    tokens = {job.id: job.token for job in answer.jobs}
    taken, given_up = model.reserve(call.args[0], at, tokens)
    return Claimed([model.whole(job_id) for job_id in taken], tuple(given_up))


def _extend(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    tokens = {one.lease.job_id: one.lease.token for one in answer if isinstance(one, Extended)}
    leases, span = call.args
    return model.extend_leases(leases, span, at, call.options.get("progress", {}), tokens)


def _speculate(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    copy_id = answer.copy_id if isinstance(answer, Speculated) else "unknown"
    return model.speculate(call.args[0], copy_id, at)


def _requeue(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    return model.requeue(call.args[0], at, **call.options)


def _acked(model: ReferenceModel, call: Call, answer: Any, at: datetime) -> Any:
    return model.settle([Ack(call.args[0])], at)


def _straight(name: str) -> Callable[..., Any]:
    return lambda model, call, answer, at: getattr(model, name)(*call.args, at)


_PLAYS: dict[str, Callable[[ReferenceModel, Call, Any, datetime], Any]] = {
    "enqueue": _enqueue,
    "enqueue_blocking": _enqueue,
    "reserve": _reserve,
    "extend_leases": _extend,
    "settle": _straight("settle"),
    "transaction": _acked,
    "reclaim": _straight("reclaim"),
    "cancel": _straight("cancel"),
    "cancel_waiting": _straight("cancel_waiting"),
    "requeue": _requeue,
    "delete": _straight("delete"),
    "speculate": _speculate,
    "promote": lambda model, call, answer, at: answer,  # changes nothing that can be read
    "configure_queue": lambda model, call, answer, at: model.configure_queue(*call.args),
}


def copied(model: ReferenceModel) -> ReferenceModel:
    """A model of its own in the same state."""
    other = ReferenceModel()
    for name, value in vars(model).items():
        setattr(other, name, value.copy() if isinstance(value, dict | set) else value)
    other.jobs = {job_id: Record(**vars(job)) for job_id, job in model.jobs.items()}
    return other


# ------------------------------------------------------------------ comparing

_LOST = {error.__name__ for error in (JobNotInflight, LeaseExpired, LeaseMismatch)}
_MOMENTS = (
    "created_at",
    "updated_at",
    "run_at",
    "lease_expires_at",
    "started_at",
    "finished_at",
    "failed_at",
)
_OF_THE_STORE = ("seq", "token", "settled_token", "fence", "avoid", "last_error")


def plain(answer: Any, queue: str) -> Any:
    """An answer without what differs between two right stores; of a sweep what it did in this queue."""
    if isinstance(answer, list | tuple):
        return [plain(one, queue) for one in answer if not _is_elsewhere(one, queue)]
    if isinstance(answer, TaskHarborError):
        return plain(failure_of(answer), queue)
    if isinstance(answer, Failure):
        # Why a lease is refused is looked up afterwards, so it may be the reason of a later instant.
        is_lease = answer.error in _LOST
        return "LeaseLost" if is_lease else (answer.error, answer.data.get("existing_id"))
    if isinstance(answer, JobRecord):
        return plain_record(answer)
    if isinstance(answer, Claimed):
        return plain(answer.jobs, queue)
    if isinstance(answer, msgspec.Struct):
        fields = msgspec.structs.asdict(answer)
        return type(answer).__name__, *(fields[name] for name in fields if name not in ("at", "lease"))
    return answer


def _is_elsewhere(one: Any, queue: str) -> bool:
    return isinstance(one, Reclaimed) and one.queue != queue


def plain_record(job: JobRecord | None) -> Any:
    """A record without instants and without what the store may choose."""
    if job is None:
        return None
    fields = msgspec.structs.asdict(job)
    for name in (*_MOMENTS, *_OF_THE_STORE):
        del fields[name]
    fields["history"] = [(entry.worker_id, entry.outcome) for entry in job.history]
    fields["update"] = None if job.update is None else plain_update(job.update)
    fields["has_error"] = job.last_error is not None
    fields["is_timed"] = job.run_at is not None
    return fields


def at_of(answer: Any) -> datetime | None:
    """The instant that decided, where the answer says it."""
    if isinstance(answer, Claimed):
        return answer.jobs[0].started_at if answer.jobs else at_of([*answer.given_up])
    if isinstance(answer, list):
        known = [at for one in answer if (at := at_of(one)) is not None]
        return max(known, default=None)
    return getattr(answer, "at", None)


def parts_of(answer: Answer) -> Sequence[Answer]:
    """An exchange is a settlement, then a claim; every other call is one step."""
    if answer.call.verb != "exchange":
        return [answer]
    settlements, claim = answer.call.args
    both: Exchanged = answer.answer
    assert both.error is None, both.error
    return [
        replace(answer, call=Call("settle", (settlements,)), answer=both.settled),
        replace(answer, call=Call("reserve", (claim,)), answer=Claimed(both.claimed, both.given_up)),
    ]
