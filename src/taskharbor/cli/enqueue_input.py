"""The input of `enqueue`: arguments and lines of a file, and the jobs made from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from taskharbor.cli.exit_codes import UsageError
from taskharbor.errors import TaskHarborError
from taskharbor.model.codec import JsonCodec
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_QUEUE, NewJob, Update
from taskharbor.tasks.request import JobRequest, template_of

if TYPE_CHECKING:
    from taskharbor.harbor import Harbor

_CODEC = JsonCodec()


class UpdateLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change on the waiting job with the same key; see Update."""

    data: bool = True
    run_at: bool | Literal["if_later", "if_earlier"] = True
    retry: bool = True
    reset_counts: bool | None = None


def update_of(pairs: list[str], parse: Callable[[str], Any]) -> UpdateLine | None:
    """What --update data=false --update run_at=if_later says."""
    if not pairs:
        return None
    try:
        return msgspec.convert(dict(_argument(pair, parse) for pair in pairs), UpdateLine)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"--update {' '.join(pairs)}: {error}; it takes data, retry and reset_counts (true or false) "
            "and run_at (true, false, if_later or if_earlier)"
        ) from None


class JobLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job in a file; names and units are those of the JSON output."""

    type: str | None = None
    payload: Any = None
    queue: str | None = None
    id: str | None = None
    run_at: datetime | None = None
    delay_s: float | None = None
    timeout_s: float | None = None
    max_attempts: int | None = None
    max_stalls: int | None = None
    min_backoff_s: float | None = None
    max_backoff_s: float | None = None
    priority: int | None = None
    requires: str | None = None
    key: str | None = None
    update: UpdateLine | None = None
    idempotency_key: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)


def new_job(line: JobLine, harbor: Harbor | None, entropy: Entropy, now: datetime) -> NewJob:
    """The job of a line. Without a payload the task is called without arguments.

    With an app, the options of the task are the defaults and the arguments are checked.
    """
    job_id = line.id or entropy.job_id(now)
    payload = {} if line.payload is None else line.payload
    if harbor is not None:
        return _job_of_task(line, harbor, job_id, payload)
    request = JobRequest(type=line.type or "", **_options(line))
    template = template_of(request, default_queue=DEFAULT_QUEUE, codec=_CODEC)
    return msgspec.structs.replace(template, id=job_id, payload=_CODEC.encode(payload))


def _job_of_task(line: JobLine, harbor: Harbor, job_id: str, payload: Any) -> NewJob:
    task = harbor.tasks.get(line.type or "").with_options(**_options(line))
    if not isinstance(payload, dict | list):
        raise UsageError("with --app the payload must be an object of arguments by name, or an array")
    args, kwargs = ((), payload) if isinstance(payload, dict) else (tuple(payload), {})
    try:
        return task.new_job(job_id, args, kwargs)
    except TypeError as error:
        raise UsageError(str(error)) from None


def _options(line: JobLine) -> dict[str, Any]:
    """The options of a line, by the names of JobRequest."""
    given = {name.removesuffix("_s"): getattr(line, name) for name in _OPTIONS}
    if line.update is not None:
        given["update"] = Update(**msgspec.structs.asdict(line.update))
    return {name: value for name, value in given.items() if value is not None and value != {}}


_OPTIONS = tuple(name for name in JobLine.__struct_fields__ if name not in ("type", "payload", "id"))


def payload_of(values: list[str], payload: str | None, parse: Callable[[str], Any]) -> Any:
    """The payload from name=value arguments or from a JSON text."""
    if payload is None:
        return dict(_argument(word, parse) for word in values)
    if values:
        raise UsageError("give NAME=VALUE arguments or --payload, not both")
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise UsageError(f"--payload is not JSON: {error}") from None


def jobs_of(path: Path, defaults: JobLine, make: Callable[[JobLine], NewJob]) -> Iterator[NewJob]:
    """The jobs of a file, one JSON object per line; empty lines are skipped.

    Raises:
        UsageError: a line is not valid; the message has its number.
    """
    with _opened(path) as stream:
        for number, text in enumerate(stream, 1):
            if text.strip():
                try:
                    yield make(_line(text, defaults))
                except (TaskHarborError, msgspec.DecodeError, RecursionError) as error:
                    raise UsageError(f"line {number}: {error}") from None


def _line(text: bytes, defaults: JobLine) -> JobLine:
    given = msgspec.json.decode(text, type=dict[str, Any])
    line = msgspec.convert(_with(defaults, given), JobLine)
    if not line.type:
        raise UsageError("the line has no type, and no TYPE was given")
    return line


def _with(defaults: JobLine, given: dict[str, Any]) -> dict[str, Any]:
    return {**msgspec.structs.asdict(defaults), **given}


def _opened(path: Path) -> IO[bytes]:
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _argument(word: str, parse: Callable[[str], Any]) -> tuple[str, Any]:
    name, sign, value = word.partition("=")
    if not sign or not name:
        raise UsageError(f"{word!r} must look like name=value")
    return name, parse(value)
