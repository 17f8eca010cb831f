"""The side of a handler process: what it makes of a job, of a word from the worker, and of silence.

Here it runs in the process of the test; that it is killed, and takes its family along, is shown by
tests/integration/worker/test_processes.py.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor.errors import DecodeError
from taskharbor.model.job import Job
from taskharbor.model.outcome import Cancel, Failed, Outcome, Snooze, Snoozed, Succeeded, WasCancelled
from taskharbor.model.text import ERROR_LIMIT
from taskharbor.tasks import Handler
from taskharbor.worker.attempt import JobContext
from taskharbor.worker.cancellation import Cancellation
from taskharbor.worker.executors import handler_process
from taskharbor.worker.executors.handler_process import HandlerProcess
from taskharbor.worker.executors.process_tree import LOST_CONNECTION, cause_of_death
from taskharbor.worker.executors.wire import (
    MAX_FRAME,
    ChildHello,
    Ended,
    Frames,
    ProgressMade,
    Ready,
    Start,
    Stop,
    ended,
    frame,
    from_child,
    value_of,
)

HERE = __name__
JOB = Job(
    id="01890000-0000-7000-8000-000000000001",
    type="work",
    queue="default",
    payload=b"7",
    headers={},
    key=None,
    priority=0,
    requires="any",
    run_at=None,
    timeout=timedelta(0),
    created_at=datetime(2031, 4, 5, tzinfo=UTC),
    attempts=0,
    max_attempts=0,
    stalls=0,
)


# ------------------------------------------------------------------ handlers, found by name


def answers(ctx: JobContext, job: Job) -> str:
    return f"{job.id[-1]} {ctx.fence} {ctx.worker}"


async def answers_later(ctx: JobContext, job: Job) -> str:
    return "later"


def counts_on(ctx: JobContext, job: Job) -> bool:
    return ctx.will_retry(ValueError())


def fails(ctx: JobContext, job: Job) -> None:
    raise ValueError("no paper")


def fails_because(ctx: JobContext, job: Job) -> None:
    raise ValueError("no paper") from OSError("no tree")


def fails_at_length(ctx: JobContext, job: Job) -> None:
    raise ValueError("é" * ERROR_LIMIT)


def snoozes(ctx: JobContext, job: Job) -> Snooze:
    return Snooze(timedelta(seconds=5))


def gives_up(ctx: JobContext, job: Job) -> Cancel:
    return Cancel("nobody wants it")


def moves_away(ctx: JobContext, job: Job) -> None:
    os.chdir("/")


def reports(ctx: JobContext, job: Job) -> None:
    for fraction in (0.1, 0.2, 1.0):
        ctx.progress(fraction, "so far")


def is_stopped(ctx: JobContext, job: Job) -> None:
    signal.raise_signal(signal.SIGTERM)
    raise AssertionError("it went on")


async def is_stopped_in_a_loop(ctx: JobContext, job: Job) -> None:
    signal.raise_signal(signal.SIGTERM)
    await ctx.cancelled.wait()
    raise AssertionError("it went on")


def _does_not_fit(ctx: Any, job: Job) -> Any:
    raise DecodeError("the payload does not fit", "$")


class Task:
    handler = Handler(type="work", function=fails, bind=_does_not_fit, encode_result=lambda _: None)


# ------------------------------------------------------------------ the two ends


class Pair:
    """A handler process and the worker's end of its connection."""

    def __init__(self) -> None:
        self.worker, theirs = socket.socketpair()
        self.process = HandlerProcess(theirs)
        # What the process of the tests has open is not what a handler left behind.
        self.process._threads, self.process._files = threading.active_count(), handler_process._open_files()
        self._frames = Frames()
        self._heard: list[Any] = []

    def start(self, name: str, **fields: Any) -> Ended:
        """What the process says in the end about a job for this handler."""
        signal.signal(signal.SIGTERM, self.process._stop_now)
        self.process._run(Start(f"{HERE}:{name}", JOB, 9, worker="w-1", **fields))
        while not isinstance(word := self.word(), Ended):
            self._heard.append(word)
        return word

    def word(self) -> Any:
        while True:
            for message in self._frames.feed(self.worker.recv(1)):
                return from_child.decode(message)

    @property
    def heard(self) -> list[Any]:
        return self._heard

    def close(self) -> None:
        """The worker is gone; its listener notices before the pair is gone too."""
        self.worker.close()
        for thread in threading.enumerate():
            if thread.name == "taskharbor-watch":
                thread.join(40)
                assert not thread.is_alive()
        self.process._connection.close()
        os.close(self.process._woken)
        os.close(self.process._wake)


class Gone(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    pair, folder = Pair(), Path.cwd()

    def leave(status: int) -> None:
        raise Gone(status)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    yield pair
    pair.close()
    os.chdir(folder)
    for number, handler in kept.items():
        signal.signal(number, handler)


# ------------------------------------------------------------------ jobs


def test_a_handler_is_found_by_its_name_and_its_answer_is_encoded(pair):
    assert pair.start("answers").result == b'"1 9 w-1"'
    assert pair.start("answers_later").result == b'"later"'
    assert pair.start("answers").what == "succeeded"


def test_a_handler_knows_how_often_it_may_run(pair):
    assert pair.start("counts_on", max_attempts=2).result == b"true"
    assert pair.start("counts_on", max_attempts=1).result == b"false"


def test_a_handler_is_surrounded_by_what_was_registered_for_processes(pair, monkeypatch):
    seen: list[Any] = []

    @contextmanager
    def around(ctx, job):
        seen.append((job.id, ctx.fence))
        yield
        seen.append("after")

    monkeypatch.setattr(handler_process, "around_every_process_call", [around])

    assert pair.start("answers").what == "succeeded"
    assert pair.start("fails").what == "failed"
    assert seen == [(JOB.id, 9), "after", (JOB.id, 9)]


def test_what_a_handler_raises_is_its_outcome(pair):
    outcome = pair.start("fails")

    assert (outcome.what, outcome.reason, outcome.kind) == ("failed", "ValueError: no paper", "error")
    assert outcome.trace is not None
    assert "no paper" in outcome.trace


def test_a_handler_may_ask_for_more_time_or_give_up(pair):
    assert (pair.start("snoozes").what, pair.start("snoozes").delay) == ("snoozed", timedelta(seconds=5))
    assert (pair.start("gives_up").what, pair.start("gives_up").reason) == ("cancelled", "nobody wants it")


def test_a_payload_that_does_not_fit_is_no_fault_of_the_handler(pair):
    outcome = pair.start("Task")

    assert (outcome.what, outcome.kind) == ("failed", "invalid_payload")


def test_progress_is_reported_now_and_then_and_at_the_end(pair):
    pair.start("reports")

    assert pair.heard == [ProgressMade(0.1, "so far"), ProgressMade(1.0, "so far")]


def test_the_folder_and_the_signals_are_put_back_after_every_job(pair):
    home = Path.cwd()

    pair.start("moves_away")

    assert Path.cwd() == home
    assert signal.getsignal(signal.SIGTERM) == pair.process._stop_now


@pytest.mark.parametrize(
    ("name", "reason"), [("is_stopped", "stopped by its worker"), ("is_stopped_in_a_loop", "CancelledError")]
)
def test_a_stop_signal_ends_the_handler_and_not_the_process(pair, name, reason):
    outcome = pair.start(name)

    assert outcome.what == "failed"
    assert reason in outcome.reason
    assert pair.start("answers").what == "succeeded"


def test_a_stop_signal_between_two_jobs_does_nothing(pair):
    signal.signal(signal.SIGTERM, pair.process._stop_now)

    signal.raise_signal(signal.SIGTERM)

    assert pair.start("answers").what == "succeeded"


def test_a_job_that_was_called_off_before_it_began_does_not_begin(pair):
    pair.process._received(Stop("cancelled"))

    outcome = pair.start("moves_away")

    assert (outcome.what, Path.cwd()) == ("failed", pair.process._home)
    assert "stopped by its worker" in outcome.reason


def test_a_handler_that_forked_does_not_answer_twice(pair, monkeypatch):
    monkeypatch.setattr(pair.process, "_pid", os.getpid() + 1)

    with pytest.raises(Gone):
        pair.start("answers")


@pytest.mark.parametrize("named", ["ValueError", "builtins.ValueError", "Exception"])
def test_an_error_that_recycle_on_names_ends_the_process_and_is_reported(pair, named):
    outcome = pair.start("fails", recycle_on=("KeyError", named))

    assert outcome.worn == f"recycle_on names {named.rpartition('.')[2]}"
    assert outcome.reason == f"ValueError: no paper [its process is replaced: {outcome.worn}]"


def test_what_an_error_was_raised_from_is_looked_at_too(pair):
    assert pair.start("fails_because", recycle_on=("OSError",)).worn == "recycle_on names OSError"


@pytest.mark.parametrize("name", ["fails", "answers"])
def test_other_ends_leave_the_process_as_it_is(pair, name):
    assert pair.start(name, recycle_on=("KeyError",)).worn == ""


def test_a_broken_gpu_context_ends_the_process_and_is_reported(pair, monkeypatch):
    monkeypatch.setattr(handler_process, "context_trouble", lambda has_failed: f"broken {has_failed}")

    failed, succeeded = pair.start("fails"), pair.start("answers")

    assert (failed.worn, succeeded.worn) == ("broken True", "broken False")
    assert failed.reason == "ValueError: no paper [its process is replaced: broken True]"
    assert succeeded.result is not None


def test_the_cause_is_kept_however_long_the_error_is(pair):
    outcome = pair.start("fails_at_length", recycle_on=("ValueError",))

    assert outcome.reason.endswith("[its process is replaced: recycle_on names ValueError]")
    assert len(outcome.reason.encode()) <= ERROR_LIMIT


def test_a_process_with_too_many_files_left_open_says_that_it_is_worn(pair, monkeypatch):
    pair.process._files = handler_process._open_files()
    assert not pair.start("answers").worn

    pair.process._files = handler_process._open_files() - handler_process.MAX_LEAKED_FILES - 1

    assert pair.start("answers").worn


# ------------------------------------------------------------------ the connection


def test_a_process_says_that_it_is_ready_and_takes_what_comes(pair, monkeypatch):
    taken: list[Start] = []
    limited: list[Any] = []

    def take(start: Start) -> None:
        taken.append(start)
        raise Gone

    monkeypatch.setattr(pair.process, "_run", take)
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: limited.append(limits))
    pair.worker.sendall(frame(ChildHello(list(sys.path), ["colorsys"], memory=1 << 40)))
    pair.worker.sendall(frame(Start(f"{HERE}:answers", JOB, 9)))

    with pytest.raises(Gone):
        pair.process.serve()

    assert pair.word() == Ready()
    assert limited == [(resource.RLIMIT_AS, (1 << 40, 1 << 40))]
    assert [start.job for start in taken] == [JOB]
    assert "colorsys" in sys.modules


def test_a_worker_that_is_gone_before_its_hello_ends_the_process(pair):
    pair.worker.close()

    with pytest.raises(Gone, match="0"):
        pair.process.serve()


def test_a_worker_that_is_gone_takes_the_whole_group_along(pair, monkeypatch):
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *call: killed.append(call))
    pair.worker.close()

    pair.process._watch()
    with pytest.raises(Gone):
        pair.process._next_job()

    assert killed == [(0, signal.SIGKILL)] * 2


@pytest.mark.parametrize("comes", ["with the job", "before the job is seen", "while it runs"])
def test_a_request_to_stop_is_read(pair, comes):
    process, job, stop = pair.process, frame(Start(f"{HERE}:answers", JOB, 9)), frame(Stop("shutdown"))
    signal.signal(signal.SIGTERM, process._stop_now)
    pair.worker.sendall(job + stop if comes == "with the job" else job)
    if comes == "before the job is seen":  # its bytes have been read, and the signal comes before the rest
        process._take(process._connection.recv(65536))
        pair.worker.sendall(stop)
        signal.raise_signal(signal.SIGTERM)
    process._next_job()
    if comes == "while it runs":
        pair.worker.sendall(stop)
        threading.Thread(target=process._watch, name="taskharbor-watch", daemon=True).start()
        signal.raise_signal(signal.SIGTERM)
        process._cancellation.wait_blocking(60)

    assert process._cancellation.reason == "shutdown"


def test_a_request_to_stop_is_read_if_the_handler_catches_the_signal(pair):
    pair.worker.sendall(frame(Start(f"{HERE}:answers", JOB, 9)))
    pair.process._next_job()
    threading.Thread(target=pair.process._watch, name="taskharbor-watch", daemon=True).start()
    pair.worker.sendall(frame(Stop("shutdown")))

    assert pair.process._cancellation.wait_blocking(60)


def test_a_message_that_cannot_be_ours_ends_the_process(pair):
    pair.worker.sendall((MAX_FRAME + 1).to_bytes(4, "big"))

    with pytest.raises(Gone, match=str(LOST_CONNECTION)):
        pair.process._next_job()


def test_an_answer_that_nobody_can_hear_ends_the_process(pair):
    pair.process._connection.close()

    with pytest.raises(Gone, match=str(LOST_CONNECTION)):
        pair.process._send(Ready())


# ------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("outcome", "value"),
    [
        (Snoozed(timedelta(seconds=3)), Snooze(timedelta(seconds=3))),
        (WasCancelled("enough"), Cancel("enough")),
        (Failed("broken", "error", "a trace", None), Failed("broken", "error", "a trace", None)),
    ],
)
def test_an_outcome_arrives_as_it_was_sent(outcome: Outcome, value: object) -> None:
    assert value_of(ended(outcome, worn="")) == value


def test_a_result_arrives_encoded_and_a_worn_process_says_so() -> None:
    message = ended(Succeeded(b"7"), worn="too old")

    assert message.worn
    assert value_of(message).data == b"7"  # type: ignore[union-attr]


def test_messages_come_out_whole_however_they_are_cut() -> None:
    frames, data = Frames(), frame(Ready()) + frame(ProgressMade(0.5, "half"))

    found = [message for byte in data for message in frames.feed(bytes([byte]))]

    assert [from_child.decode(message) for message in found] == [Ready(), ProgressMade(0.5, "half")]


# ------------------------------------------------------------------ how a process ended


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (LOST_CONNECTION, "it closed its connection to the worker"),
        (0, "it exited with code 0 in the middle of the job"),
        (3, "it exited with code 3 in the middle of the job"),
        (-signal.SIGSEGV, "it was killed by SIGSEGV"),
        (-250, "it was killed by signal 250"),
    ],
)
def test_an_exit_status_is_put_in_words(status, words):
    assert cause_of_death(status, 0, who="it") == words


def test_a_kill_for_memory_is_recognised_where_the_kernel_counts(monkeypatch, tmp_path):
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom_kill 4\n")
    monkeypatch.setattr(
        "taskharbor.worker.executors.process_tree._OOM_COUNTERS", [tmp_path / "none", counter]
    )

    assert "out of memory" in cause_of_death(-signal.SIGKILL, 3)
    assert "killed by SIGKILL" in cause_of_death(-signal.SIGKILL, 4)


# ------------------------------------------------------------------ being asked to stop


async def test_a_coroutine_that_asks_after_the_end_is_answered_at_once():
    cancellation = Cancellation()
    cancellation.set("shutdown")
    cancellation.set("timeout")

    assert await cancellation.wait() == "shutdown"
    assert cancellation.wait_blocking(0)
    assert cancellation
    assert repr(cancellation) == "<Cancellation shutdown>"


def test_a_thread_that_waits_in_vain_learns_that_nothing_happened():
    cancellation = Cancellation()

    assert not cancellation.wait_blocking(0)
    assert not cancellation.wait_blocking(0)
    assert not cancellation
    assert repr(cancellation) == "<Cancellation not set>"
