"""The verbs of the driver as a token for some queues may use them: the rest is as if it were not there.

Ids of other queues are unknown, listings leave them out, and so are the workers that serve only others.
Leases need no check: whoever shows a token was handed it. Which verb is open to whom: rights.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Page, QueueInfo, Reclaimed, RoleLease
from taskharbor.drivers.wire import Verb
from taskharbor.errors import JobNotFound, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.schedule import StoredSchedule
from taskharbor.web.audit import shown
from taskharbor.web.auth import Principal, require_queue
from taskharbor.web.call import Call
from taskharbor.web.problems import Problem
from taskharbor.web.queue_names import queues_named

_NOBODY = "00000000-0000-0000-0000-000000000000"  # no client makes this id, and no store knows it
_KNOWN_SECONDS = 10.0
_MAX_KNOWN = 10_000

Arguments = dict[str, Any]


def check_queues(principal: Principal, verb: Verb, arguments: Arguments) -> None:
    """Raises Problem `forbidden` for a call that names a queue of others, wherever the name stands."""
    if principal.queues is None:
        return
    for queue in queues_named(verb.request, arguments):
        require_queue(principal, queue)
    report = arguments.get("report")
    if isinstance(report, WorkerReport) and not report.queues:
        raise Problem("forbidden", "a worker that names no queues serves all, and this token is for some")


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
        call.service.portions.check_schedules(there.values(), arguments["schedule"])


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
        case "forget_worker":
            return {"worker": shown(arguments["worker_id"])}
        case "release_role":
            return {"harbor_role": shown(arguments["role"]), "holder": shown(arguments["holder"])}
    return {}


# ------------------------------------------------------------------ workers


def is_own_worker(principal: Principal, report: WorkerReport) -> bool:
    """Whether a worker serves queues of this caller and no others."""
    return bool(report.queues) and all(map(principal.may_use, report.queues))


def visible_workers(principal: Principal, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Those that serve a queue of the caller's; of one that serves others too, what concerns the caller."""
    if principal.queues is None:
        return list(workers)
    found = []
    for worker in workers:
        own = tuple(filter(principal.may_use, worker.report.queues))
        if own:
            found.append(worker if is_own_worker(principal, worker.report) else _partly(worker, own))
    return found


def _partly(worker: WorkerInfo, own: tuple[str, ...]) -> WorkerInfo:
    """Whether it would take a job, and not where it is and what else it does."""
    report = replace(worker.report, queues=own, running=(), host="", pid=0, labels={})
    return replace(worker, report=report)


class WorkerNames:
    """Under whose name a token for some queues may work: not that of a worker that serves other queues.

    Claims come many times a second, so a name that was looked up is known for some seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[Principal, str], float] = {}

    async def check(self, principal: Principal, driver: Driver, arguments: Arguments) -> None:
        """Raises Problem `forbidden` for a call in the name of another's worker."""
        if principal.queues is None:
            return
        for name in _workers_named(arguments):
            if not self._is_known(principal, name):
                await self._look(principal, driver, name)

    def _is_known(self, principal: Principal, name: str) -> bool:
        return self._until.get((principal, name), float("-inf")) > self._clock.monotonic()

    async def _look(self, principal: Principal, driver: Driver, name: str) -> None:
        for worker in await driver.workers():
            if worker.report.worker_id == name and not is_own_worker(principal, worker.report):
                raise Problem("forbidden", "a worker of this name serves other queues; choose another name")
        if len(self._until) >= _MAX_KNOWN:
            self._until.clear()
        self._until[principal, name] = self._clock.monotonic() + _KNOWN_SECONDS


def _workers_named(arguments: Arguments) -> list[str]:
    named = [arguments.get("worker_id")]
    named += [getattr(arguments.get(name), "worker_id", None) for name in ("report", "claim")]
    return [name for name in named if isinstance(name, str)]


# ------------------------------------------------------------------ answers


class Narrowed:
    """The verbs as a caller for some queues may use them."""

    def __init__(self, principal: Principal, driver: Driver) -> None:
        self._driver = driver
        self._principal = principal
        self._may_use = principal.may_use

    async def call(self, verb: str, arguments: Arguments) -> Any:
        match verb:
            case "cancel" | "requeue" | "delete":
                return await self._by_ids(verb, arguments)
            case "speculate" if not await self._known([arguments["job_id"]]):
                return JobNotFound(arguments["job_id"])
            case "hold_role":
                return await self._standby(arguments)
            case "release_role":
                return False
            case "forget_worker" if not await self._has_worker(arguments["worker_id"]):
                return False
            case "advance_schedule" | "delete_schedule" if not await self._has_schedule(arguments["name"]):
                return False
            case "count" if arguments["queues"] is None:
                arguments = {**arguments, "queues": sorted(self._principal.queues or ())}
        return self._seen(await getattr(self._driver, verb)(**arguments))

    def _seen(self, answer: Any) -> Any:
        """An answer without what belongs to other queues."""
        if isinstance(answer, Page):
            return Page([job for job in answer.jobs if self._may_use(job.queue)], answer.cursor)
        if not isinstance(answer, list):
            return answer
        if answer and isinstance(answer[0], WorkerInfo):
            return visible_workers(self._principal, answer)
        return [self._seen_item(item) for item in answer if self._is_listed(item)]

    def _is_listed(self, item: Any) -> bool:
        if isinstance(item, QueueInfo | Reclaimed):
            return self._may_use(item.queue)
        if isinstance(item, StoredSchedule):
            return self._may_use(item.schedule.template.queue)
        return not isinstance(item, TypeInfo)  # a type belongs to no queue: it may be one of others

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
        records = await self._driver.get(ids, payloads=False)
        pairs = zip(ids, records, strict=True)
        return {job_id for job_id, record in pairs if record is not None and self._may_use(record.queue)}

    async def _standby(self, arguments: Arguments) -> RoleLease:
        """Who leads fires every schedule and sweeps every queue: not somebody who may not."""
        at = (await self._driver.info()).at
        return RoleLease(arguments["role"], "another", 0, at + arguments["ttl"], is_mine=False)

    async def _has_worker(self, worker_id: str) -> bool:
        return any(
            worker.report.worker_id == worker_id and is_own_worker(self._principal, worker.report)
            for worker in await self._driver.workers()
        )

    async def _has_schedule(self, name: str) -> bool:
        schedules = await self._driver.schedules()
        return any(
            stored.schedule.name == name and self._may_use(stored.schedule.template.queue)
            for stored in schedules
        )


def _as_unknown(answer: Any, job_id: str) -> Any:
    return JobNotFound(job_id) if isinstance(answer, TaskHarborError) else replace(answer, id=job_id)
