"""Messages between a worker and its handler processes: length-prefixed MessagePack, nothing pickled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import msgspec

from taskharbor.model.job import Job
from taskharbor.model.outcome import Cancel, Failed, Outcome, Snooze, Snoozed, Succeeded, WasCancelled
from taskharbor.worker.gpus import Gpu

MAX_FRAME = 64 * 1024 * 1024


class ChildHello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message to a new process: its import path, what to import at once, its memory limit."""

    path: list[str]
    modules: list[str]
    memory: int = 0


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Run this job."""

    reference: str
    job: Job
    fence: int
    ends_in_seconds: float | None = None
    gpu: Gpu | None = None
    worker: str = ""
    recycle_on: tuple[str, ...] = ()
    max_attempts: int = 0  # of the worker's retry policy, for a handler without one


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Ask the handler to stop."""

    reason: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process can take jobs."""


class ProgressMade(msgspec.Struct, frozen=True, tag="progress"):
    """The handler reports its progress."""

    fraction: float
    text: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The outcome of the handler. `worn`: why the process should take no further job; empty if it can."""

    what: str  # succeeded, failed, snoozed, cancelled
    result: bytes | None = None
    reason: str = ""
    kind: str = ""
    trace: str | None = None
    delay: timedelta | None = None
    worn: str = ""
    errors: tuple[str, ...] = ()


ToChild = ChildHello | Start | Stop
FromChild = Ready | ProgressMade | Ended

_encoder = msgspec.msgpack.Encoder()
to_child = msgspec.msgpack.Decoder(ToChild)
from_child = msgspec.msgpack.Decoder(FromChild)


class Encoded(msgspec.Struct, frozen=True):
    """A result that another process has already encoded."""

    data: bytes | None


def frame(message: ToChild | FromChild) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(4, "big") + data


class Frames:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MAX_FRAME:
                raise ValueError(f"a message of {size} bytes cannot be ours")
            if len(self._buffer) < 4 + size:
                return
            message = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield message


def ended(outcome: Outcome, worn: str) -> Ended:
    """An outcome as a message."""
    match outcome:
        case Succeeded(result):
            return Ended("succeeded", result=result, worn=worn)
        case Snoozed(delay):
            return Ended("snoozed", delay=delay, worn=worn)
        case WasCancelled(reason):
            return Ended("cancelled", reason=reason, worn=worn)
        case Failed(reason, kind, trace, retry_after, errors):
            return Ended("failed", None, reason, kind, trace, retry_after, worn, errors)
    return Ended("failed", reason=f"ended as {type(outcome).__name__}", kind="error", worn=worn)


def value_of(message: Ended) -> Encoded | Snooze | Cancel | Failed:
    """What the handler returned, or its failure."""
    match message.what:
        case "succeeded":
            return Encoded(message.result)
        case "snoozed":
            return Snooze(message.delay or timedelta(0))
        case "cancelled":
            return Cancel(message.reason)
    return Failed(message.reason, message.kind, message.trace, message.delay, message.errors)
