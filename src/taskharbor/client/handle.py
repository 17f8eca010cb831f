"""JobHandle: the state and result of one job, and the verbs for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from taskharbor.client.family import retry_family, send_event
from taskharbor.client.notebook import blocks_async_code, html_of
from taskharbor.drivers.family_results import children_of, result_of, results_of
from taskharbor.drivers.messages import CancelAnswer, Enqueued, EnqueueResult
from taskharbor.errors import InvalidArgument, JobFailed, JobNotFound, TaskHarborError
from taskharbor.middleware import running
from taskharbor.model.bonds import NO_FAMILY, Family
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.state import JobState

if TYPE_CHECKING:
    from taskharbor.client.client import Client

R = TypeVar("R")

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 1.0
GROWTH = 1.5


class JobHandle(Generic[R]):
    """One job: its id, its last known record, and the verbs for it.

    `state` and `record` are as last read. The first access reads them from the store, `refresh` reads
    them again; in async code call `await handle.arefresh()` first. Before that, `state` is the state in
    which the job was stored.
    """

    __slots__ = ("_client", "_record", "_stored_as", "enqueued", "id")

    def __init__(
        self,
        client: Client,
        job_id: str,
        *,
        enqueued: Enqueued | None = None,
        record: JobRecord | None = None,
        stored_as: JobState | None = None,
    ) -> None:
        self._client = client
        self._record = record
        self._stored_as = stored_as
        self.id = job_id
        """The id of the job."""
        self.enqueued = enqueued
        """The store's answer to the enqueue: created, updated, blocked or duplicate."""

    @property
    def record(self) -> JobRecord:
        """The job as it was when it was last read; `refresh` reads it again."""
        return self._record if self._record is not None else self.refresh()._seen()

    @property
    def state(self) -> JobState:
        """The state of `record`."""
        if self._record is None and self._stored_as is not None and blocks_async_code():
            return self._stored_as  # a blocking read is not possible here
        return self.record.state

    # ------------------------------------------------------------------ looking

    def refresh(self) -> JobHandle[R]:
        """Read the job again. Raises JobNotFound if it was pruned."""
        return self._client._block(self.arefresh)

    async def arefresh(self) -> JobHandle[R]:
        self._record = await self._client.aget_record(self.id)
        return self

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job to finish and return its result.

        Raises:
            JobFailed: it failed or was cancelled; `reason` says why.
            TimeoutError: it did not finish within `timeout`; the job itself continues.
            JobNotFound: it was pruned.
            InvalidArgument: without a timeout inside a handler, whose slot it would hold.
        """
        return self._client._block(self._aresult, timeout, is_in_handler=running.get(None) is not None)

    async def aresult(self, timeout: Duration | None = None) -> R:
        return await self._aresult(timeout, is_in_handler=running.get(None) is not None)

    async def _aresult(self, timeout: Duration | None, *, is_in_handler: bool) -> R:
        if is_in_handler and timeout is None:
            raise InvalidArgument(
                "result() inside a handler needs a timeout, because it holds the slot that the job may need; "
                "use `await ctx.acall(task.call(...))`, which frees it"
            )
        span = optional_duration(timeout, "timeout")
        record = await self._over(None if span is None else span.total_seconds())
        if record.state is not JobState.COMPLETED:
            raise JobFailed(self.id, record.state, record.last_error)
        if record.bonds is None and record.family is None:
            result: R = self._client.result_of(record)
        else:
            client = self._client
            result = await result_of(await client.adriver(), record, client.result_of, client._now)
        return result

    async def _over(self, timeout_seconds: float | None) -> JobRecord:
        """The record once it is terminal; polls with exponential backoff, 5 ms to 1 s."""
        clock = self._client.clock
        started, pause = clock.monotonic(), FIRST_PAUSE
        while not (await self.arefresh())._seen().state.is_terminal:
            if timeout_seconds is not None:
                left = started + timeout_seconds - clock.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"job {self.id} is still {self.state} after {timeout_seconds:g} s; the job continues"
                    )
                pause = min(pause, left)
            await clock.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE)
        return self._seen()

    # ------------------------------------------------------------------ its family

    @property
    def counts(self) -> Family:
        """The counts of its children, as last read: total, open, failed, excused, cancelled."""
        return self.record.family or NO_FAMILY

    @property
    def steps(self) -> list[str]:
        """The names of the steps and sleeps that its handler has done, in order, as last read."""
        return [note.name for note in self.record.notes]

    def children(self, *states: JobState) -> Iterator[JobHandle[Any]]:
        """Handles on its children, in the order in which they were stored; all, or those in these states."""
        found = self._client._block(self._achildren, states)
        return iter(found)

    async def _achildren(self, states: tuple[JobState, ...]) -> list[JobHandle[Any]]:
        return [child async for child in self.achildren(*states)]

    async def achildren(self, *states: JobState) -> AsyncIterator[JobHandle[Any]]:
        driver = await self._client.adriver()
        async for record in children_of(driver, self.id, states, now=self._client._now):
            yield JobHandle(self._client, record.id, record=record)

    def results(self) -> Iterator[Any]:
        """The results of its completed children, in order."""
        return iter(self._client._block(self._aresults))

    async def _aresults(self) -> list[Any]:
        return [result async for result in self.aresults()]

    async def aresults(self) -> AsyncIterator[Any]:
        """The same, read page by page: for any number of children."""
        record = (await self.arefresh())._seen()
        client = self._client
        async for result in results_of(await client.adriver(), record, client.result_of, client._now):
            yield result

    def send(self, event: str, value: Any = None) -> None:
        """Send an event to the handler, or the node of the workflow, that waits for it or will.

        The first event of a name wins.

        Raises:
            WorkflowError: the workflow has no event of this name.
            NotAllowedInState: the event came already, or its timeout is over.
            BrokenBond: the job is over.
        """
        self._client._block(self.asend, event, value)

    async def asend(self, event: str, value: Any = None) -> None:
        await send_event(self._client, self.id, event, value)
        self._record = None

    # ------------------------------------------------------------------ control

    def cancel(self) -> CancelAnswer:
        """Cancel it: at once if it waits; if it runs, its worker is asked to stop it."""
        return self._client._block(self.acancel)

    async def acancel(self) -> CancelAnswer:
        answer = await self._client.acancel(self.id)
        self._record = None
        self._stored_as = answer.state
        return answer

    def retry(
        self,
        *,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> JobHandle[R]:
        """Run a finished job again under the same id; see `Client.retry`.

        A workflow goes on from what failed: its failed, skipped and stopped jobs run again, what completed
        stays. The other arguments are for a job without children.
        """
        return self._client._block(
            self.aretry, edit=edit, reset_counts=reset_counts, run_at=run_at, delay=delay
        )

    async def aretry(
        self,
        *,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> JobHandle[R]:
        record = await self._client.aget_record(self.id)
        if record.family is not None and record.family.total:
            await retry_family(self._client, record)
        else:
            await self._client.aretry(
                self.id, edit=edit, reset_counts=reset_counts, run_at=run_at, delay=delay
            )
        self._record = None
        self._stored_as = None
        return self

    # ------------------------------------------------------------------

    def _seen(self) -> JobRecord:
        if self._record is None:
            raise JobNotFound(self.id)
        return self._record

    def __repr__(self) -> str:
        return f"<job {self.id}{f' {self._record.state}' if self._record is not None else ''}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the job as it is now, or as last read if it cannot be read here."""
        if not blocks_async_code():
            with suppress(TaskHarborError):
                self.refresh()
        return html_of(self.id, self._record, self._client.result_of)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


def state_when_stored(job: NewJob, answer: Enqueued) -> JobState | None:
    """The state of a job that was just stored; None if it was merged into another or is a duplicate."""
    if answer.result is EnqueueResult.BLOCKED:
        return JobState.BLOCKED
    if answer.result is not EnqueueResult.CREATED:
        return None
    waits = job.run_at > answer.at if job.run_at is not None else bool(job.delay)
    return JobState.SCHEDULED if waits else JobState.READY
