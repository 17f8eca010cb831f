"""The recorder: writes down every call that goes through a driver, and every run of a handler."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.relay import Relay
from taskharbor.model.clock import Clock, SystemClock, micros
from taskharbor.model.job import Job, NewJob
from taskharbor.testing.history.calls import answers, questions, refusals
from taskharbor.testing.history.events import HistoryEvent, event_line

Write = Callable[[HistoryEvent], None]


class Recorder:
    """Where one process records its calls and their answers.

    `write` takes the events: a list's `append`, or `into_file(path)`.
    """

    def __init__(self, process: str, write: Write, clock: Clock | None = None) -> None:
        self.process = process
        self._write = write
        self._clock = clock or SystemClock()
        self._calls = 0

    def asked(self, events: list[HistoryEvent]) -> list[HistoryEvent]:
        """Write the questions of one call down, under a number of their own."""
        self._calls += 1
        return [self.note(event, call=self._calls) for event in events]

    def note(self, event: HistoryEvent, **changes: Any) -> HistoryEvent:
        """Write one event down, with the time and the name of this process."""
        t = round(self._clock.monotonic() * 1_000_000)
        event = replace(event, process=self.process, t=t, **changes)
        self._write(event)
        return event

    def mark(self, op: str, process: str = "", result: str = "") -> None:
        """A word of the test itself: `fault` done to a process, `heal`, `drained`."""
        t = round(self._clock.monotonic() * 1_000_000)
        self._write(HistoryEvent(kind="ok", op=op, process=process or self.process, t=t, result=result))


class Recorded(Relay):
    """A driver whose every call is written down."""

    def __init__(self, inner: Driver, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    def another(self) -> Driver:
        return Recorded(self.inner.another(), self._recorder)

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        asked = self._recorder.asked(questions(verb, args))
        at = None if now is None else micros(now)
        try:
            answer = await super().carry(verb, args, now)
        except BaseException as error:
            self._note_all(refusals(asked, error, at))
            raise
        self._note_all(answers(verb, asked, answer, at))
        return answer

    def carry_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> Any:
        asked = self._recorder.asked(questions("enqueue", (jobs,)))
        at = None if now is None else micros(now)
        try:
            answer = super().carry_blocking(jobs, now, tx)
        except BaseException as error:
            self._note_all(refusals(asked, error, at))
            raise
        self._note_all(answers("enqueue", asked, answer, at))
        return answer

    def _note_all(self, events: list[HistoryEvent]) -> None:
        for event in events:
            self._recorder.note(event)


def recorded_runs(recorder: Recorder) -> Callable[..., Any]:
    """Middleware for `worker.use`: writes down when a handler starts, and how it ends.

    `ok`: it returned. `fail`: it raised. `unknown`: it was stopped from outside.
    """

    async def note(ctx: Any, job: Job, call_next: Callable[..., Any]) -> Any:
        run = HistoryEvent(kind="invoke", op="run", job=job.id, version=ctx.fence)
        [run] = recorder.asked([run])
        try:
            result = await call_next(ctx, job)
        except Exception as error:
            recorder.note(run, kind="fail", result=type(error).__name__)
            raise
        except BaseException as error:
            recorder.note(run, kind="unknown", result=type(error).__name__)
            raise
        recorder.note(run, kind="ok")
        return result

    return note


def into_file(path: Path) -> Write:
    """Append to a file, one whole line per write: what was written survives a kill of the process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    return lambda event: _write_all(descriptor, event_line(event))


def _write_all(descriptor: int, line: bytes) -> None:
    os.write(descriptor, line)
