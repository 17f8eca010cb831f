"""Logs: one event is one line, whatever is in it; only people get a traceback on lines of its own."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskharbor.events import AttemptWentWrong, DeadlineMissed, EventBus, WorkflowEnded
from taskharbor.harbor import Harbor
from taskharbor.observe import logs
from taskharbor.observe.logs import LogFormat, LogLevel, StderrHandler, log_attempts, log_to_stderr


@pytest.fixture
def stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], str]]:
    """What was written to stderr; handlers, level and environment are put back afterwards."""
    monkeypatch.setenv("TASKHARBOR_LOGS", "")
    root = logging.getLogger()
    level = root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, StderrHandler)]
    root.setLevel(level)


EVIL = 'two\nlines "quoted" \x1b[31mred a=b'


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.LOGFMT])
def test_one_event_is_one_line_and_steers_no_terminal(stderr: Callable[[], str], form: LogFormat) -> None:
    log_to_stderr(form, LogLevel.INFO)

    logging.getLogger("x").warning("%s", EVIL)
    try:
        raise ValueError(EVIL)
    except ValueError:
        logging.getLogger("x").exception("caught")

    lines = stderr().splitlines()
    assert len(lines) == 2
    assert "\x1b" not in "".join(lines)
    assert "ValueError" in lines[1]


def test_people_read_a_traceback_line_by_line_and_none_of_it_passes_for_an_event(
    stderr: Callable[[], str],
) -> None:
    log_to_stderr(LogFormat.CONSOLE, LogLevel.INFO)

    logging.getLogger("x").warning("%s", EVIL)
    try:
        raise ValueError(EVIL)
    except ValueError:
        logging.getLogger("x").exception("caught", extra={"job_id": "a"})

    first, caught, *trace = stderr().splitlines()
    assert "two\\nlines" in first
    assert caught.endswith("caught job_id=a")
    assert trace[0] == "    Traceback (most recent call last):"
    assert trace[-2:] == ["    ValueError: two", '    lines "quoted" red a=b']
    assert all(line.startswith("    ") for line in trace)


def test_json_keeps_the_text_and_the_fields(stderr: Callable[[], str]) -> None:
    log_to_stderr(LogFormat.JSON, LogLevel.INFO)

    logging.getLogger("x").info("%s", EVIL, extra={"job_id": "a"})

    record = json.loads(stderr())
    assert (record["message"], record["level"], record["logger"], record["job_id"]) == (
        EVIL,
        "info",
        "x",
        "a",
    )
    assert record["at"].endswith("Z")


def test_the_level_holds_and_a_second_call_replaces_the_first(stderr: Callable[[], str]) -> None:
    log_to_stderr(LogFormat.CONSOLE, LogLevel.INFO)
    log_to_stderr(LogFormat.LOGFMT, LogLevel.WARNING)

    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")

    assert [line.split()[-1] for line in stderr().splitlines()] == ["message=loud"]


def went_wrong(**fields: Any) -> AttemptWentWrong:
    defaults = {
        "job_id": "j", "type": "t", "queue": "q", "worker_id": "w", "kind": "any", "attempt": 2, "fence": 1,
        "outcome": "retried", "state": "ready", "seconds": 0.25, "error": "ValueError: boom",
        "trace": "Traceback (most recent call last):\n  File app.py\nValueError: boom\n",
    }  # fmt: skip
    return AttemptWentWrong(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("outcome", "state", "level"),
    [("retried", "ready", "warning"), ("failed", "failed", "error"), ("stalled", "failed", "error")],
)
def test_a_failure_is_logged_with_its_job_and_as_an_error_when_it_is_final(
    stderr: Callable[[], str], outcome: str, state: str, level: str
) -> None:
    bus = EventBus()
    log_to_stderr(LogFormat.JSON, LogLevel.WARNING)
    log_attempts(bus)

    bus.emit(went_wrong(outcome=outcome, state=state))

    record = json.loads(stderr())
    fields = (record["level"], record["job_id"], record["attempt"], record["outcome"])
    assert fields == (level, "j", 2, outcome)
    first, *trace = record["message"].splitlines()
    assert first == f"t {outcome} in 0.250 s: ValueError: boom"
    assert trace == ["Traceback (most recent call last):", "  File app.py", "ValueError: boom"]


def test_for_people_the_traceback_is_below_its_line(stderr: Callable[[], str]) -> None:
    bus = EventBus()
    log_to_stderr(LogFormat.CONSOLE, LogLevel.WARNING)
    log_attempts(bus)

    bus.emit(went_wrong(trace="Traceback\n  postgres://me:geheim@host\n"))

    line, *trace = stderr().splitlines()
    assert line.endswith("WARNING t retried in 0.250 s: ValueError: boom job_id=j attempt=2")
    assert trace == ["    Traceback", "      postgres://me:***@host"]


def test_a_formatter_of_ones_own_shows_the_traceback_too(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    log_attempts(bus)

    bus.emit(went_wrong())

    assert "  File app.py" in logging.Formatter().format(caplog.records[0])


def test_above_info_attempts_that_go_well_are_not_heard_of(stderr: Callable[[], str]) -> None:
    bus = EventBus()
    log_to_stderr(LogFormat.JSON, LogLevel.WARNING)
    log_attempts(bus)

    assert bus.heard == {AttemptWentWrong, WorkflowEnded, DeadlineMissed}


class StoppedClock:
    def monotonic(self) -> float:
        return 7.0


def drained(count: int, level: LogLevel) -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def send() -> None: ...

    log_to_stderr(LogFormat.JSON, level)
    log_attempts(harbor.events)
    with harbor:
        harbor.enqueue_many([send.call() for _ in range(count)])
        harbor.worker(scheduler=False).run(until_idle=True)


def test_each_attempt_that_went_well_has_a_line(stderr: Callable[[], str]) -> None:
    drained(3, LogLevel.INFO)

    records = [json.loads(line) for line in stderr().splitlines()]
    lines = [record for record in records if record["logger"] == "taskharbor.job"]
    assert {
        (line["level"], line["task"], line["queue"], line["attempt"], line["outcome"]) for line in lines
    } == {("info", "send", "default", 1, "completed")}
    assert len({line["job_id"] for line in lines}) == 3


@pytest.mark.parametrize(("level", "lines", "rest"), [(LogLevel.INFO, 5, True), (LogLevel.DEBUG, 40, False)])
def test_of_very_many_only_the_number_is_shown_unless_one_is_debugging(
    stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch, level: LogLevel, lines: int, rest: bool
) -> None:
    monkeypatch.setattr(logs, "LINES_A_SECOND", 5)
    monkeypatch.setattr(logs, "SystemClock", StoppedClock)  # all of it within one second

    drained(40, level)

    output = stderr()
    assert output.count('"outcome": "completed"') == lines
    assert ("35 more completed within a second: 35 send" in output) is rest
