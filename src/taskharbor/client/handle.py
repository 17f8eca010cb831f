"""JobHandle: one job in the hand: where it stands, how it ended, and what to do about it."""

from __future__ import annotations

from asyncio import _get_running_loop as running_loop
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from taskharbor.drivers.messages import CancelAnswer, Enqueued
from taskharbor.errors import JobFailed, JobNotFound
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

if TYPE_CHECKING:
    from taskharbor.client.client import Client

R = TypeVar("R")

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 1.0
GROWTH = 1.5


class JobHandle(Generic[R]):
    """One job: its id, what was last seen of it, and the verbs that concern it.

    `state` and `record` are as last seen. They are read from the store the first time they are
    asked for, and again by `refresh`; in async code ask for `await handle.arefresh()` first. Until then,
    `state` is the one in which the job was stored.
    """

    __slots__ = ("_client", "_record", "_told", "enqueued", "id")

    def __init__(
        self,
        client: Client,
        job_id: str,
        *,
        enqueued: Enqueued | None = None,
        record: JobRecord | None = None,
        told: JobState | None = None,
    ) -> None:
        self._client = client
        self._record = record
        self._told = told
        self.id = job_id
        self.enqueued = enqueued
        """What the store answered to the enqueue: created, updated, blocked or duplicate."""

    @property
    def record(self) -> JobRecord:
        return self._record if self._record is not None else self.refresh()._seen()

    @property
    def state(self) -> JobState:
        if self._record is None and self._told is not None and running_loop() is not None:
            return self._told  # a blocking look is not possible here
        return self.record.state

    # ------------------------------------------------------------------ looking

    def refresh(self) -> JobHandle[R]:
        """Look again. Raises JobNotFound when the job's retention is over."""
        return self._client.block(self.arefresh)

    async def arefresh(self) -> JobHandle[R]:
        self._record = await self._client.aget_record(self.id)
        return self

    def result(self, timeout: Duration | None = None) -> R:
        """What the job returned, as soon as it is over.

        Raises:
            JobFailed: it ended failed or cancelled; `reason` says why.
            TimeoutError: it was not over within `timeout`; it goes on all the same.
            JobNotFound: its retention is over.
        """
        return self._client.block(self.aresult, timeout)

    async def aresult(self, timeout: Duration | None = None) -> R:
        span = optional_duration(timeout, "timeout")
        record = await self._over(None if span is None else span.total_seconds())
        if record.state is not JobState.COMPLETED:
            raise JobFailed(self.id, record.state, record.last_error)
        result: R = self._client.result_of(record)
        return result

    async def _over(self, timeout_seconds: float | None) -> JobRecord:
        """The record once it is terminal: looked for often at first, then ever more rarely."""
        clock = self._client.clock
        started, pause = clock.monotonic(), FIRST_PAUSE
        while not (await self.arefresh())._seen().state.is_terminal:
            if timeout_seconds is not None:
                left = started + timeout_seconds - clock.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"job {self.id} is {self.state} after {timeout_seconds:g} s; it goes on"
                    )
                pause = min(pause, left)
            await clock.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE)
        return self._seen()

    # ------------------------------------------------------------------ control

    def cancel(self) -> CancelAnswer:
        """Cancel it: at once when it waits, by a request to its worker when it runs."""
        return self._client.block(self.acancel)

    async def acancel(self) -> CancelAnswer:
        answer = await self._client.acancel(self.id)
        self._record = None
        self._told = answer.state
        return answer

    def retry(
        self,
        *,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> JobHandle[R]:
        """Let a finished job run again, under the same id; see `Client.retry`."""
        return self._client.block(
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
        await self._client.aretry(self.id, edit=edit, reset_counts=reset_counts, run_at=run_at, delay=delay)
        self._record = None
        self._told = None
        return self

    # ------------------------------------------------------------------

    def _seen(self) -> JobRecord:
        if self._record is None:
            raise JobNotFound(self.id)
        return self._record

    def __repr__(self) -> str:
        return f"<job {self.id}{f' {self._record.state}' if self._record is not None else ''}>"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)
