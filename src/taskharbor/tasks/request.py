"""JobRequest: a job as it is asked for, and the one place that makes a NewJob of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from taskharbor.errors import InvalidArgument
from taskharbor.model.codec import CODEC_HEADER, Codec
from taskharbor.model.duration import Duration, duration, optional_duration
from taskharbor.model.job import DEFAULT_MAX_STALLS, NO_TIME, NewJob, Update


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A job as it is asked for: a type, a payload of any value, and options.

    What is left out gets its default when the job is made: the client's default queue, no time
    limit, as many attempts as the worker's policy allows, three stalls. Durations may be a
    timedelta, a number of seconds, or a text like `30s`.
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


_ENCODED = "encoded"


def encoded_request(asked: JobRequest, payload: Any, codec: Codec, data: bytes) -> JobRequest:
    """What was asked for, with this payload, which `codec` has encoded already.

    The bytes are kept beside the fields: they are no part of the request, and a changed copy does not have
    them.
    """
    request = msgspec.structs.replace(asked, payload=payload)
    vars(request)[_ENCODED] = asked, codec, data
    return request


def template_key(request: JobRequest, codec: Codec) -> tuple[Any, bytes | None]:
    """What is equal for two requests that share a template, and the payload if `codec` has encoded it.

    Subclasses of JobRequest return None: they are never grouped.
    """
    if type(request) is not JobRequest:
        return None, None
    encoded = request.__dict__.get(_ENCODED)
    if encoded is not None and encoded[1] is codec:
        return encoded[0], encoded[2]
    return options_of(request), None


options_of = attrgetter(*(name for name in JobRequest.__struct_fields__ if name not in ("id", "payload")))
"""All fields but id and payload: two requests with equal ones share a template."""


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
