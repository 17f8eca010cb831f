"""Logs: one event is one line, whatever is in it; only people get a traceback on lines of its own."""

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from taskharbor.cli.logs import LogFormat, LogLevel, StderrHandler, log_to_stderr, tell_attempts
from taskharbor.events import AttemptFinished, AttemptWentWrong, EventBus


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

    said, caught, *trace = stderr().splitlines()
    assert "two\\nlines" in said
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


@pytest.mark.parametrize(("error", "level"), [(None, "debug"), ("boom", "warning")])
def test_an_attempt_is_told_with_its_job(stderr: Callable[[], str], error: str | None, level: str) -> None:
    bus = EventBus()
    log_to_stderr(LogFormat.JSON, LogLevel.DEBUG)  # nobody watches here: success is for debugging
    tell_attempts(bus)
    event = AttemptFinished if error is None else AttemptWentWrong

    bus.emit(
        event(
            job_id="j", type="t", queue="q", worker_id="w", kind="any", attempt=2, fence=1, outcome="retried",
            state="ready", seconds=0.25, error=error,
        )
    )  # fmt: skip

    record = json.loads(stderr())
    assert (record["level"], record["job_id"], record["attempt"], record["outcome"]) == (
        level,
        "j",
        2,
        "retried",
    )


def test_without_a_terminal_and_debugging_attempts_that_go_well_are_not_heard_of(
    stderr: Callable[[], str],
) -> None:
    bus = EventBus()
    log_to_stderr(LogFormat.JSON, LogLevel.INFO)
    tell_attempts(bus)

    assert bus.heard == {AttemptWentWrong}
