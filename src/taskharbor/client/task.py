"""Task: a named function, how its jobs run, and how its calls are enqueued."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.client.client import Client
from taskharbor.client.handle import JobHandle
from taskharbor.errors import ConfigurationError, InvalidArgument, PayloadError
from taskharbor.model.checks import check_new_job
from taskharbor.model.clock import EPOCH
from taskharbor.model.codec import Codec, Codecs, JsonCodec
from taskharbor.model.duration import Duration
from taskharbor.model.job import Job, NewJob, Update
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.speculation import SPECULATE_HEADER, Speculate, header_of
from taskharbor.tasks.handler import (
    Arguments,
    Handler,
    RecycleOn,
    RunIn,
    check_run_in,
    recycle_names,
    reference_of,
    refuse_generator,
    result_encoder,
)
from taskharbor.tasks.request import Call, JobRequest, call_of, encoded_request, outs_in, template_of
from taskharbor.tasks.signature import Signature, UnresolvedAnnotation, result_type

P = ParamSpec("P")
R = TypeVar("R")

_JSON = JsonCodec()
_ANY_ID = "00000000-0000-7000-8000-000000000000"


class Task(Generic[P, R]):
    """A named function whose calls can be enqueued. Calling it directly runs it here and now.

    It has the options of its jobs and knows how their arguments travel. Without a client (`bound_to`) it can
    do everything but enqueue.
    """

    _client: Client
    _tx: Any = None

    def __init__(
        self,
        function: Callable[..., Any],
        request: JobRequest,
        *,
        codec: Codec = _JSON,
        default_queue: str = "default",
        run_in: RunIn = "auto",
        retry: RetryPolicy | None = None,
        speculate: Speculate | None = None,
        recycle_on: RecycleOn | Iterable[RecycleOn] = (),
    ) -> None:
        if not callable(function) or inspect.isclass(function):
            raise ConfigurationError(f"a task is made from a function, not from {function!r}")
        refuse_generator(function, f"task {request.type!r}")
        check_run_in(run_in, request.type)
        functools.update_wrapper(cast("Any", self), function)
        self.function = function
        self.name = request.type
        self.retry = retry
        self.run_in: RunIn = run_in
        self.speculate = speculate
        self.recycle_on = recycle_names(recycle_on, run_in, request.type)
        self._codec = codec
        self._codecs = Codecs(codec)
        self._default_queue = default_queue
        self._signature: Signature | None = _read_now_or_later(function, self.name)
        self._take(request)

    @property
    def queue(self) -> str:
        """The queue its jobs go to."""
        return self._template.queue

    @property
    def options(self) -> JobRequest:
        """Everything about its jobs but their payload."""
        return self._request

    @property
    def signature(self) -> Signature:
        """The parameters of the function, and what their arguments are decoded to."""
        if self._signature is None:
            self._signature = Signature(self.function, self.name)
        return self._signature

    def bound_to(self, client: Client) -> Self:
        """This task, with its jobs stored through `client`."""
        self._client = client
        return self

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that will call the function with these arguments.

        Raises:
            TypeError: the function does not take these arguments.
            PayloadError: an argument does not match its parameter's annotation.
            RateLimited: over the queue's rate. In every case nothing was stored.
        """
        client = self._client
        return client._enqueue_job(self.new_job(client._new_id(), args, kwargs), self._tx)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        client = self._client
        return await client._aenqueue_job(self.new_job(client._new_id(), args, kwargs), self._tx)

    def using(
        self,
        *,
        queue: str | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        requires: str | UnsetType = UNSET,
        run_at: datetime | None | UnsetType = UNSET,
        delay: Duration | None | UnsetType = UNSET,
        timeout: Duration | None | UnsetType = UNSET,
        max_attempts: int | None | UnsetType = UNSET,
        max_stalls: int | None | UnsetType = UNSET,
        min_backoff: Duration | None | UnsetType = UNSET,
        max_backoff: Duration | None | UnsetType = UNSET,
        key: str | bytes | None | UnsetType = UNSET,
        update: Update | None | UnsetType = UNSET,
        idempotency_key: str | bytes | None | UnsetType = UNSET,
        headers: Mapping[str, str] | None | UnsetType = UNSET,
        tx: Any = UNSET,
    ) -> Self:
        """The same task with other options for its jobs: `task.using(delay="5m").enqueue(7)`.

        Options left out stay as they are. With `tx`, your own connection or session, the job exists
        if and only if your transaction commits.
        """
        given = {name: value for name, value in locals().items() if value is not UNSET and name in _OPTIONS}
        changed = self.with_options(**given)
        if tx is not UNSET:
            changed._tx = tx
        return changed

    # ------------------------------------------------------------------ jobs of it

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The job of this call, to be enqueued later or together with others: its arguments as they are now.

        A whole argument may be `node.out`, the result of another node of the same workflow.

        Raises:
            TypeError: the function does not take these arguments.
            PayloadError: an argument is not what its parameter is annotated with.
        """
        signature = self._signature or self.signature
        payload = signature.payload(args, kwargs)
        try:
            data: bytes | None = signature.fitting(payload, self._codec)
        except PayloadError:
            outs = outs_in(payload)
            if not outs:
                raise
            rest = {name: value for name, value in payload.items() if name not in outs}
            signature.fitting_partly(rest, self._codec)
            data = None
        return encoded_request(self._request, payload, self._codec, data, self)

    def new_job(self, job_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """The same job, ready to be stored under this id."""
        signature = self._signature or self.signature
        payload = signature.encoded(args, kwargs, self._codec)
        return msgspec.structs.replace(self._template, id=job_id, payload=payload)

    def with_options(self, **options: Any) -> Self:
        """The same task with some options of its jobs changed; the original stays as it is.

        Raises:
            InvalidArgument: an option that no job has, or a value it cannot take.
        """
        changed = copy.copy(self)
        try:
            changed._take(msgspec.structs.replace(self._request, **options))
        except TypeError as error:
            raise InvalidArgument(f"task {self.name!r}: {error}") from None
        return changed

    def _take(self, request: JobRequest) -> None:
        request = self._with_rule(request)
        template = template_of(request, default_queue=self._default_queue, codec=self._codec)
        check_new_job(
            msgspec.structs.replace(template, id=_ANY_ID), EPOCH if request.run_at is None else request.run_at
        )
        self._request = call_of(request)
        self._template = template

    def _with_rule(self, request: JobRequest) -> JobRequest:
        """Jobs carry the rule of second runs, so that a scheduler needs no app for it; keyed ones never."""
        if self.speculate is None:
            return request
        headers = {name: value for name, value in (request.headers or {}).items() if name != SPECULATE_HEADER}
        if request.key is None:
            headers[SPECULATE_HEADER] = header_of(self.speculate)
        return msgspec.structs.replace(request, headers=headers)

    # ------------------------------------------------------------------ running it

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result

    @property
    def handler(self) -> Handler:
        """What a worker needs to run this task."""
        return Handler(
            type=self.name,
            function=self.function,
            bind=self._bind,
            encode_result=result_encoder(self._codec),
            run_in=self.run_in,
            retry=self.retry,
            speculate=self.speculate,
            reference=reference_of(self.function),
            recycle_on=self.recycle_on,
        )

    def _bind(self, context: Any, job: Job) -> Arguments:
        codec = self._codecs.of(job.headers, _JSON)
        return self.signature.arguments(job.payload, context, codec)

    def read_result(self, data: bytes) -> R:
        """A stored result, in the type of the function's return annotation."""
        result: R = self._codec.decode(data, self._result_type)
        return result

    @functools.cached_property
    def _result_type(self) -> Any:
        return result_type(self.signature.returns)

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self.queue}>"


_OPTIONS = frozenset(cast("Any", Task.using).__kwdefaults__) - {"tx"}


class AsyncTask(Task[P, R]):
    """A task made from an `async def`: calling it returns a coroutine, and its jobs return R."""

    def __call__(  # type: ignore[override]
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


def _read_now_or_later(function: Callable[..., Any], name: str) -> Signature | None:
    """Annotations may name what is defined further down: those are read at the first use."""
    try:
        return Signature(function, name)
    except UnresolvedAnnotation:
        return None
