"""The verbs of a handler's context that remember and wait; `durable.py` does the work."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from taskharbor.errors import ConfigurationError, InvalidArgument, StepError
from taskharbor.events import StepRan
from taskharbor.middleware import around_step
from taskharbor.model.bonds import MAX_AFTER
from taskharbor.model.duration import Duration, duration, optional_duration
from taskharbor.model.job import Job, JobRecord
from taskharbor.tasks.request import Call, JobRequest
from taskharbor.worker.durable import Durable, MapResult, check_same, is_known, page_of

if TYPE_CHECKING:
    from taskharbor.worker.attempt_tools import AttemptTools

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Mappable(Protocol[R]):
    """A task, as `amap` needs it."""

    name: str

    def call(self, item: Any, /) -> Call[R]:
        """A call of the task with this item."""
        ...

    def read_result(self, data: bytes) -> R:
        """What a job of the task returned, from the stored bytes."""
        ...


class DurableSteps:
    """The part of `JobContext` that remembers and waits. Each verb has a twin for handlers in a thread."""

    _tools: AttemptTools | None = None
    _leased: Any = None
    _durable_attempt: Durable | None = None
    job: Job

    @property
    def _durable(self) -> Durable:
        if self._durable_attempt is None:
            if self._tools is None:
                raise ConfigurationError(
                    "steps, children and events need a handler in the worker's own process: "
                    "run_in='loop' or 'thread'"
                )
            self._durable_attempt = Durable(self._tools, self._leased)
        return self._durable_attempt

    @property
    def workflow_id(self) -> str | None:
        """The id of the whole workflow that this job is a part of; None while it has no relatives."""
        record: JobRecord | None = None if self._leased is None else self._leased.record
        if record is None or (record.bonds is None and record.family is None):
            return None
        return record.root or record.id

    def idempotency_key(self, name: str) -> str:
        """A key that is the same in every attempt of this job: for APIs that take one."""
        return f"{self.job.id}/{name}"

    # ------------------------------------------------------------------ steps

    @overload
    async def astep(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def astep(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def astep(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once in the life of this job; later attempts get the stored result.

        The name is what it is remembered by, so it must be stable. A step that raises is not remembered.

        Raises:
            StepError: over 1,000 notes or 4 MiB of them.
        """
        durable = self._durable
        name = durable.step_name(name)
        note = durable.remembered(name)
        self._report_step(name, remembered=note is not None)
        if note is None:
            with around_step(self, name):
                value = function(*args, **kwargs)
                note = await durable.note(name, await value if inspect.isawaitable(value) else value)
        return durable.value_of(note, function)

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`astep` for a handler in a thread, which the function runs in."""
        durable = self._in_thread("step")
        name = durable.step_name(name)
        note = durable.remembered(name)
        self._report_step(name, remembered=note is not None)
        if note is None:
            with around_step(self, name):
                note = durable.tools.block(durable.note(name, function(*args, **kwargs)))
        result: R = durable.value_of(note, function)
        return result

    def _report_step(self, name: str, *, remembered: bool) -> None:
        job = self.job
        self._durable.tools.emit(
            StepRan(job_id=job.id, type=job.type, queue=job.queue, name=name, remembered=remembered)
        )

    async def asleep(self, name: str, span: Duration) -> None:
        """Wait without a slot, for seconds or for months; a later attempt does not wait again."""
        self._durable.sleep(name, duration(span, "span"))

    def sleep(self, name: str, span: Duration) -> None:
        """`asleep` for a handler in a thread."""
        self._in_thread("sleep").sleep(name, duration(span, "span"))

    # ------------------------------------------------------------------ children

    async def acall(self, call: Call[R], *, name: str | None = None) -> R:
        """Run another job as a child and return its result. The slot is free meanwhile.

        Raises:
            JobFailed: the child failed or was cancelled. If it is not caught, this job fails at once.
            StepError: a child of this name and of another type is stored.
        """
        [result] = await self._gather([call], [name])
        return typing.cast("R", result)

    def call(self, call: Call[R], *, name: str | None = None) -> R:
        """`acall` for a handler in a thread."""
        return typing.cast("R", self._in_thread("call").tools.block(self.acall(call, name=name)))

    async def agather(self, calls: Iterable[Call[R]]) -> list[R]:
        """Run jobs side by side as children and return their results in order; up to 1,000 of them.

        Raises:
            JobFailed: of the first child that did not complete.
        """
        listed = list(calls)
        return await self._gather(listed, [None] * len(listed))

    def gather(self, calls: Iterable[Call[R]]) -> list[R]:
        """`agather` for a handler in a thread."""
        return typing.cast("list[R]", self._in_thread("gather").tools.block(self.agather(calls)))

    async def _gather(self, calls: Sequence[Any], names: Sequence[str | None]) -> list[Any]:
        durable = self._durable
        if len(calls) > MAX_AFTER:
            raise StepError(f"{len(calls):,} children at once; {MAX_AFTER:,} are allowed: use ctx.amap")
        if not calls:
            return []
        jobs = []
        for what, name in zip(calls, names, strict=True):
            call = _request_of(what)
            jobs.append(durable.child(call, durable.child_name(name, call.type), optional=True))
        records = await durable.waited(jobs)
        return [
            await durable.result_of(record, _request_of(call))
            for record, call in zip(records, calls, strict=True)
        ]

    async def aspawn(self, call: Call[Any], *, name: str | None = None) -> str:
        """Store a child that is not waited for here; this job is over only when the child is. Returns its id.

        The failure of the child fails this job.
        """
        durable, request = self._durable, _request_of(call)
        job = durable.child(request, durable.child_name(name, request.type))
        record = (await durable.stored([job.id])).get(job.id)
        if record is None:
            [answer] = await durable.store([job])
            if not is_known(answer):
                return job.id
            record = (await durable.get([job.id])).get(job.id)
        check_same(record, job)
        return job.id

    def spawn(self, call: Call[Any], *, name: str | None = None) -> str:
        """`aspawn` for a handler in a thread."""
        return typing.cast("str", self._in_thread("spawn").tools.block(self.aspawn(call, name=name)))

    async def amap(
        self,
        task: Mappable[R],
        items: Iterable[Any],
        *,
        name: str | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        chunk: int | None = None,
    ) -> MapResult[R]:
        """Run one child per item, for any number of items, and return when all of them are over.

        Each child gets its item as the first argument, or with `chunk` a list of so many items. They are
        stored 1,000 at a time; a later attempt goes on behind the last one that was stored, so the items must
        come in the same order.

        Raises:
            JobFailed: more than `tolerate` of the children failed.
        """
        durable = self._durable
        parts: Iterable[Any] = items if chunk is None else _chunks(items, chunk)
        calls = (task.call(item) for item in parts)
        group_name = durable.child_name(name, task.name)
        group = await durable.mapped(calls, group_name, tolerate=tolerate, fail_fast=fail_fast)
        return MapResult(durable, group, task.read_result)

    def map(
        self,
        task: Mappable[R],
        items: Iterable[Any],
        *,
        name: str | None = None,
        tolerate: int | None = 0,
        fail_fast: bool = False,
        chunk: int | None = None,
    ) -> MapResult[R]:
        """`amap` for a handler in a thread."""
        mapping = self.amap(task, items, name=name, tolerate=tolerate, fail_fast=fail_fast, chunk=chunk)
        return typing.cast("MapResult[R]", self._in_thread("map").tools.block(mapping))

    # ------------------------------------------------------------------ events, results

    @overload
    async def aevent(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> T: ...
    @overload
    async def aevent(self, name: str, /, *, timeout: Duration | None = None) -> Any: ...

    async def aevent(self, name: str, type: Any = Any, /, *, timeout: Duration | None = None) -> Any:
        """Wait without a slot for `handle.send(name, value)`, and return the value, checked against `type`.

        An event that was sent before is there at once.

        Raises:
            EventTimeout: it did not come in time. If it is not caught, this job fails at once.
        """
        durable = self._durable
        record = await durable.event(name, optional_duration(timeout, "timeout"))
        return None if record.result is None else durable.tools.codec.decode(record.result, type)

    def event(self, name: str, type: Any = Any, /, *, timeout: Duration | None = None) -> Any:
        """`aevent` for a handler in a thread."""
        return self._in_thread("event").tools.block(self.aevent(name, type, timeout=timeout))

    def aresults(self, name: str | None = None) -> AsyncIterator[Any]:
        """The results of the jobs that this one comes after, in order; of groups those of their members.

        With `name`, of that node of the same workflow alone. Read 1,000 at a time.
        """
        return self._durable.results(name)

    def results(self, name: str | None = None) -> Iterator[Any]:
        """`aresults` for a handler in a thread."""
        durable = self._in_thread("results")
        pages = durable.results(name)
        while page := durable.tools.block(page_of(pages)):
            yield from page

    def _in_thread(self, verb: str) -> Durable:
        if asyncio._get_running_loop() is not None:
            raise InvalidArgument(
                f"ctx.{verb}() would block the running event loop: use `await ctx.a{verb}()`; "
                "nothing was done"
            )
        return self._durable


def _request_of(what: Any) -> JobRequest:
    """The request of a call, or of a workflow as one job."""
    if isinstance(what, JobRequest):
        return what
    if hasattr(what, "as_call"):
        request: JobRequest = what.as_call()
        return request
    raise InvalidArgument(f"a child is a task.call(...) or a workflow, not {what!r:.80}")


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    if size < 1:
        raise InvalidArgument(f"chunk={size} must be at least 1")
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part
