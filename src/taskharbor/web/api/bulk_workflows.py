"""A workflow retried or cancelled as a bulk action: previewed, then held, so that it can be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from taskharbor.client.family import (
    LookBudget,
    failed_below,
    from_here,
    run_again,
    stopping_preview,
)
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import CancelResult
from taskharbor.errors import InvalidArgument, JobNotFound, NotAllowedInState
from taskharbor.model.bonds import MAX_DEPTH
from taskharbor.model.family_steps import bonds_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import TERMINAL
from taskharbor.model.workflow import node_name
from taskharbor.views import listed_job
from taskharbor.web.api.answers import BulkOut
from taskharbor.web.api.schemas import BulkIn
from taskharbor.web.auth import AccessCheck
from taskharbor.web.bulk import BulkAction
from taskharbor.web.family_scope import seen_by
from taskharbor.web.request import Request
from taskharbor.web.sentences import stopping_sentence

MOST_COUNTED = 1000
MOST_LOOKED_AT = 20_000
"""Jobs that a preview looks at to find those that run again."""
STEP = 100
"""Jobs after which the caller's rights are checked again."""
_SAMPLES = 10


class WorkflowChange:
    """A retry or a cancel of one workflow, on behalf of one request."""

    def __init__(self, request: Request, workflow: str, asked: BulkIn) -> None:
        if asked.action == "delete" or asked.edit is not None:
            raise InvalidArgument("a workflow is retried as it is, or cancelled; nothing was done")
        if asked.from_job is not None and asked.action != "retry":
            raise InvalidArgument("only a retry begins at a job; nothing was done")
        self._request = request
        self._service = request.service
        self._workflow = workflow
        self._asked = asked
        self._access = AccessCheck(request)
        principal = request.principal
        self._sees = seen_by(principal)

    async def remember_time(self) -> None:
        """What runs again or is stopped is looked for when the hold is over."""

    async def preview(self) -> BulkOut:
        job = await self._find(self._workflow)
        return await (self._stopped(job) if self._asked.action == "cancel" else self._retried(job))

    async def _stopped(self, job: JobRecord) -> BulkOut:
        if job.state in TERMINAL:
            raise NotAllowedInState(job.id, verb="cancel", state=str(job.state))
        found = await stopping_preview(self._service.harbor.client, job, sees=self._sees)
        count = max(found.waiting + found.running + found.below, 1)
        return _preview("cancel", count, [], stopping_sentence(found), is_exact=found.is_all)

    async def _retried(self, job: JobRecord) -> BulkOut:
        budget = LookBudget(MOST_LOOKED_AT)
        found: list[JobRecord] = []
        async for one in self._jobs(job, budget):
            found.append(one)
            if len(found) > MOST_COUNTED:
                break
        is_all = len(found) <= MOST_COUNTED and not budget.is_spent
        text = "What failed, was skipped or was stopped runs again. What completed stays."
        if self._asked.from_job is not None:
            start = await self._find(self._asked.from_job)
            text = f"{node_name(start)} and all that comes after it run again, completed or not."
        return _preview("retry", min(len(found), MOST_COUNTED), found, text, is_exact=is_all)

    async def _jobs(self, job: JobRecord, budget: LookBudget) -> AsyncIterator[JobRecord]:
        client = self._service.harbor.client
        if self._asked.from_job is None:
            async for one in failed_below(client, job, self._sees, budget):
                yield one
            return
        start = await self._find(self._asked.from_job)
        await self._check_below(start)
        for one in await from_here(client, start, self._sees, budget):
            yield one

    async def _check_below(self, job: JobRecord) -> None:
        """Raises JobNotFound unless the job belongs to the workflow."""
        above = job
        for _ in range(MAX_DEPTH):
            parent = bonds_of(above).parent
            if parent == self._workflow:
                return
            if parent is None:
                break
            above = await self._find(parent)
        raise JobNotFound(job.id)

    async def _find(self, job_id: str) -> JobRecord:
        driver = await self._service.driver()
        [job] = await driver.get([job_id], payloads=False, now=self._service.now())
        if job is None or not self._request.principal.may_use(job.queue):
            raise JobNotFound(job_id)
        return job

    # ------------------------------------------------------------------ when the hold is over

    async def work(self, action: BulkAction) -> None:
        """Do it, and write down how far it went. Raises Problem if the caller may not do this any more."""
        try:
            await self._access.check()
            job = await self._find(self._workflow)
            await (self._cancel(action, job) if self._asked.action == "cancel" else self._retry(action, job))
        finally:
            skipped = dict(action.skipped)
            self._request.audited = {"bulk": action.id, "done": action.done, "skipped": skipped}
            self._service.audit_book.note(self._request, "bulk_ended", 200)

    async def _cancel(self, action: BulkAction, job: JobRecord) -> None:
        driver = await self._service.driver()
        [answer] = await driver.cancel([job.id], now=self._service.now())
        report_ended(answer.ended, self._service.harbor.events)
        if answer.result in (CancelResult.CANCELLED, CancelResult.REQUESTED):
            action.done = action.of
        else:
            action.skipped["it is over"] += 1

    async def _retry(self, action: BulkAction, job: JobRecord) -> None:
        looked = 0
        async for is_retried in run_again(self._service.harbor.client, self._jobs(job, LookBudget())):
            action.done += is_retried
            action.skipped["it changed meanwhile"] += not is_retried
            action.of = max(action.of, action.done)
            looked += 1
            if looked % STEP == 0:
                await self._access.check()
            if action.is_to_stop or self._service.stopping.is_set():
                action.is_to_stop = True
                break
        action.skipped = +action.skipped


def _preview(action: str, count: int, found: list[JobRecord], text: str, *, is_exact: bool) -> BulkOut:
    return BulkOut(
        id=None,
        action=action,
        state=None,
        starts_at=None,
        ended_at=None,
        count=count,
        exact=is_exact,
        of=count,
        done=0,
        skipped=[],
        samples=[replace(listed_job(job), type=node_name(job)) for job in found[:_SAMPLES]],
        text=text,
        note=None,
    )
