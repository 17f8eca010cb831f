"""What a caller may do through the driver's verbs: a token for some queues sees only those.

Everything else is as if it were not there: ids of other queues are unknown, listings leave them out.
Leases need no check: whoever shows a token was handed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Page, QueueInfo, RoleLease
from taskharbor.drivers.wire import Verb
from taskharbor.errors import JobNotFound, TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.schedule import StoredSchedule
from taskharbor.web.audit import shown
from taskharbor.web.auth import Principal, require_every_queue, require_queue
from taskharbor.web.call import Call
from taskharbor.web.problems import Problem

_NOBODY = "00000000-0000-0000-0000-000000000000"  # no client makes this id, and no store knows it
_HIDDEN = b'"***"'

Arguments = dict[str, Any]


def check_role(principal: Principal, verb: Verb) -> None:
    """Raises Problem `forbidden` unless one of the verb's roles is the caller's."""
    if not any(principal.may(role) for role in verb.roles):
        raise Problem(
            "forbidden",
            f"{verb.name} needs the role {' or '.join(verb.roles)}; this token has the role {principal.role}",
        )


def check_queues(principal: Principal, verb: str, arguments: Arguments) -> None:
    """Raises Problem `forbidden` for a call that names a queue of others."""
    for queue in _queues_in(verb, arguments):
        require_queue(principal, queue)
    if verb == "migrate":
        require_every_queue(principal)


async def check_amounts(call: Call, driver: Driver, verb: str, arguments: Arguments) -> None:
    """Raises Problem for one queue or schedule too many, and for a schedule that stands for other queues."""
    if verb == "enqueue":
        for queue in dict.fromkeys(job.queue for job in arguments["jobs"]):
            call.service.quota.spend(call.principal, queue)
    elif verb == "put_schedule":
        there = {stored.schedule.name: stored.schedule for stored in await driver.schedules()}
        known = there.get(arguments["schedule"].name)
        if known is not None:
            require_queue(call.principal, known.template.queue)
        elif len(there) >= call.service.config.max_schedules:
            raise Problem("rate-limited", f"there are {len(there)} schedules already; nothing was stored")


def told_to_audit(verb: str, arguments: Arguments) -> dict[str, Any]:
    """What a change was about, without its payloads."""
    match verb:
        case "enqueue":
            return {"jobs": len(arguments["jobs"])}
        case "cancel" | "requeue" | "delete":
            return {
                "job_ids": [shown(job_id) for job_id in arguments["ids"][:20]],
                "jobs": len(arguments["ids"]),
            }
        case "configure_queue":
            return {"queue": shown(arguments["settings"].queue)}
        case "cancel_waiting":
            return {"queue": shown(arguments["queue"])}
        case "put_schedule":
            return {"schedule": shown(arguments["schedule"].name)}
        case "delete_schedule":
            return {"schedule": shown(arguments["name"])}
    return {}


def _queues_in(verb: str, arguments: Arguments) -> Sequence[str]:
    match verb:
        case "enqueue":
            return [job.queue for job in arguments["jobs"]]
        case "reserve" | "exchange":
            claim: Claim = arguments["claim"]
            return claim.queues
        case "wakeups":
            named: list[str] = arguments["queues"]
            return named
        case "cancel_waiting":
            return (arguments["queue"],)
        case "configure_queue":
            return (arguments["settings"].queue,)
        case "put_schedule":
            return (arguments["schedule"].template.queue,)
        case "find":
            queue = arguments["query"].queue
            return () if queue is None else (queue,)
        case "count":
            return arguments["queues"] or ()
    return ()


class Narrowed:
    """The verbs as a caller for some queues may use them."""

    def __init__(self, principal: Principal, driver: Driver) -> None:
        self._driver = driver
        self._may_use: Callable[[str], bool] = principal.may_use
        self._queues = sorted(principal.queues or ())

    async def call(self, verb: str, arguments: Arguments) -> Any:
        if verb in ("cancel", "requeue", "delete"):
            return await self._by_ids(verb, arguments)
        if verb == "speculate" and not await self._known([arguments["job_id"]]):
            return JobNotFound(arguments["job_id"])
        if verb == "hold_role":
            return await self._standby(arguments)
        if verb in ("advance_schedule", "delete_schedule") and not await self._has_schedule(
            arguments["name"]
        ):
            return False
        if verb == "count" and arguments["queues"] is None:
            arguments["queues"] = self._queues
        return self._seen(await getattr(self._driver, verb)(**arguments))

    def _seen(self, answer: Any) -> Any:
        """An answer without what belongs to other queues."""
        if isinstance(answer, Page):
            return Page([job for job in answer.jobs if self._may_use(job.queue)], answer.cursor)
        if not isinstance(answer, list):
            return answer
        return [self._seen_item(item) for item in answer if self._is_listed(item)]

    def _is_listed(self, item: Any) -> bool:
        if isinstance(item, QueueInfo):
            return self._may_use(item.queue)
        if isinstance(item, StoredSchedule):
            return self._may_use(item.schedule.template.queue)
        return True

    def _seen_item(self, item: Any) -> Any:
        return None if isinstance(item, JobRecord) and not self._may_use(item.queue) else item

    async def _by_ids(self, verb: str, arguments: Arguments) -> list[Any]:
        """An id of another queue is asked for as one that nobody has, and answered like that."""
        ids: list[str] = arguments["ids"]
        known = await self._known(ids)
        asked = [job_id if job_id in known else _NOBODY for job_id in ids]
        answers = await getattr(self._driver, verb)(**{**arguments, "ids": asked})
        return [
            answer if job_id in known else _as_unknown(answer, job_id)
            for job_id, answer in zip(ids, answers, strict=True)
        ]

    async def _known(self, ids: Sequence[str]) -> set[str]:
        records = await self._driver.get(ids)
        pairs = zip(ids, records, strict=True)
        return {job_id for job_id, record in pairs if record is not None and self._may_use(record.queue)}

    async def _standby(self, arguments: Arguments) -> RoleLease:
        """Who leads fires every schedule and sweeps every queue: not somebody who may not."""
        at = (await self._driver.info()).at
        return RoleLease(arguments["role"], "another", 0, at + arguments["ttl"], is_mine=False)

    async def _has_schedule(self, name: str) -> bool:
        schedules = await self._driver.schedules()
        return any(
            stored.schedule.name == name and self._may_use(stored.schedule.template.queue)
            for stored in schedules
        )


def _as_unknown(answer: Any, job_id: str) -> Any:
    return JobNotFound(job_id) if isinstance(answer, TaskHarborError) else replace(answer, id=job_id)


def without_payloads(answer: Any) -> Any:
    """An answer as viewers get it: payloads and results are hidden."""
    if isinstance(answer, Page):
        return Page([_hidden(job) for job in answer.jobs], answer.cursor)
    if isinstance(answer, list):
        return [_hidden(item) if isinstance(item, JobRecord) else item for item in answer]
    return answer


def _hidden(job: JobRecord) -> JobRecord:
    result = None if job.result is None else _HIDDEN
    return replace(job, payload=_HIDDEN, result=result)
