"""The outcome of an attempt, from what its handler returned or raised.

Whatever the handler's value or error does when it is looked at, these functions do not raise.
"""

from __future__ import annotations

import asyncio
import math
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import CodeType
from typing import Any

from taskharbor.errors import EncodeError, EventTimeout, JobFailed, Parked, Unrecoverable
from taskharbor.model.checks import MAX_HORIZON
from taskharbor.model.job import NO_TIME, FailureKind
from taskharbor.model.outcome import (
    Cancel,
    Died,
    Failed,
    Outcome,
    Snooze,
    Snoozed,
    Succeeded,
    WasCancelled,
)
from taskharbor.model.retry import error_names
from taskharbor.model.text import ERROR_LIMIT, TRACE_LIMIT, safe_text
from taskharbor.worker.executors.contract import BadPayload, HandlerDied, RemoteFailure
from taskharbor.worker.executors.wire import Encoded

DONE = Succeeded()

_HERE = os.path.dirname(__file__)
_OUR_FRAMES = (
    _HERE + os.sep,
    *(os.path.join(os.path.dirname(_HERE), name) for name in ("middleware.py", "observe/", "integrations/")),
)
_ASYNCIO = os.path.dirname(asyncio.__file__) + os.sep


def success_of(value: Any, encode_result: Callable[[Any], bytes | None], max_result: int) -> Outcome:
    """The outcome of a returned value: Snooze, Cancel, a result, or a result that cannot be stored."""
    if isinstance(value, Snooze):
        return _snoozed(value)
    if isinstance(value, Cancel):
        return WasCancelled(safe_text(str(value.reason), ERROR_LIMIT))
    try:
        result = value.data if isinstance(value, Encoded) else encode_result(value)
    except EncodeError as error:
        return Failed(
            f"the result cannot be kept: {describe(error)}",
            FailureKind.UNRECOVERABLE,
            errors=error_names(error),
        )
    except BaseException as error:  # noqa: BLE001 - user code, like the handler
        return failure_of(error)
    if result is not None and len(result) > max_result:
        return Failed(
            f"the result of {len(result):,} bytes cannot be kept: {max_result:,} are allowed; "
            "store it elsewhere and return a reference",
            FailureKind.UNRECOVERABLE,
        )
    return Succeeded(result)


def failure_of(error: BaseException) -> Outcome:
    """The outcome of a raised exception; KeyboardInterrupt and SystemExit are failures of the job too."""
    if isinstance(error, BadPayload):
        cause = error.__cause__ or error
        return Failed(describe(cause), FailureKind.INVALID_PAYLOAD, errors=error_names(cause))
    if isinstance(error, HandlerDied):
        return Died(safe_text(str(error), ERROR_LIMIT))
    if isinstance(error, RemoteFailure | Parked):
        return error.outcome  # type: ignore[return-value]
    if isinstance(error, JobFailed) and error.is_child:  # the child had its retries
        return Failed(describe(error), FailureKind.CHILD_FAILED, trace_of(error), errors=error_names(error))
    kind = FailureKind.UNRECOVERABLE if is_unrecoverable(error) else FailureKind.ERROR
    return Failed(describe(error), kind, trace_of(error), asked_delay(error), error_names(error))


def is_unrecoverable(error: BaseException) -> bool:
    """Whether it, or an error it was explicitly raised from, is Unrecoverable."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, Unrecoverable | EventTimeout):  # an event that came too late comes never
            return True
        seen.add(id(at))
        at = at.__cause__
    return False


def asked_delay(error: BaseException) -> timedelta | None:
    """The shortest wait that the error itself asks for: its `retry_after`, a timedelta or seconds."""
    try:
        asked = getattr(error, "retry_after", None)
        if isinstance(asked, int | float) and not isinstance(asked, bool) and math.isfinite(asked):
            asked = timedelta(seconds=min(float(asked), MAX_HORIZON.total_seconds()))
    except Exception:  # noqa: BLE001 - an attribute of a foreign error may do anything
        return None
    return min(asked, MAX_HORIZON) if isinstance(asked, timedelta) and asked > NO_TIME else None


def describe(error: BaseException) -> str:
    """The error in one safe, short line, whatever its __str__ does."""
    name = type(error).__name__
    if isinstance(error, MemoryError):
        return f"out of memory: {name}"
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ may raise anything
        return f"{name} (its message cannot be read)"
    return safe_text(f"{name}: {text}" if text else name, ERROR_LIMIT)


def trace_of(error: BaseException) -> str | None:
    """The end of the traceback, the part that explains the error, without the frames of the worker."""
    try:
        text = _usual_trace(error) or _any_trace(error)
    except BaseException:  # noqa: BLE001 - the same
        return None
    text = text[-TRACE_LIMIT:]
    while len(text.encode("utf-8", "replace")) > TRACE_LIMIT:
        text = text[len(text) // 8 + 1 :]
    return safe_text(text, TRACE_LIMIT)


def _any_trace(error: BaseException) -> str:
    return "".join(_formatted(error).format())


def _formatted(error: BaseException) -> traceback.TracebackException:
    trace = traceback.TracebackException.from_exception(error, limit=-_FRAMES)
    _leave_out_the_worker(trace)
    return trace


def _usual_trace(error: BaseException) -> str | None:
    """The same text for an error that came alone. The frames of a place are formatted once: jobs that fail
    mostly fail where others did, and to read the source for each costs more than to run the job.
    """
    kind = type(error)
    comes_alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    if not comes_alone or issubclass(kind, _WITH_MORE) or hasattr(error, "__notes__"):
        return None
    frames = []
    at = error.__traceback__
    while at is not None:
        frames.append((at.tb_frame.f_code, at.tb_lasti))
        at = at.tb_next
    del frames[:-_FRAMES]
    place = tuple([(id(code), instruction) for code, instruction in frames])
    known = _places.get(place)
    if known is None:
        if len(_places) >= _MOST_PLACES:
            _places.clear()
        # The code is kept with its text: no other can get its id.
        known = _places[place] = ("".join(_formatted(error).stack.format()), frames)
    name = kind.__qualname__
    if kind.__module__ not in {"__main__", "builtins"}:
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ may raise anything
        return None
    head = "Traceback (most recent call last):\n" if frames else ""
    return f"{head}{known[0]}{name}: {message}\n" if message else f"{head}{known[0]}{name}\n"


_FRAMES = 30
_MOST_PLACES = 512
_WITH_MORE = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)  # their texts say more
_places: dict[tuple[tuple[int, int], ...], tuple[str, list[tuple[CodeType, int]]]] = {}


def _leave_out_the_worker(trace: traceback.TracebackException | None) -> None:
    """Remove the frames between the worker and the handler, from the error and from its causes."""
    seen: set[int] = set()
    waiting = [trace]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        kept = [frame for frame in one.stack if not frame.filename.startswith(_OUR_FRAMES)]
        while kept and kept[0].filename.startswith(_ASYNCIO):
            del kept[0]  # how the handler's coroutine was run
        if kept:
            one.stack[:] = kept
        waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _snoozed(snooze: Snooze) -> Outcome:
    if not isinstance(snooze.delay, timedelta) or not NO_TIME <= snooze.delay <= MAX_HORIZON:
        return Failed(
            f"Snooze takes a timedelta from zero up, not {snooze.delay!r:.80}", FailureKind.UNRECOVERABLE
        )
    return Snoozed(snooze.delay)
