"""Assertions about what was enqueued. They may be used in blocking and in async tests alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from taskharbor.client.task import Task
from taskharbor.harbor.harbor import Harbor
from taskharbor.model.codec import Codec, Codecs, JsonCodec
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.tasks.request import as_key
from taskharbor.testing.running import jobs_in

AnyTask = Task[Any, Any]
Arguments = Mapping[str, Any] | Sequence[Any]

MAX_LISTED = 20


def assert_enqueued(
    harbor: Harbor,
    task: AnyTask | str,
    *,
    args: Arguments | None = None,
    queue: str | None = None,
    key: str | bytes | None = None,
    state: JobState | None = None,
    times: int | None = None,
) -> list[JobRecord]:
    """Assert that jobs of a task are in the store, in whatever state, and answer them.

    `args` are arguments: by name some of them, `{"user_id": 7}`; by position all of them, `(7,)`.
    With `times` there must be exactly so many, otherwise at least one.
    """
    name = task if isinstance(task, str) else task.name
    wanted = _Wanted(name=name, args=args, queue=queue, key=as_key(key, "key"), state=state)
    there = enqueued(harbor)
    found = [job for job in there if wanted.fits(job, harbor)]
    if len(found) == times or (times is None and found):
        return found
    number = "at least one job" if times is None else f"exactly {times} jobs"
    raise AssertionError(f"expected {number} {wanted}, found {len(found)}\nin the store: {_listing(there)}")


def assert_not_enqueued(
    harbor: Harbor,
    task: AnyTask | str,
    *,
    args: Arguments | None = None,
    queue: str | None = None,
    key: str | bytes | None = None,
    state: JobState | None = None,
) -> None:
    """Assert that no such job is in the store."""
    assert_enqueued(harbor, task, args=args, queue=queue, key=key, state=state, times=0)


def enqueued(harbor: Harbor) -> list[JobRecord]:
    """Every job in the store, in the order in which they were enqueued."""
    return harbor.client._block_anywhere(jobs_in, harbor.client)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a job must be like; None leaves it open."""

    name: str
    args: Arguments | None
    queue: str | None
    key: bytes | None
    state: JobState | None

    def fits(self, job: JobRecord, harbor: Harbor) -> bool:
        return (
            job.type == self.name
            and self.queue in (None, job.queue)
            and self.key in (None, job.key)
            and self.state in (None, job.state)
            and (self.args is None or self._has_arguments(job, self.args, harbor))
        )

    def _has_arguments(self, job: JobRecord, args: Arguments, harbor: Harbor) -> bool:
        """Compared in their stored form, in which a dataclass is an object and a date is a text."""
        codec = Codecs(harbor.client.codec).of(job.headers, JsonCodec())
        stored = codec.decode(job.payload)
        if not isinstance(args, Mapping):
            signature = harbor.tasks.get(self.name).signature
            return bool(stored == _as_stored(signature.payload(tuple(args), {}), codec))
        wanted = _as_stored(dict(args), codec)
        return isinstance(stored, dict) and wanted.items() <= stored.items()

    def __str__(self) -> str:
        shown = {name: getattr(self, name) for name in ("args", "queue", "key", "state")}
        extra = ", ".join(f"{name}={value!s}" for name, value in shown.items() if value is not None)
        return f"of {self.name}" + (f" with {extra}" if extra else "")


def _as_stored(value: Any, codec: Codec) -> Any:
    return codec.decode(codec.encode(value))


def _listing(jobs: list[JobRecord]) -> str:
    if not jobs:
        return "nothing"
    lines = [f"\n  {job.type} {job.payload[:200]!r} in {job.queue}, {job.state}" for job in jobs[:MAX_LISTED]]
    return "".join(lines) + (f"\n  and {len(jobs) - MAX_LISTED} more" if len(jobs) > MAX_LISTED else "")
