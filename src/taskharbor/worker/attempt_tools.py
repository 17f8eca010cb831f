"""What the contexts of a worker's attempts share: the store, its codec, and the lease they write under."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from taskharbor.drivers.family_ends import ended_in, report_ended
from taskharbor.drivers.messages import Enqueued, Resolution, Resolved
from taskharbor.errors import InvalidArgument
from taskharbor.events import Event, JobEnqueued
from taskharbor.middleware import around_every_enqueue, compose
from taskharbor.model.clock import pause
from taskharbor.model.codec import Codec
from taskharbor.model.job import Lease, NewJob
from taskharbor.tasks.request import JobRequest, encoded_payload, template_of
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.transaction import Transactions

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

_LOOK_AGAIN = 0.005


class AttemptTools:
    """One for each run of a worker."""

    def __init__(self, run: Run, codec: Codec, default_queue: str) -> None:
        self.driver = run.driver
        self.timing = run.timing
        self.codec = codec
        self.transactions = Transactions(run) if run.driver.capabilities.tx else None
        self._events = run.events
        self._leased_jobs = run.leased_jobs
        self._default_queue = default_queue
        self.loop = asyncio.get_running_loop()

    def emit(self, event: Event) -> None:
        if type(event) in self._events.heard:
            self._events.emit(event)

    def new_job(self, request: JobRequest, job_id: str) -> NewJob:
        """The job of a call, under this id."""
        if request.key is not None or request.idempotency_key is not None:
            raise InvalidArgument(
                "a job with a key cannot come after others or have a parent; leave the key out, "
                "or set max_running=1 on its queue"
            )
        template = template_of(request, default_queue=self._default_queue, codec=self.codec)
        return replace(template, id=job_id, payload=encoded_payload(request, self.codec))

    async def store_children(self, leased: LeasedJob, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        """Store children of a running job, if its lease still holds."""

        async def into_the_store(jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
            async with self.lease_of(leased) as lease:
                return await self.driver.enqueue(jobs, by=lease, now=self.timing.stated())

        answers: Sequence[Enqueued] = await compose(around_every_enqueue, into_the_store)(jobs)
        if JobEnqueued in self._events.heard:
            for job, answer in zip(jobs, answers, strict=True):
                event = JobEnqueued(job_id=answer.id, type=job.type, queue=job.queue, result=answer.result)
                self._events.emit(event)
        report_ended(ended_in(answers), self._events)
        return answers

    async def resolve(self, job_id: str) -> Resolved:
        """End the own work of a group that was being filled."""
        [answer] = await self.driver.resolve([Resolution(id=job_id)], now=self.timing.stated())
        if not isinstance(answer, Resolved):
            raise answer
        report_ended(answer.ended, self._events)
        return answer

    @asynccontextmanager
    async def lease_of(self, leased: LeasedJob) -> AsyncIterator[Lease]:
        """The newest lease of a job. It is not extended meanwhile: an extension may change its token."""
        while leased.lease.is_settling or not self._leased_jobs.mark_settling([leased])[0]:
            await (pause_once() if self.timing.is_moved_by_hand else self.timing.clock.sleep(_LOOK_AGAIN))
        try:
            yield leased.newest_lease
        finally:
            self._leased_jobs.unmark_settling([leased])

    def block(self, coroutine: Any) -> Any:
        """Wait in a thread for something that happens in the worker's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()


async def pause_once() -> None:
    await pause()
