"""What the checks ask of the arguments of a driver's verbs, as JSON Schema for the OpenAPI document.

The types say what a message looks like, `model/checks.py` what makes sense in it. The checks decide; this
page only tells of them, and so never forbids what they allow: tests/unit/web/test_driver_schemas.py holds
the two against each other. JSON Schema has no words for the rest: that max_backoff is not below min_backoff,
that a cron expression fires, that a time zone exists, that a cursor belongs to its listing, how long a span
is in all. One thing is told more strictly than it is: nobody should write a minus before no time at all.
"""

from __future__ import annotations

from taskharbor.drivers.arguments import MAX_PID
from taskharbor.drivers.messages import MAX_PAGE
from taskharbor.drivers.wire import VERBS
from taskharbor.model.checks import MAX_BATCH, MAX_COUNT, MAX_HEADERS, MAX_NAMES, MAX_PRIORITY
from taskharbor.web.patterns import (
    ANY_INSTANT,
    ANY_SPAN,
    BYTES,
    CRON,
    ID,
    INSTANT,
    KEY,
    NAME,
    NAME_OR_ALL,
    NO_NUL,
    SHORT_SPAN,
    SHORT_TIME,
    SOME_TIME,
    SPAN,
    TEXT,
    TIME_ZONE,
    WORKER_ID,
    Schema,
)

_REQUESTS = {verb.request.__name__ for verb in VERBS.values()}
_HEADERS: Schema = {"maxProperties": MAX_HEADERS}
_NAMES: Schema = {"items": NAME, "minItems": 1, "uniqueItems": True}


def _count(least: int = 0, most: int = MAX_COUNT) -> Schema:
    return {"minimum": least, "maximum": most}


def _batch(item: Schema) -> Schema:
    return {"items": item, "maxItems": MAX_BATCH}


_PRIORITY = _count(-MAX_PRIORITY, MAX_PRIORITY)
_LIMIT = _count(1, MAX_BATCH)
_IDS = _batch(ID)
_SOME_NAMES: Schema = {"items": NAME, "maxItems": MAX_NAMES}

# ------------------------------------------------------------------ what is said of which field

_JOB_FIELDS: dict[str, Schema] = {
    "type": NAME,
    "payload": BYTES,
    "headers": _HEADERS,
    "priority": _PRIORITY,
    "requires": NAME,
    "timeout": SPAN,
    "max_attempts": _count(),
    "max_stalls": _count(),
    "min_backoff": SPAN,
    "max_backoff": SPAN,
}
FIELDS: dict[str, dict[str, Schema]] = {
    # NewJob.id is not here: a schedule's template has none.
    "NewJob": {
        **_JOB_FIELDS,
        "queue": NAME,
        "key": KEY,
        "idempotency_key": KEY,
        "run_at": INSTANT,
        "delay": SPAN,
    },
    "Edit": _JOB_FIELDS,
    "Claim": {
        "queues": _NAMES,
        "lanes": _NAMES,
        "types": _NAMES,
        "worker_id": WORKER_ID,
        "limit": _LIMIT,
        "lease_for": SOME_TIME,
    },
    "RateLimit": {"count": _count(1), "per": SOME_TIME},
    "QueueSettings": {"queue": NAME_OR_ALL, "max_running": _count(), "fail_queue": NAME},
    "Retention": {"completed": SPAN, "failed": SPAN, "cancelled": SPAN},
    "Schedule": {"name": NAME, "every": SOME_TIME, "cron": CRON, "timezone": TIME_ZONE},
    "WorkerReport": {
        "worker_id": WORKER_ID,
        "name": TEXT,
        "kind": NAME,
        "queues": _SOME_NAMES,
        "lanes": _SOME_NAMES,
        "types": _SOME_NAMES,
        "running": _IDS,
        "host": TEXT,
        "labels": _HEADERS,
        "concurrency": _count(),
        "pid": _count(0, MAX_PID),
        "started_at": INSTANT,
    },
    "Sample": {"type": NAME, "duration": SPAN},
    "HeadStart": {"slower": {"items": WORKER_ID, "maxItems": 1000}, "span": SPAN},
    "Query": {
        "queue": NAME,
        "type": NAME,
        "key": KEY,
        "worker_id": NO_NUL,
        "failure_kind": NO_NUL,
        "limit": _count(1, MAX_PAGE),
        "states": {"minItems": 1},
    },
    "Ack": {"result": BYTES},
    "Lease": {"expires_at": ANY_INSTANT},
    "Retry": {"delay": SPAN, "run_at": INSTANT, "attempts": _count(), "failed_at": ANY_INSTANT},
    "Release": {"delay": SPAN},
    "EnqueueRequest": {"jobs": _batch({"properties": {"id": ID}})},
    "WakeupsRequest": {"queues": {"items": NAME}, "worker_id": WORKER_ID},
    "ExtendLeasesRequest": {"leases": _batch({}), "lease_for": SOME_TIME},
    "SettleRequest": {"settlements": _batch({})},
    "ExchangeRequest": {"settlements": _batch({})},
    "ReclaimRequest": {"limit": _LIMIT},
    "PromoteRequest": {"limit": _LIMIT},
    "PruneRequest": {"limit": _LIMIT},
    "CancelRequest": {"ids": _IDS},
    "CancelWaitingRequest": {"queue": NAME, "key": KEY},
    "RequeueRequest": {"ids": _IDS, "queue": NAME, "run_at": INSTANT, "delay": SPAN},
    "DeleteRequest": {"ids": _IDS},
    "SpeculateRequest": {"job_id": ID},
    "GetRequest": {"ids": _IDS},
    "CountRequest": {"queues": {"items": NAME}},
    "ReportWorkerRequest": {"ttl": SHORT_SPAN, "samples": _batch({})},
    "ForgetWorkerRequest": {"worker_id": WORKER_ID},
    "HoldRoleRequest": {"role": NAME, "holder": WORKER_ID, "ttl": SHORT_TIME},
    "ReleaseRoleRequest": {"role": NAME, "holder": WORKER_ID},
    "AdvanceScheduleRequest": {"name": NAME, "tick": INSTANT},
    "DeleteScheduleRequest": {"name": NAME},
}


def _both(one: str, other: str) -> Schema:
    """Both said, and not as null."""
    said = {"not": {"type": "null"}}
    return {"required": [one, other], "properties": {one: said, other: said}}


def _only(one: str, other: str) -> Schema:
    """The one is said, and the other left out or null."""
    return {"required": [one], "properties": {one: {"type": "string"}, other: {"type": "null"}}}


_RUN_AT_OR_DELAY: Schema = {"not": _both("run_at", "delay")}
_UPDATE_NEEDS_KEY: Schema = {
    "anyOf": [
        {"required": ["key"], "properties": {"key": {"type": "string"}}},
        {"properties": {"update": {"type": "null"}}},
    ]
}
_WHOLE: dict[str, Schema] = {
    "NewJob": {"allOf": [_RUN_AT_OR_DELAY, _UPDATE_NEEDS_KEY]},
    "Retry": _RUN_AT_OR_DELAY,
    "RequeueRequest": _RUN_AT_OR_DELAY,
    "Schedule": {"oneOf": [_only("cron", "every"), _only("every", "cron")]},
}
_NO_NOW: Schema = {
    "type": "null",
    "default": None,
    "description": "This server keeps its own time; only one that was started for tests is told another.",
}

# ------------------------------------------------------------------ telling it


def narrowed(components: dict[str, Schema], *, accepts_now: bool) -> dict[str, Schema]:
    """The schemas of the types, with what the checks ask of their fields."""
    return {name: _narrowed(name, schema, accepts_now) for name, schema in components.items()}


def _narrowed(name: str, schema: Schema, accepts_now: bool) -> Schema:
    if "properties" not in schema:
        return schema
    rules = FIELDS.get(name, {})
    properties = {
        field: _with(part, rules.get(field) or _as_written(part))
        for field, part in schema["properties"].items()
    }
    if name in _REQUESTS and "now" in properties:
        properties["now"] = _with(properties["now"], INSTANT) if accepts_now else _NO_NOW
    return {**schema, "properties": properties, **_WHOLE.get(name, {})}


def _as_written(schema: Schema) -> Schema:
    """Seconds have a fraction here, for which the format `duration` has no place."""
    parts = schema.get("anyOf", [schema])
    return ANY_SPAN if any(part.get("format") == "duration" for part in parts) else {}


def _with(schema: Schema, rule: Schema) -> Schema:
    """A rule speaks of what is there: null stays allowed where it was."""
    if "anyOf" in schema:
        parts = [part if part == {"type": "null"} else _with(part, rule) for part in schema["anyOf"]]
        return {**schema, "anyOf": parts}
    if "pattern" in rule:  # says more than the format does
        schema = {name: value for name, value in schema.items() if name != "format"}
    if "items" in rule:
        rule = {**rule, "items": {**schema["items"], **rule["items"]}}
    return {**schema, **rule}
