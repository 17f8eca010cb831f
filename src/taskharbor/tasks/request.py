"""JobRequest: a job as it is asked for, and the one place that makes a NewJob of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from taskharbor.errors import InvalidArgument
from taskharbor.model.codec import CODEC_HEADER, Codec, JsonCodec
from taskharbor.model.duration import Duration, duration, optional_duration
from taskharbor.model.job import DEFAULT_MAX_STALLS, NO_TIME, NewJob, Update

R = TypeVar("R")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A job as it is asked for: a type, a payload of any value, and options.

    What is left out gets its default when the job is made. That is the client's default queue, no time limit,
    three stalls, and as many attempts as the worker's policy allows. Durations may be a timedelta, a number
    of seconds, or a text like `30s`.
    """

    type: str
    payload: Any = None
    queue: str | None = None
    run_at: datetime | None = None
    delay: Duration | None = None
    timeout: Duration | None = None
    max_attempts: int | None = None
    max_stalls: int | None = None
    min_backoff: Duration | None = None
    max_backoff: Duration | None = None
    priority: int = 0
    requires: str = "any"
    key: str | bytes | None = None
    update: Update | None = None
    idempotency_key: str | bytes | None = None
    headers: Mapping[str, str] | None = None
    id: str | None = None
    """For callers that repeat a request after a lost answer: the same id makes no second job."""


class Called(Protocol):
    """What a call remembers of its task."""

    def read_result(self, data: bytes) -> Any: ...


class Call(JobRequest, Generic[R], frozen=True, kw_only=True, dict=True):
    """The job of `task.call(...)`: a JobRequest that knows the type of its result."""

    def read(self, data: bytes | None) -> Any:
        """A stored result of this job, in the type of its task."""
        if data is None:
            return None
        task = self.__dict__.get(_TASK)
        return _JSON.decode(data) if task is None else task.read_result(data)

    def __eq__(self, other: object) -> bool:
        """Equal to a request with the same fields, made by a task or not."""
        return isinstance(other, JobRequest) and all(
            getattr(self, name) == getattr(other, name) for name in JobRequest.__struct_fields__
        )

    __hash__ = JobRequest.__hash__


class Out:
    """The result of a node, or of the node of this name, in the place of an argument: `node.out`."""

    __slots__ = ("node",)

    def __init__(self, node: Any) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"<result of {self.node!r}>"


def call_of(request: JobRequest) -> Call[Any]:
    """The same request as a Call."""
    return Call(**{name: getattr(request, name) for name in JobRequest.__struct_fields__})


_ENCODED = "encoded"
_TASK = "task"
_JSON = JsonCodec()


def encoded_request(
    asked: Call[Any], payload: Any, codec: Codec, data: bytes | None, task: Called | None = None
) -> Call[Any]:
    """What was asked for, with this payload, which `codec` has encoded already, if `data` is given.

    The bytes are kept beside the fields: they are no part of the request, and a changed copy does not have
    them.
    """
    request = replace(asked, payload=payload)
    beside = vars(request)
    beside[_TASK] = task
    if data is not None:
        beside[_ENCODED] = asked, codec, data
    return request


def outs_in(payload: Any) -> dict[str, Out]:
    """The arguments of a call that are results of nodes, by parameter."""
    if not isinstance(payload, dict):
        return {}
    return {name: value for name, value in payload.items() if isinstance(value, Out)}


def encoded_payload(request: JobRequest, codec: Codec) -> bytes:
    """The payload as `codec` encodes it; the bytes that a task has made already, if it used the same one."""
    encoded = vars(request).get(_ENCODED)
    if encoded is not None and encoded[1] is codec:
        return cast("bytes", encoded[2])
    return codec.encode(request.payload)


_OWN = ("id", "payload", "key", "idempotency_key")
_shared_options = attrgetter(*(name for name in JobRequest.__struct_fields__ if name not in _OWN))
_SHARING = (Call, JobRequest)


class Templates:
    """Makes the jobs of one call. Requests with equal options share a template: to fill in the defaults again
    for each takes longer than everything else that is done to it here.
    """

    def __init__(self, default_queue: str, codec: Codec) -> None:
        self._default_queue = default_queue
        self._codec = codec
        self._known: dict[Any, NewJob] = {}
        self._last_call: tuple[Any, NewJob] | None = None  # what the last call was made from, and its job
        self._last: tuple[Any, NewJob] | None = None

    def new_job(self, request: JobRequest, job_id: str) -> NewJob:
        """The job of a request, under the id that it names, or else under this one."""
        if type(request) not in _SHARING:  # another subclass may mean something else by the same fields
            template = self._made(request)
        elif (encoded := vars(request).get(_ENCODED)) is None or encoded[1] is not self._codec:
            template = self._shared(request)
        else:
            if self._last_call is None or self._last_call[0] is not encoded[0]:
                template = self._shared(request)
                if request.key is not None or request.idempotency_key is not None:
                    template = self._with_own(template, request, "", b"")
                self._last_call = encoded[0], template
            return replace(self._last_call[1], id=request.id or job_id, payload=encoded[2])
        return self._with_own(template, request, request.id or job_id, self._codec.encode(request.payload))

    def _with_own(self, template: NewJob, request: JobRequest, job_id: str, payload: bytes) -> NewJob:
        return replace(
            template,
            id=job_id,
            payload=payload,
            key=as_key(request.key, "key"),
            idempotency_key=as_key(request.idempotency_key, "idempotency_key"),
        )

    def _shared(self, request: JobRequest) -> NewJob:
        options = _shared_options(request)
        if self._last is None or self._last[0] != options:
            try:
                template = self._known.get(options) or self._known.setdefault(options, self._made(request))
            except TypeError:  # headers are not hashable
                template = self._made(request)
            self._last = options, template
        return self._last[1]

    def _made(self, request: JobRequest) -> NewJob:
        template = template_of(request, default_queue=self._default_queue, codec=self._codec)
        return replace(template, key=None, idempotency_key=None)


def template_of(request: JobRequest, *, default_queue: str, codec: Codec) -> NewJob:
    """The job of a request with its defaults filled in, but without id and payload."""
    if not isinstance(request, JobRequest):
        raise InvalidArgument(f"a JobRequest is needed, not {type(request).__name__}")
    return NewJob(
        id="",
        type=request.type,
        queue=default_queue if request.queue is None else request.queue,
        key=as_key(request.key, "key"),
        update=request.update,
        idempotency_key=as_key(request.idempotency_key, "idempotency_key"),
        headers=_headers(request.headers, codec),
        priority=request.priority,
        requires=request.requires,
        run_at=request.run_at,
        delay=optional_duration(request.delay, "delay"),
        timeout=NO_TIME if request.timeout is None else duration(request.timeout, "timeout"),
        max_attempts=0 if request.max_attempts is None else request.max_attempts,
        max_stalls=DEFAULT_MAX_STALLS if request.max_stalls is None else request.max_stalls,
        min_backoff=optional_duration(request.min_backoff, "min_backoff"),
        max_backoff=optional_duration(request.max_backoff, "max_backoff"),
    )


def as_key(key: str | bytes | None, what: str) -> bytes | None:
    """A key as the store keeps it: text becomes UTF-8."""
    if key is None or isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise InvalidArgument(f"{what} must be text or bytes, not {type(key).__name__}")
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} holds a lone surrogate, which no store can keep") from None


def _headers(headers: Mapping[str, str] | None, codec: Codec) -> dict[str, str]:
    """The caller's headers, and the codec's name unless it is JSON, the default."""
    given = dict(headers) if headers else {}
    if codec.name != "json":
        given[CODEC_HEADER] = codec.name
    return given
