"""Client: enqueue jobs, look at them, cancel them, run them again.

Every verb has two forms: `enqueue` for blocking code, `aenqueue` for async code. The blocking form
runs the async one in a background loop. Only blocking enqueues call the driver directly, because
web applications make them inside requests.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop as running_loop  # no exception when there is none
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar

from taskharbor.client.connections import LoopConnections
from taskharbor.client.handle import JobHandle, state_when_stored
from taskharbor.client.notebook import blocks_async_code
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Enqueued,
    Page,
    Query,
    Requeued,
)
from taskharbor.errors import InvalidArgument, JobNotFound
from taskharbor.events import EventBus, JobEnqueued
from taskharbor.middleware import EnqueueMiddleware, around_every_enqueue, check_layer, compose
from taskharbor.model.checks import check_name
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.codec import Codec, JsonCodec
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_QUEUE, JobRecord, NewJob
from taskharbor.tasks.request import JobRequest, Templates, as_key

P = ParamSpec("P")
T = TypeVar("T")


class Client:
    """Enqueues jobs and looks after them. Safe to use from any thread and event loop.

    The driver may be shared with workers. The caller opens and closes it, unless `opens` is set.
    Blocking calls use a driver handle of their own on the same store.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        default_queue: str = DEFAULT_QUEUE,
        codec: Codec | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        events: EventBus | None = None,
        opens: bool = False,
        read_result: Callable[[JobRecord], Any] | None = None,
    ) -> None:
        check_name(default_queue, "default_queue")
        self.codec: Codec = codec or JsonCodec()
        self.events = events or EventBus()
        self._default_queue = default_queue
        self._read_result = read_result or _json_result
        self._layers: list[EnqueueMiddleware] = []
        self._attach(driver, clock=clock, entropy=entropy, opens=opens)

    def _attach(
        self,
        driver: Driver,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        opens: bool = False,
    ) -> None:
        """Use this store from now on. Handles on the store before stay open until their users close them."""
        self.clock: Clock = clock or SystemClock()
        # The store's clock decides, unless this client has a clock of its own, as in tests.
        self._decides_time = clock is not None and not isinstance(clock, SystemClock)
        self._entropy = entropy or driver.entropy
        self._calls_directly = driver.capabilities.blocking_enqueue
        self._connections = LoopConnections(driver, opens=opens)

    def use(self, middleware: EnqueueMiddleware) -> None:
        """Add a layer around every enqueue; the first added is the outermost."""
        check_layer(middleware)
        self._layers.append(middleware)

    def leave(self, middleware: EnqueueMiddleware) -> None:
        """Remove a layer."""
        self._layers.remove(middleware)

    # ------------------------------------------------------------------ jobs in

    def enqueue(self, request: JobRequest, *, tx: Any = None) -> JobHandle[Any]:
        """Store one job. When this returns, the job is as durable as the store is.

        With `tx`, your own connection, the job exists if and only if your transaction commits.

        Raises:
            InvalidArgument: the request can never be stored; the message says what to change.
            EncodeError: the codec cannot encode the payload.
            RateLimited: over the queue's rate. In every case nothing was stored.
        """
        return self._enqueue_job(self._new_job(request), tx)

    async def aenqueue(self, request: JobRequest, *, tx: Any = None) -> JobHandle[Any]:
        return await self._aenqueue_job(self._new_job(request), tx)

    def enqueue_many(self, requests: Iterable[JobRequest], *, tx: Any = None) -> list[JobHandle[Any]]:
        """Store many jobs in one step: all of them, or nothing."""
        refuse_in_loop("enqueue_many")
        return self._enqueue_now(self._new_jobs(requests), tx)

    async def aenqueue_many(self, requests: Iterable[JobRequest], *, tx: Any = None) -> list[JobHandle[Any]]:
        jobs = self._new_jobs(requests)
        return self._handles(jobs, await self._through_layers(jobs, tx))

    def enqueue_on(self, connection: Any, requests: Iterable[JobRequest]) -> list[JobHandle[Any]]:
        """Store jobs on your own blocking connection, whether the store is open or not; it is not opened.

        They are part of the transaction that is open there; without one they are stored at once. Takes
        what `tx=` takes: connections of Postgres and SQLite, of SQLAlchemy and Django.

        Raises:
            SchemaOutOfDate: the database has no tables of ours, or older ones.
        """
        if running_loop() is not None:
            raise InvalidArgument(
                "enqueue_on() would block the running event loop: call it in a thread, or use "
                "`await aenqueue_many(..., tx=...)`; nothing was done"
            )
        jobs = self._new_jobs(requests)
        driver = self._connections.driver
        if not (self._layers or around_every_enqueue):
            return self._handles(jobs, driver.enqueue_on(connection, jobs, now=self._now()))

        async def into_the_store(jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
            return driver.enqueue_on(connection, jobs, now=self._now())

        # In this thread: the connection may be bound to it.
        layered = compose([*around_every_enqueue, *self._layers], into_the_store)
        return self._handles(jobs, asyncio.run(layered(jobs)))

    def _new_job(self, request: JobRequest) -> NewJob:
        """Turn a request into a job: fill in defaults, encode the payload, make an id."""
        return Templates(self._default_queue, self.codec).new_job(request, self._new_id())

    def _new_jobs(self, requests: Iterable[JobRequest]) -> list[NewJob]:
        """`new_job` for many."""
        asked = list(requests)
        templates = Templates(self._default_queue, self.codec)
        return [
            templates.new_job(request, job_id)
            for request, job_id in zip(asked, self._new_ids(len(asked)), strict=True)
        ]

    def _new_id(self) -> str:
        return self._entropy.job_id(self.clock.now())

    def _new_ids(self, count: int) -> list[str]:
        return self._entropy.job_ids(self.clock.now(), count)

    def _enqueue_job(self, job: NewJob, tx: Any = None) -> JobHandle[Any]:
        """Store a finished NewJob; what `Task.enqueue` calls."""
        if running_loop() is not None:
            refuse_in_loop("enqueue")
        if self._layers or around_every_enqueue or tx is not None or not self._calls_directly:
            return self._enqueue_now((job,), tx)[0]
        driver = self._connections.blocking or self._connections.for_blocking()
        [answer] = driver.enqueue_blocking((job,), now=self._now())
        return self._handle(job, answer)

    async def _aenqueue_job(self, job: NewJob, tx: Any = None) -> JobHandle[Any]:
        if self._layers or around_every_enqueue or tx is not None:
            return self._handles((job,), await self._through_layers((job,), tx))[0]
        loop = running_loop()
        connection = self._connections.by_loop.get(loop) if loop is not None else None
        if connection is None:
            connection = await self._connections.here()
        return self._handle(job, await connection.batcher.enqueue(job, self._now()))

    async def _aenqueue_one(self, job: NewJob) -> Enqueued:
        """Store one NewJob and return the store's answer, without a handle; for the server."""
        if self._layers or around_every_enqueue:
            return (await self._aenqueue_jobs((job,)))[0]
        loop = running_loop()
        connection = self._connections.by_loop.get(loop) if loop is not None else None
        if connection is None:
            connection = await self._connections.here()
        answer = await connection.batcher.enqueue_in_batch(job, self._now())
        if answer.ended or JobEnqueued in self.events.heard:
            self._emit_enqueued((job,), (answer,))
        return answer

    async def _aenqueue_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        """Store many NewJobs in one step and return the store's answers; for the server."""
        answers = await self._through_layers(jobs, None)
        self._emit_enqueued(jobs, answers)
        return answers

    def _enqueue_now(self, jobs: Sequence[NewJob], tx: Any) -> list[JobHandle[Any]]:
        if not (self._layers or around_every_enqueue) and (self._calls_directly or tx is not None):
            driver = self._connections.blocking or self._connections.for_blocking(tx)
            return self._handles(jobs, driver.enqueue_blocking(jobs, now=self._now(), tx=tx))
        if tx is None:
            return self._handles(jobs, self._connections.portal.call(self._through_layers, jobs, tx))
        if running_loop() is not None:  # a notebook's, which cannot run a second one in this thread
            raise _would_block("enqueue")
        self._connections.for_blocking(tx)
        # In this thread: the connection behind tx may be bound to it.
        return self._handles(jobs, asyncio.run(self._through_layers(jobs, tx)))

    async def _through_layers(self, jobs: Sequence[NewJob], tx: Any) -> Sequence[Enqueued]:
        async def into_the_store(jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
            if tx is None:
                driver = (await self._connections.here()).driver
                return await driver.enqueue(jobs, now=self._now())
            driver = self._connections.blocking or (await self._connections.here(tx)).driver
            return await driver.enqueue_in(jobs, tx=tx, now=self._now())

        answers: Sequence[Enqueued] = await compose([*around_every_enqueue, *self._layers], into_the_store)(
            jobs
        )
        return answers

    def _emit_enqueued(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
        if JobEnqueued in self.events.heard:
            for job, answer in zip(jobs, answers, strict=False):
                self.events.emit(
                    JobEnqueued(job_id=answer.id, type=job.type, queue=job.queue, result=answer.result)
                )
        for answer in answers:
            if answer.ended:
                report_ended(answer.ended, self.events)

    def _handle(self, job: NewJob, answer: Enqueued) -> JobHandle[Any]:
        """`_handles` for one job."""
        if answer.ended or JobEnqueued in self.events.heard:
            self._emit_enqueued((job,), (answer,))
        return JobHandle(self, answer.id, enqueued=answer, stored_as=state_when_stored(job, answer))

    def _handles(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> list[JobHandle[Any]]:
        self._emit_enqueued(jobs, answers)
        if len(jobs) != len(answers):  # a middleware added or removed jobs
            return [JobHandle(self, answer.id, enqueued=answer) for answer in answers]
        return [
            JobHandle(self, answer.id, enqueued=answer, stored_as=state_when_stored(job, answer))
            for job, answer in zip(jobs, answers, strict=True)
        ]

    # ------------------------------------------------------------------ looking

    def get(self, job_id: str) -> JobHandle[Any]:
        """A handle on a job. Raises JobNotFound if the store has no job with this id."""
        return self._block(self.aget, job_id)

    async def aget(self, job_id: str) -> JobHandle[Any]:
        record = await self.aget_record(job_id)
        return JobHandle(self, record.id, record=record)

    async def aget_record(self, job_id: str) -> JobRecord:
        """The stored job. An id that was merged into another job returns that job."""
        driver = (await self._connections.here()).driver
        [record] = await driver.get([job_id], now=self._now())
        if record is None:
            raise JobNotFound(job_id)
        return record

    def get_on(self, connection: Any, ids: Sequence[str]) -> list[JobRecord | None]:
        """The records of these ids, read on your own blocking connection; None for an id that is not known.

        It sees the jobs that a transaction there has stored and not committed yet. See `enqueue_on`.
        """
        return self._connections.driver.get_on(connection, ids, now=self._now())

    def find(self, query: Query | None = None) -> Page:
        """Jobs in enqueue order, page by page. Pass the last page's `next_cursor` to get the next one."""
        return self._block(self.afind, query)

    async def afind(self, query: Query | None = None) -> Page:
        driver = (await self._connections.here()).driver
        return await driver.find(query or Query(), now=self._now())

    def result_of(self, record: JobRecord) -> Any:
        """The decoded result of a completed job; None when it returned nothing."""
        return None if record.result is None else self._read_result(record)

    # ------------------------------------------------------------------ control

    def ring(self, queues: Sequence[str]) -> None:
        """Wake workers that wait for these queues: after you committed a transaction with jobs in it.

        Postgres, Django and SQLAlchemy sessions do that by themselves. Use it with `tx=` on a plain sqlite3
        connection or a SQLAlchemy Connection; without it workers find the jobs when they poll.
        """
        self._block(self.aring, queues)

    async def aring(self, queues: Sequence[str]) -> None:
        await (await self._connections.here()).driver.ring(queues)

    def cancel(self, job_id: str) -> CancelAnswer:
        """Cancel a job: at once if it waits; if it runs, its worker is asked to stop it.

        A finished job stays as it is, and the answer says so. Raises JobNotFound.
        """
        return self._block(self.acancel, job_id)

    async def acancel(self, job_id: str) -> CancelAnswer:
        driver = (await self._connections.here()).driver
        [answer] = await driver.cancel([job_id], now=self._now())
        if answer.result is CancelResult.NOT_FOUND:
            raise JobNotFound(job_id)
        report_ended(answer.ended, self.events)
        return answer

    def cancel_waiting(self, queue: str, key: str | bytes) -> bool:
        """Cancel the waiting or blocked job of a key, never a running one. True if there was one."""
        return self._block(self.acancel_waiting, queue, key)

    async def acancel_waiting(self, queue: str, key: str | bytes) -> bool:
        driver = (await self._connections.here()).driver
        return await driver.cancel_waiting(queue, as_key(key, "key") or b"", now=self._now())

    def retry(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> JobHandle[Any]:
        """Run a completed, failed or cancelled job again under the same id, changed by `edit`.

        With `queue`, a job of another queue is refused: a guard for ids from outside.

        Raises:
            JobNotFound: there is no such job.
            NotAllowedInState: it is not finished.
            DuplicateJob: another job with its key already waits.
            WrongQueue: it is not in `queue`.
        """
        return self._block(
            self.aretry, job_id, queue=queue, edit=edit, reset_counts=reset_counts, run_at=run_at, delay=delay
        )

    async def aretry(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> JobHandle[Any]:
        driver = (await self._connections.here()).driver
        [answer] = await driver.requeue(
            [job_id],
            queue=queue,
            edit=edit,
            reset_counts=reset_counts,
            run_at=run_at,
            delay=optional_duration(delay, "delay"),
            now=self._now(),
        )
        if not isinstance(answer, Requeued):
            raise answer
        report_ended(answer.ended, self.events)
        return JobHandle(self, answer.id)

    # ------------------------------------------------------------------ open and close

    async def aopen(self) -> None:
        """Open the store in this event loop, if this client is the one to open it."""
        await self._connections.here()

    async def adriver(self) -> Driver:
        """The open driver of the running event loop, for verbs that the client lacks."""
        return (await self._connections.here()).driver

    def close(self) -> None:
        """Close what blocking calls opened. A later call opens it again."""
        refuse_in_loop("close")
        self._connections.close()

    def _close_anywhere(self) -> None:
        """The same, also inside an event loop, which it blocks: for tests."""
        self._connections.close()

    async def aclose(self) -> None:
        """Close what this event loop and blocking calls opened."""
        await self._connections.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.aopen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ------------------------------------------------------------------

    def _now(self) -> datetime | None:
        """The `now` to pass to the store: None (the store's clock), unless this client has its own clock."""
        return self.clock.now() if self._decides_time else None

    def _block(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an async verb for a blocking caller and wait for it."""
        refuse_in_loop(function.__name__.removeprefix("a"))
        return self._connections.portal.call(function, *args, **kwargs)

    def _block_anywhere(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same, also inside an event loop, which it blocks: for tests."""
        return self._connections.portal.call(function, *args, **kwargs)


def refuse_in_loop(verb: str) -> None:
    """Refuse a blocking verb inside a running event loop, which it would block.

    The loop of a notebook is no such loop: nothing else waits for a cell.

    Raises:
        InvalidArgument: names the async verb to use.
    """
    if blocks_async_code():
        raise _would_block(verb)


def _would_block(verb: str) -> InvalidArgument:
    return InvalidArgument(
        f"{verb}() would block the running event loop: use `await a{verb}()`; nothing was done"
    )


_JSON = JsonCodec()


def _json_result(record: JobRecord) -> Any:
    return _JSON.decode(record.result or b"null")
