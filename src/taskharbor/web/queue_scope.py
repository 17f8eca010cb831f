"""The driver verbs for a token limited to some queues: everything else looks as if it did not exist.

Ids of jobs in other queues are unknown; listings leave out those jobs, and the workers that serve only other
queues. Leases need no check: a caller who has the lease token was given it. permissions.py has the roles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Page, QueueInfo, Reclaimed, Resolution, RoleLease
from taskharbor.drivers.wire import Verb
from taskharbor.errors import BrokenBond, JobNotFound, TaskHarborError
from taskharbor.model.checks import MAX_BATCH, is_id
from taskharbor.model.clock import Clock
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.logbook import OF_PEOPLE
from taskharbor.model.presence import TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.schedule import StoredSchedule
from taskharbor.web.audit import shown
from taskharbor.web.auth import Principal, require_queue
from taskharbor.web.family_scope import OwnEnds, refuse_edit, refuse_makers
from taskharbor.web.problems import Problem

if TYPE_CHECKING:
    from taskharbor.web.request import Request

_NO_JOB = "00000000-0000-0000-0000-000000000000"  # an id that no job has
_KNOWN_SECONDS = 10.0
_MAX_KNOWN = 10_000

Arguments = dict[str, Any]


def check_queues(principal: Principal, verb: Verb, arguments: Arguments) -> None:
    """Raises Problem `forbidden` if the arguments name a queue of others, at any depth, or reach one."""
    if principal.queues is None:
        return
    for queue in queues_named(verb.request, arguments):
        require_queue(principal, queue)
    refuse_makers(principal, _jobs_to_store(arguments))
    report = arguments.get("report")
    if isinstance(report, WorkerReport) and not report.queues:
        raise Problem(
            "forbidden", "a worker without queues serves all of them, and this token is limited to some"
        )


def check_books(principal: Principal, verb: str, arguments: Arguments) -> None:
    """Raises Problem `forbidden` for a book about what people did: the server itself writes those."""
    if verb == "read_log" and arguments["book"] in OF_PEOPLE and not principal.may("operator"):
        raise Problem("forbidden", f"the book {arguments['book']} needs the role operator")
    if verb == "write_log" and not principal.may("admin"):
        named = [*arguments["entries"], *arguments["instead_of"]]
        if any(one.book in OF_PEOPLE for one in named):
            raise Problem("forbidden", "only an admin writes about what people did; nothing was written")


async def check_amounts(request: Request, driver: Driver, verb: str, arguments: Arguments) -> None:
    """Raises Problem for one queue or schedule too many, and for a schedule of another queue."""
    if verb in ("enqueue", "resolve"):
        for queue in dict.fromkeys(job.queue for job in _jobs_to_store(arguments)):
            request.service.quota.spend(request.principal, queue)
    elif verb == "put_schedule":
        there = {stored.schedule.name: stored.schedule for stored in await driver.schedules()}
        known = there.get(arguments["schedule"].name)
        if known is not None:
            require_queue(request.principal, known.template.queue)
        elif len(there) >= request.service.config.max_schedules:
            raise Problem("rate-limited", f"there are {len(there)} schedules already; nothing was stored")
        request.service.answer_limit.check_schedules(there.values(), arguments["schedule"])


def _jobs_to_store(arguments: Arguments) -> list[NewJob]:
    if "jobs" in arguments:
        jobs: list[NewJob] = arguments["jobs"]
        return jobs
    if "schedule" in arguments:
        return [arguments["schedule"].template]
    return [item.new for item in arguments.get("items", ()) if item.new is not None]


def audit_details(verb: str, arguments: Arguments) -> dict[str, Any]:
    """What the audit log shows of a change: no payloads."""
    match verb:
        case "enqueue":
            return {"jobs": len(arguments["jobs"])}
        case "cancel" | "requeue" | "delete":
            return _jobs_named(arguments["ids"])
        case "resolve":
            return _jobs_named([item.id for item in arguments["items"]])
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


def _jobs_named(ids: Sequence[str]) -> dict[str, Any]:
    return {"job_ids": [shown(job_id) for job_id in ids[:20]], "jobs": len(ids)}


# ------------------------------------------------------------------ queues in the arguments

# Found by the types of the arguments, so that no nested name is missed. A field whose name ends in `queue` or
# `queues` names queues at any depth: in the template of a schedule, the settings of a queue, a claim, the
# lease of a settlement.


class _QueueFields(NamedTuple):
    named: tuple[str, ...]
    """Fields that hold a name, or several."""
    within: tuple[str, ...]
    """Fields that hold something with names in it."""


def queues_named(request: type[msgspec.Struct], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Every queue that the arguments of a verb name."""
    fields = _queue_fields(request)
    for field in fields.named:
        yield from _names(arguments[field])
    for field in fields.within:
        yield from _inside(arguments[field])


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        fields = _queue_fields(type(value))
        for field in fields.named:
            yield from _names(getattr(value, field))
        for field in fields.within:
            yield from _inside(getattr(value, field))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _inside(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _inside(item)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from value


@cache
def _queue_fields(kind: type[msgspec.Struct]) -> _QueueFields:
    named, within = list[str](), list[str]()
    for field in msgspec.structs.fields(kind):
        if field.name.endswith(("queue", "queues")):
            named.append(field.name)
        elif any(map(_has_names, _structs_in(field.type))):
            within.append(field.name)
    return _QueueFields(tuple(named), tuple(within))


def _has_names(kind: type[msgspec.Struct]) -> bool:
    return any(_queue_fields(kind))


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs_in(part)


# ------------------------------------------------------------------ workers


def is_own_worker(principal: Principal, report: WorkerReport) -> bool:
    """Whether a worker serves only queues of this caller."""
    return bool(report.queues) and all(map(principal.may_use, report.queues))


def visible_workers(principal: Principal, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """The workers that serve a queue of the caller; details of those that also serve others are left out."""
    if principal.queues is None:
        return list(workers)
    found = []
    for worker in workers:
        own = tuple(filter(principal.may_use, worker.report.queues))
        if own:
            found.append(worker if is_own_worker(principal, worker.report) else _partly(worker, own))
    return found


def _partly(worker: WorkerInfo, own: tuple[str, ...]) -> WorkerInfo:
    """Without where it runs and what else it does."""
    report = replace(
        worker.report, queues=own, running=(), host="", pid=0, labels={}, release="", machine=None, gpus=()
    )
    return replace(worker, report=report)


class WorkerNames:
    """Stops a limited token from using the worker id of a worker that serves other queues.

    Claims come many times a second, so a checked id is remembered for some seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[Principal, str], float] = {}

    async def check(self, principal: Principal, driver: Driver, arguments: Arguments) -> None:
        """Raises Problem `forbidden` for the id of somebody else's worker."""
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
                raise Problem("forbidden", "a worker with this id serves other queues; choose another id")
        if len(self._until) >= _MAX_KNOWN:
            self._until.clear()
        self._until[principal, name] = self._clock.monotonic() + _KNOWN_SECONDS


def _workers_named(arguments: Arguments) -> list[str]:
    named = [arguments.get("worker_id")]
    named += [getattr(arguments.get(name), "worker_id", None) for name in ("report", "claim")]
    return [name for name in named if isinstance(name, str)]


# ------------------------------------------------------------------ verbs and answers


class QueueScopedDriver:
    """The driver as a caller limited to some queues may use it."""

    def __init__(self, principal: Principal, driver: Driver, ends: OwnEnds) -> None:
        self._driver = driver
        self._principal = principal
        self._may_use = principal.may_use
        self._ends = ends

    async def call(self, verb: str, arguments: Arguments) -> Any:
        match verb:
            case "cancel" | "requeue" | "delete":
                return await self._by_ids(verb, arguments)
            case "enqueue":
                await self._check_relatives(arguments["jobs"])
                return await self._ends.of(await self._driver.enqueue(**arguments))
            case "settle":
                return await self._ends.of(await self._driver.settle(**arguments))
            case "resolve":
                return await self._resolve(arguments)
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
        """An answer without jobs, queues, workers and schedules of others."""
        if isinstance(answer, Page):
            return replace(answer, jobs=[job for job in answer.jobs if self._may_use(job.queue)])
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
        return not isinstance(item, TypeInfo)  # a type has no queue, so it may be of others

    def _seen_item(self, item: Any) -> Any:
        return None if isinstance(item, JobRecord) and not self._may_use(item.queue) else item

    async def _by_ids(self, verb: str, arguments: Arguments) -> list[Any]:
        """An id of another queue is replaced by an unknown one, and answered as unknown."""
        ids: list[str] = arguments["ids"]
        known = await self._known(ids, arguments.get("edit", NO_EDIT))
        asked = [job_id if job_id in known else _NO_JOB for job_id in ids]
        answers = await getattr(self._driver, verb)(**{**arguments, "ids": asked})
        if verb != "delete":
            answers = await self._ends.of(answers)
        return [
            answer if job_id in known else _as_unknown(answer, job_id)
            for job_id, answer in zip(ids, answers, strict=True)
        ]

    async def _check_relatives(self, jobs: Sequence[NewJob]) -> None:
        """Raises BrokenBond for a job that names a parent or a sibling of another queue."""
        foreign = await self._foreign(_relatives(jobs))
        if foreign:
            raise BrokenBond(next(iter(foreign)), "is unknown: nothing can be a child of it or come after it")

    async def _resolve(self, arguments: Arguments) -> list[Any]:
        """An item about a job of another queue, or with relatives there, is answered as unknown."""
        items: list[Resolution] = arguments["items"]
        new = [item.new for item in items if item.new is not None]
        foreign = await self._foreign([*(item.id for item in items), *_relatives(new)])
        own = [item for item in items if not foreign.intersection(_names_of(item))]
        answers = iter(await self._ends.of(await self._driver.resolve(own, now=arguments["now"])))
        return [
            JobNotFound(item.id) if foreign.intersection(_names_of(item)) else next(answers) for item in items
        ]

    async def _foreign(self, ids: Iterable[str]) -> set[str]:
        """Those of these ids that are jobs of other queues. A malformed id is nobody's."""
        names = [job_id for job_id in dict.fromkeys(ids) if is_id(job_id)]
        found: set[str] = set()
        for start in range(0, len(names), MAX_BATCH):
            part = names[start : start + MAX_BATCH]
            for job_id, job in zip(part, await self._driver.get(part, payloads=False), strict=True):
                if job is not None and not self._may_use(job.queue):
                    found.add(job_id)
        return found

    async def _known(self, ids: Sequence[str], edit: Edit = NO_EDIT) -> set[str]:
        """Those of these ids that are own jobs. Raises Problem for an edit of what a job makes."""
        records = await self._driver.get(ids, payloads=False)
        pairs = zip(ids, records, strict=True)
        known = {job_id: record for job_id, record in pairs if record and self._may_use(record.queue)}
        for record in known.values():
            refuse_edit(self._principal, record, edit)
        return set(known)

    async def _standby(self, arguments: Arguments) -> RoleLease:
        """A leader fires all schedules and sweeps all queues, so a limited token never leads."""
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


def _relatives(jobs: Iterable[NewJob]) -> Iterator[str]:
    """The jobs that these name as parents or siblings."""
    for job in jobs:
        if job.bonds is not None:
            yield from job.bonds.after
            if job.bonds.parent is not None:
                yield job.bonds.parent


def _names_of(item: Resolution) -> set[str]:
    return {item.id, *_relatives([item.new] if item.new is not None else [])}


def _as_unknown(answer: Any, job_id: str) -> Any:
    return JobNotFound(job_id) if isinstance(answer, TaskHarborError) else replace(answer, id=job_id)
