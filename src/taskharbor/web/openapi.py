"""The OpenAPI 3.1 document, made from the operations and their input and answer types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from starlette.responses import Response

from taskharbor.web.endpoint import Operation
from taskharbor.web.problems import KINDS, MEDIA_TYPE, ProblemOut
from taskharbor.web.reply import Reply
from taskharbor.web.request import Request

Document = dict[str, Any]

_REF = "#/components/schemas/{name}"
_IN_PATH = re.compile(r"\{(\w+)\}")
_PROBLEMS_OF_ALL = (
    "malformed",
    "method-not-allowed",
    "validation",
    "headers-too-large",
    "internal",
    "store-unavailable",
)
_PROBLEMS_WITH_TOKEN = ("unauthenticated", "forbidden", "rate-limited")
_PATH_PARAMETERS: dict[str, tuple[str, Document]] = {
    "id": ("The id of a job.", {"type": "string", "format": "uuid"}),
    "queue": ("The name of a queue; * for the whole harbor where that applies.", {"type": "string"}),
    "name": ("The name of a schedule.", {"type": "string"}),
    "request_id": ("The id of the request that made a change.", {"type": "string"}),
    "token": ("The id of a token.", {"type": "string"}),
    "cause": ("The id of a cause of failures.", {"type": "string"}),
    "bulk": ("The id of a bulk action.", {"type": "string"}),
    "stream": ("The id of an event stream, from its first event.", {"type": "string"}),
}


def openapi_operation(operations: Sequence[Operation]) -> Operation:
    """GET /api/openapi.json: the document of these operations, made once, when it is first asked for."""

    @lru_cache(maxsize=4)  # encoded too: half a millisecond a call, and anybody may call
    def document(root: str) -> bytes:
        made = openapi_document(operations)
        return msgspec.json.encode({**made, "servers": [{"url": root or "/"}]})

    async def openapi(request: Request) -> Response:
        return Reply(document(request.scope.get("root_path", "")))

    return Operation(
        method="GET",
        path="/api/openapi.json",
        name="openapi",
        handler=openapi,
        summary="This document",
        query=None,
        answer=dict[str, Any],
    )


def openapi_document(operations: Sequence[Operation]) -> Document:
    from taskharbor import __version__

    types = [
        kind for operation in operations for kind in (operation.body, operation.answer) if kind is not None
    ]
    _, components = msgspec.json.schema_components([*types, ProblemOut], ref_template=_REF)
    paths: dict[str, Document] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TaskHarbor",
            "version": __version__,
            "description": "Background jobs: enqueue, inspect, cancel, operate.",
        },
        "paths": paths,
        "components": {
            "schemas": _without_format(components, "duration"),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _without_format(schema: Any, name: str) -> Any:
    """Our durations have fractions of seconds, which the format `duration` of JSON Schema does not allow."""
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if (key, value) != ("format", name)}
        return {key: _without_format(value, name) for key, value in kept.items()}
    return [_without_format(item, name) for item in schema] if isinstance(schema, list) else schema


def _operation(operation: Operation) -> Document:
    document: Document = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [_tag(operation.path)],
        "parameters": [
            *_path_parameters(operation.path),
            *_query_parameters(operation),
            *_headers(operation),
        ],
        "responses": {**_success(operation), **_problems(operation)},
        "security": [] if operation.access_rule.is_open else [{"token": []}],
    }
    if not operation.access_rule.is_open:
        document["description"] = f"It {operation.access_rule.needs}."
    if operation.body is not None:
        document["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {"application/json": {"schema": _schema(operation.body)}},
        }
    return document


def _tag(path: str) -> str:
    parts = path.strip("/").split("/")
    return parts[1] if parts[0] == "api" else "probes"


def _path_parameters(path: str) -> list[Document]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_PARAMETERS[name][0],
            "schema": _PATH_PARAMETERS[name][1],
        }
        for name in _IN_PATH.findall(path)
    ]


def _query_parameters(operation: Operation) -> list[Document]:
    if operation.query is None:
        return []
    schema = msgspec.json.schema(operation.query)["$defs"][operation.query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _without_null(part),
        }
        for name, part in schema["properties"].items()
    ]


def _headers(operation: Operation) -> list[Document]:
    return [
        {
            "name": name,
            "in": "header",
            "description": meaning,
            "schema": {"type": "string", "pattern": pattern},
        }
        for name, pattern, meaning in operation.headers
    ]


def _without_null(schema: Document) -> Document:
    """In a query string, null is expressed by leaving the parameter out."""
    plain = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    choices = [part for part in plain.pop("anyOf", ()) if part != {"type": "null"}]
    if len(choices) == 1:
        return {**choices[0], **plain}
    return {**plain, "anyOf": choices} if choices else plain


def _success(operation: Operation) -> Document:
    if operation.answer is None:
        return {str(operation.status): {"description": "Done; the answer has no body."}}
    response = {
        "description": "Done.",
        "content": {operation.media_type: {"schema": _schema(operation.answer)}},
    }
    may_be_200 = operation.status in (201, 202) and operation.method in ("POST", "PUT")
    return (
        {"200": response, str(operation.status): response}
        if may_be_200
        else {str(operation.status): response}
    )


def _problems(operation: Operation) -> Document:
    kinds = [
        *_PROBLEMS_OF_ALL,
        *(() if operation.access_rule.is_open else _PROBLEMS_WITH_TOKEN),
        *operation.problems,
    ]
    return {str(status): _problem(status, kinds) for status in sorted({KINDS[kind][0] for kind in kinds})}


def _problem(status: int, kinds: Iterable[str]) -> Document:
    titles = sorted({KINDS[kind][1] for kind in kinds if KINDS[kind][0] == status})
    response: Document = {
        "description": "; ".join(titles) + ".",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemOut")}}},
    }
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return response


def _schema(kind: Any) -> Document:
    [schema], _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema
