"""/api/bulk: retry, cancel or delete many jobs, after a preview and a hold in which it can be undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct
from starlette.responses import Response

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.family_ends import ended_in, report_ended
from taskharbor.drivers.messages import MAX_PAGE, CancelResult, Deleted, Query, Requeued
from taskharbor.errors import DuplicateJob, InvalidArgument, JobNotFound
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.search import Search
from taskharbor.model.state import TERMINAL, WAITING, JobState
from taskharbor.views import instant_text, listed_job
from taskharbor.web.api.answers import BulkOut, SkippedOut
from taskharbor.web.api.bulk_workflows import WorkflowChange
from taskharbor.web.api.jobs import search_asked, span
from taskharbor.web.api.schemas import BulkIn
from taskharbor.web.audit import shown
from taskharbor.web.auth import AccessCheck
from taskharbor.web.bulk import BulkAction
from taskharbor.web.endpoint import Operation
from taskharbor.web.job_walk import Budget, JobWalk
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.sentences import skipped_sentence

STEP = 1000
"""Jobs of one step; a pause as long as the step follows it."""
MOST_COUNTED = 10_000
_SAMPLES = 10
_MAX_BODY = 256 * 1024
_TO_COUNT = Budget(1.0, MOST_COUNTED)
_FOR_SKIPPED = Budget(0.1, 5_000)
_FOR_STEP = Budget(1.0, 5_000)
_CHANGED = "it changed meanwhile"
_ALIVE = WAITING | {JobState.RUNNING}


async def start(request: Request) -> Response:
    """Preview it, or hold it."""
    asked = read_json(await request.body(_MAX_BODY), BulkIn)
    request.is_preview = asked.dry_run
    if [bool(asked.q), bool(asked.ids), asked.workflow is not None].count(True) != 1:
        raise InvalidArgument("give one of q, ids and workflow; to choose every job, say q: state:failed")
    if asked.edit is not None and asked.action != "retry":
        raise InvalidArgument("only a retry takes edit")
    if asked.from_job is not None and asked.workflow is None:
        raise InvalidArgument("from_job is a job of a workflow: name that, too")
    change = (
        _Change(request, asked) if asked.workflow is None else WorkflowChange(request, asked.workflow, asked)
    )
    await change.remember_time()
    found = await change.preview()
    if asked.dry_run:
        return json_answer(found)
    _check_expected(asked.expect, found)
    action = request.service.bulk.hold(
        asked.action, request.principal, found.count, change.work, is_exact=found.exact
    )
    target = {"q": shown(asked.q)} if asked.workflow is None else {"workflow": asked.workflow}
    request.audited = {"action": asked.action, "jobs": found.count, "bulk": action.id, **target}
    return json_answer(bulk_view(action, found.samples), 202)


async def show(request: Request) -> Response:
    return json_answer(bulk_view(_action_of(request)))


async def now(request: Request) -> Response:
    action = _action_of(request)
    request.service.bulk.start(action)
    request.audited = {"bulk": action.id}
    return json_answer(bulk_view(action))


async def stop(request: Request) -> Response:
    """Undo while it is held, stop while it runs."""
    action = _action_of(request)
    request.service.bulk.stop(action)
    request.audited = {"bulk": action.id}
    return json_answer(bulk_view(action))


def _action_of(request: Request) -> BulkAction:
    return request.service.bulk.find(request.parameter("bulk"), request.principal)


def bulk_view(action: BulkAction, samples: Sequence[Any] = ()) -> BulkOut:
    return BulkOut(
        id=action.id,
        action=action.verb,
        state=action.state,
        starts_at=instant_text(action.starts_at),
        ended_at=instant_text(action.ended_at),
        count=action.of,
        exact=action.is_exact,
        of=action.of,
        done=action.done,
        skipped=_skipped(action.skipped),
        text=skipped_sentence(_skipped(action.skipped)),
        samples=list(samples),
        note=action.note,
    )


def _skipped(reasons: Counter[str]) -> list[SkippedOut]:
    return [SkippedOut(why=why, count=count) for why, count in reasons.most_common()]


def _check_expected(expect: int | None, found: BulkOut) -> None:
    """Raises Problem `count-differs` if the jobs are not the ones that the caller has seen counted."""
    if expect is None:
        return
    is_less = found.count < expect and found.exact
    is_off = abs(found.count - expect) * 10 > max(expect, 1)
    if (is_less or found.count > expect) and is_off:
        raise Problem(
            "count-differs",
            f"{found.count} jobs match now, and {expect} were expected; nothing was done. Look again",
        )


# ------------------------------------------------------------------ the change


class _Seen(Struct, frozen=True):
    """What must not have changed about a job between the question and the deed."""

    is_waiting: bool
    state: JobState | None
    fence: int
    finished_at: datetime | None


def _seen(job: JobRecord) -> _Seen:
    is_waiting = job.state.is_waiting  # a scheduled job becomes ready by itself
    return _Seen(is_waiting, None if is_waiting else job.state, job.fence, job.finished_at)


class _Change:
    """One change for many jobs, on behalf of one request."""

    def __init__(self, request: Request, asked: BulkIn) -> None:
        self._request = request
        self._service = request.service
        self._asked = asked
        self._access = AccessCheck(request)
        self._search = search_asked(asked.q or "")
        self._states = _states(asked, self._search)
        self._edit = _edit(asked)
        self._asked_at: datetime | None = None
        self._ids: dict[str, _Seen] = {}

    async def preview(self) -> BulkOut:
        found, is_all, skipped = await (self._by_ids() if self._asked.ids else self._by_search())
        self._ids = {job.id: _seen(job) for job in found} if self._asked.ids else {}
        return BulkOut(
            id=None,
            action=self._asked.action,
            state=None,
            starts_at=None,
            ended_at=None,
            count=len(found),
            exact=is_all,
            of=len(found),
            done=0,
            skipped=_skipped(skipped),
            text=skipped_sentence(_skipped(skipped)),
            samples=[listed_job(job) for job in found[:_SAMPLES]],
            note=None,
            at=instant_text(self._asked_at) if self._asked.dry_run else None,
        )

    async def remember_time(self) -> None:
        """From now on, or since the preview, jobs that change are left alone. The store's clock counts."""
        driver = await self._service.driver()
        now = self._service.now() or (await driver.info()).at
        self._asked_at = min(self._asked.as_of or now, now)

    async def work(self, action: BulkAction) -> None:
        """Do it, and write down how far it went. Raises what `_work` raises."""
        try:
            await self._work(action)
        finally:
            skipped = dict(action.skipped)
            self._request.audited = {"bulk": action.id, "done": action.done, "skipped": skipped}
            self._service.audit_book.note(self._request, "bulk_ended", 200)

    async def _work(self, action: BulkAction) -> None:
        """Raises Problem `unauthenticated` if the caller may not do this any more."""
        await self._access.check()
        if self._ids and not action.is_to_stop:
            await self._do(action, await self._still_as_seen(action))
            return
        cursor: str | None = None
        while not action.is_to_stop and not self._service.stopping.is_set():
            began = self._service.clock.monotonic()
            walk = JobWalk(self._request, self._search, Query(states=self._states), budget=_FOR_STEP)
            page = await walk.page(STEP, cursor)
            await self._do(action, [job for job in page.jobs if self._is_as_it_was(action, job)])
            cursor = page.cursor
            if cursor is None:
                return
            await self._service.pause(self._service.clock.monotonic() - began)
            await self._access.check()
        action.is_to_stop = True

    # ------------------------------------------------------------------ which jobs

    async def _by_ids(self) -> tuple[list[JobRecord], bool, Counter[str]]:
        driver = await self._service.driver()
        ids = list(dict.fromkeys(self._asked.ids or ()))
        found, skipped = [], Counter[str]()
        for job in await driver.get(ids, payloads=False, now=self._service.now()):
            if job is None or not self._request.principal.may_use(job.queue):
                skipped["it is gone"] += 1
            elif job.state in self._states:
                found.append(job)
            else:
                skipped[_why_not(job)] += 1
        return found, True, skipped

    async def _by_search(self) -> tuple[list[JobRecord], bool, Counter[str]]:
        found, is_all = await self._walked(self._states, _TO_COUNT, MOST_COUNTED)
        skipped = Counter[str]()
        if self._search.states is None and self._asked.action != "cancel":
            others, _ = await self._walked(tuple(sorted(_ALIVE)), _FOR_SKIPPED, MAX_PAGE)
            skipped.update(_why_not(job) for job in others)
        return found, is_all, skipped

    async def _walked(
        self, states: tuple[JobState, ...], budget: Budget, most: int
    ) -> tuple[list[JobRecord], bool]:
        query = Query(states=states, newest_first=True)
        walk = JobWalk(self._request, self._search, query, also=self._was_there, budget=budget)
        found: list[JobRecord] = []
        cursor: str | None = None
        while True:
            page = await walk.page(min(MAX_PAGE, most - len(found)), cursor)
            found, cursor = found + page.jobs, page.cursor
            if page.is_all or len(found) >= most or walk.is_spent:
                return found, page.is_all

    async def _still_as_seen(self, action: BulkAction) -> list[JobRecord]:
        driver = await self._service.driver()
        found = await driver.get(list(self._ids), payloads=False, now=self._service.now())
        same = [job for job in found if job is not None and _seen(job) == self._ids[job.id]]
        action.skipped[_CHANGED] += len(self._ids) - len(same)
        return same

    def _was_there(self, job: JobRecord) -> bool:
        """A heartbeat also updates a running job, so there its start counts."""
        since = job.started_at if job.state is JobState.RUNNING else job.updated_at
        return self._asked_at is None or since is None or since <= self._asked_at

    def _is_as_it_was(self, action: BulkAction, job: JobRecord) -> bool:
        is_same = self._was_there(job)
        action.skipped[_CHANGED] += not is_same
        return is_same

    # ------------------------------------------------------------------ what happens to them

    async def _do(self, action: BulkAction, jobs: Sequence[JobRecord]) -> None:
        ids = [job.id for job in jobs]
        if ids:
            refusals = await self._answers(await self._service.driver(), ids)
            action.done += len(ids) - len(refusals)
            action.skipped.update(refusals)
        action.skipped = +action.skipped

    async def _answers(self, driver: Driver, ids: list[str]) -> list[str]:
        """Do it. Returns why, for each that was refused."""
        now, asked = self._service.now(), self._asked
        if asked.action == "cancel":
            cancelled = await driver.cancel(ids, now=now)
            report_ended(ended_in(cancelled), self._service.harbor.events)
            is_done = (CancelResult.CANCELLED, CancelResult.REQUESTED)
            return [_CHANGED for one in cancelled if one.result not in is_done]
        if asked.action == "delete":
            return _refusals(await driver.delete(ids, now=now))
        edit = asked.edit
        requeued = await driver.requeue(
            ids,
            edit=self._edit,
            reset_counts=edit is None or edit.reset_counts,
            delay=None if edit is None else span(edit.delay_s),
            now=now,
        )
        report_ended(ended_in(requeued), self._service.harbor.events)
        return _refusals(requeued)


def _states(asked: BulkIn, search: Search) -> tuple[JobState, ...]:
    """The states that the change is for. Jobs that did not fail must be named to be run again or deleted."""
    if asked.action == "cancel":
        return tuple(sorted(_ALIVE))
    if asked.ids:
        return tuple(sorted(TERMINAL))
    named = [state for state in search.states or () if state.is_terminal]
    return tuple(named) or (JobState.FAILED,)


def _edit(asked: BulkIn) -> Edit:
    if asked.edit is None:
        return NO_EDIT
    changes: dict[str, Any] = {
        name: value
        for name in ("priority", "max_attempts", "max_stalls")
        if (value := getattr(asked.edit, name)) is not UNSET
    }
    if asked.edit.timeout_s is not UNSET:
        changes["timeout"] = timedelta(seconds=asked.edit.timeout_s)
    return Edit(**changes) if changes else NO_EDIT


def _why_not(job: JobRecord) -> str:
    if job.state.is_waiting:
        return "it waits for a retry" if job.failure_kind is not None else "it waits to run"
    return f"it is {job.state.value}"


def _refusals(answers: Iterable[Any]) -> list[str]:
    found = []
    for answer in answers:
        if isinstance(answer, DuplicateJob):
            found.append("another job waits under its key")
        elif isinstance(answer, JobNotFound):
            found.append("it is gone")
        elif not isinstance(answer, Requeued | Deleted):
            found.append(_CHANGED)
    return found


OPERATIONS = [
    Operation(
        method="POST",
        path="/api/bulk",
        name="bulk",
        handler=start,
        summary="Retry, cancel or delete many jobs after a hold of 8 s; dry_run only counts them",
        status=202,
        body=BulkIn,
        answer=BulkOut,
        problems=("malformed", "count-differs", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    Operation(
        method="GET",
        path="/api/bulk/{bulk}",
        name="get_bulk",
        handler=show,
        summary="How far a bulk action is",
        answer=BulkOut,
        problems=("not-found",),
    ),
    Operation(
        method="DELETE",
        path="/api/bulk/{bulk}",
        name="stop_bulk",
        handler=stop,
        summary="Undo a bulk action that is held, stop one that runs",
        answer=BulkOut,
        problems=("not-found", "wrong-state"),
    ),
    Operation(
        method="POST",
        path="/api/bulk/{bulk}/now",
        name="start_bulk",
        handler=now,
        summary="Start a bulk action that is held",
        answer=BulkOut,
        problems=("not-found", "wrong-state"),
    ),
]
