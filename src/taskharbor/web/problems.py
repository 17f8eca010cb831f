"""Errors as RFC 9457 problem+json: one stable type per kind."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor import errors
from taskharbor.drivers.error_codec import Failure
from taskharbor.web.reply import Reply

_PREFIX = "urn:taskharbor:problem:"
MEDIA_TYPE = "application/problem+json"

# kind → (status, title, whether the same request may succeed later)
KINDS: dict[str, tuple[int, str, bool]] = {
    "malformed": (400, "Malformed request", False),
    "unauthenticated": (401, "Authentication needed", False),
    "forbidden": (403, "Not allowed", False),
    "not-found": (404, "Not found", False),
    "method-not-allowed": (405, "Method not allowed", False),
    "duplicate-job": (409, "A job with this key or id already exists", False),
    "wrong-state": (409, "Not possible in this state", False),
    "lease-lost": (409, "Lease lost", False),
    "count-differs": (409, "Another number of jobs", False),
    "cannot-tell": (409, "Unknown whether it was done", False),
    "timeout": (408, "Request took too long", True),
    "payload-too-large": (413, "Payload too large", False),
    "answer-too-large": (413, "Answer too large", False),
    "unsupported-media-type": (415, "Unsupported media type", False),
    "validation": (422, "Invalid request", False),
    "headers-too-large": (431, "Headers too large", False),
    "rate-limited": (429, "Rate limited", True),
    "internal": (500, "Internal error", False),
    "store-unavailable": (503, "Store unavailable", True),
    "too-busy": (503, "Too busy", True),
    "draining": (503, "Shutting down", True),
}

# The first match counts: subclasses before their parents.
_OF_ERROR: list[tuple[type[errors.TaskHarborError], str]] = [
    (errors.JobNotFound, "not-found"),
    (errors.DuplicateJob, "duplicate-job"),
    (errors.RateLimited, "rate-limited"),
    (errors.LeaseLost, "lease-lost"),
    (errors.ConflictError, "wrong-state"),
    (errors.InvalidArgument, "validation"),
    (errors.PayloadError, "validation"),
    (errors.SchemaOutOfDate, "store-unavailable"),  # the fault of the store, not of the caller
    (errors.ConfigurationError, "validation"),
    (errors.DriverUnavailable, "store-unavailable"),
    (errors.DriverClosed, "store-unavailable"),
]


class FieldOut(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    message: str
    at: int | UnsetType = UNSET
    """Of a text that cannot be parsed: where, in characters; `length` of them are wrong."""
    length: int | UnsetType = UNSET
    expected: list[str] | UnsetType = UNSET


class ProblemOut(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457. `type` never changes; `retryable`: the same request may succeed later."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    retryable: bool
    errors: list[FieldOut] = []
    failure: Failure | None = None
    """On driver verbs: the error as data, which the HTTP driver raises again."""


class Problem(Exception):
    """An error that is answered as problem+json."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        headers: dict[str, str] | None = None,
        fields: list[dict[str, Any]] | None = None,
        failure: Failure | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = headers or {}
        self.fields = fields or []
        self.failure = failure
        """The error as data, for the HTTP driver to raise."""


def problem_of(error: errors.TaskHarborError) -> Problem:
    """The problem for one of our errors."""
    kind = next((kind for cls, kind in _OF_ERROR if isinstance(error, cls)), "internal")
    headers = {}
    if isinstance(error, errors.RateLimited):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after.total_seconds())))
    elif kind == "store-unavailable":
        headers["Retry-After"] = "1"
    path = getattr(error, "path", None)
    fields: list[dict[str, Any]] = [{"path": path, "message": str(error)}] if path else []
    return Problem(kind, str(error), headers=headers, fields=fields)


def problem_response(problem: Problem, *, instance: str, request_id: str) -> Reply:
    status, title, retryable = KINDS[problem.kind]
    body: dict[str, Any] = {
        "type": _PREFIX + problem.kind,
        "title": title,
        "status": status,
        "detail": problem.detail,
        "instance": instance.encode("utf-8", "replace").decode(),
        "request_id": request_id,
        "retryable": retryable,
    }
    if problem.fields:
        body["errors"] = problem.fields
    if problem.failure is not None:
        body["failure"] = problem.failure
    return Reply(msgspec.json.encode(body), status, problem.headers, MEDIA_TYPE)
