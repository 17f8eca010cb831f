"""Every record knows its job, wherever the handler runs, and no record shows a secret."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from taskharbor.events import DeadlineMissed, EventBus, WorkflowEnded
from taskharbor.harbor import Harbor
from taskharbor.middleware import running
from taskharbor.model.bonds import Family
from taskharbor.observe.logs import (
    VARIABLE,
    JobLogFilter,
    LogFormat,
    LogLevel,
    StderrHandler,
    log_attempts,
    log_in_child,
    log_to_stderr,
)

PASSWORD = "hunter2-and-more"
URL = f"postgresql://app:{PASSWORD}@db.example:5432/jobs?sslpassword={PASSWORD}"
FIELDS = ("job_id", "task", "queue", "attempt", "worker")


@pytest.fixture
def stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], str]]:
    """What was written to stderr; handlers, level and environment are put back afterwards."""
    monkeypatch.setenv(VARIABLE, "")
    root = logging.getLogger()
    level = root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, StderrHandler)]
    root.setLevel(level)


def handled(output: str) -> list[dict[str, object]]:
    return [record for line in output.splitlines() if (record := json.loads(line))["logger"] == "app"]


def test_a_record_of_any_logger_carries_the_job_that_runs(stderr: Callable[[], str]) -> None:
    harbor = Harbor("memory://")

    @harbor.task(queue="mail")
    async def in_loop() -> None:
        logging.getLogger("app").info("hello")

    @harbor.task(queue="mail")
    def in_thread() -> None:
        logging.getLogger("app").info("hello")

    log_to_stderr(LogFormat.JSON, LogLevel.INFO)
    with harbor:
        ids = {"in_loop": in_loop.enqueue().id, "in_thread": in_thread.enqueue().id}
        worker = harbor.worker(scheduler=False)
        worker.run(until_idle=True)

    records = {record["task"]: record for record in handled(stderr())}
    assert set(records) == {"in_loop", "in_thread"}
    for task, record in records.items():
        fields = [record[name] for name in FIELDS]
        assert fields == [ids[str(task)], task, "mail", 1, worker.id]


def test_outside_of_a_job_and_after_it_a_record_carries_none(stderr: Callable[[], str]) -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def send() -> None: ...

    log_to_stderr(LogFormat.JSON, LogLevel.INFO)
    with harbor:
        send.enqueue()
        harbor.worker(scheduler=False).run(until_idle=True)
    logging.getLogger("app").info("afterwards")

    [record] = handled(stderr())
    assert "job_id" not in record
    assert running.get(None) is None


@pytest.mark.parametrize("form", list(LogFormat))
def test_every_format_shows_job_and_attempt(stderr: Callable[[], str], form: LogFormat) -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def send() -> None:
        logging.getLogger("app").warning("look here")

    log_to_stderr(form, LogLevel.INFO)
    with harbor:
        job_id = send.enqueue().id
        harbor.worker(scheduler=False).run(until_idle=True)

    [line] = [line for line in stderr().splitlines() if "look here" in line]
    expected = {
        LogFormat.CONSOLE: f"look here job_id={job_id} attempt=1",
        LogFormat.JSON: f'"job_id": "{job_id}"',
        LogFormat.LOGFMT: f"job_id={job_id} task=send queue=default attempt=1 worker=",
    }
    assert expected[form] in line


def test_what_a_record_says_itself_stays(stderr: Callable[[], str]) -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def send() -> None:
        logging.getLogger("app").info("about another", extra={"taskharbor_job_id": "another"})

    log_to_stderr(LogFormat.JSON, LogLevel.INFO)
    with harbor:
        send.enqueue()
        harbor.worker(scheduler=False).run(until_idle=True)

    [record] = handled(stderr())
    assert record["job_id"] == "another"
    assert record["task"] == "send"


def test_the_filter_serves_handlers_of_somebody_else() -> None:
    harbor = Harbor("memory://")
    seen: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    @harbor.task
    async def send() -> None:
        logging.getLogger("app").warning("hello")

    handler = Handler()
    handler.addFilter(JobLogFilter())
    logging.getLogger("app").addHandler(handler)
    try:
        with harbor:
            job_id = send.enqueue().id
            harbor.worker(scheduler=False).run(until_idle=True)
    finally:
        logging.getLogger("app").removeHandler(handler)

    assert [vars(record)["taskharbor_job_id"] for record in seen] == [job_id]


def test_structlog_finds_the_job_in_its_context_and_nothing_afterwards() -> None:
    harbor = Harbor("memory://")
    seen = []

    @harbor.task(queue="mail")
    async def in_loop() -> None:
        seen.append(structlog.contextvars.get_contextvars())

    @harbor.task(queue="mail")
    def in_thread() -> None:
        seen.append(structlog.contextvars.get_contextvars())

    with harbor:
        ids = {in_loop.enqueue().id, in_thread.enqueue().id}
        harbor.worker(scheduler=False).run(until_idle=True)

    assert {record["taskharbor_job_id"] for record in seen} == ids
    assert {record["taskharbor_queue"] for record in seen} == {"mail"}
    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.parametrize("form", list(LogFormat))
def test_no_format_shows_a_password_in_a_url(stderr: Callable[[], str], form: LogFormat) -> None:
    log_to_stderr(form, LogLevel.INFO)

    logging.getLogger("app").info("connecting to %s", URL, extra={"dsn": URL})
    try:
        raise ConnectionError(f"cannot reach {URL}")
    except ConnectionError:
        logging.getLogger("app").exception("no way to %s", URL)

    output = stderr()
    assert "db.example" in output
    assert PASSWORD not in output


def test_a_process_that_is_given_a_log_format_uses_it(stderr: Callable[[], str]) -> None:
    log_to_stderr(LogFormat.LOGFMT, LogLevel.WARNING)
    settings = os.environ[VARIABLE]
    log_to_stderr(LogFormat.CONSOLE, LogLevel.DEBUG)

    log_in_child(settings)
    logging.getLogger("app").info("quiet")
    logging.getLogger("app").warning("loud")

    assert stderr().splitlines()[0].endswith("level=warning logger=app message=loud")


@pytest.mark.parametrize("how", [LogFormat.JSON, LogFormat.LOGFMT, LogFormat.CONSOLE])
def test_a_field_with_a_secret_name_is_hidden(stderr: Callable[[], str], how: LogFormat) -> None:
    log_to_stderr(how, LogLevel.INFO)
    secret = {"user_pwd": PASSWORD, "request": {"headers": [{"Cookie": PASSWORD}], "max_tokens": 512}}
    logging.getLogger("app").info("login", extra=secret)

    output = stderr()
    assert PASSWORD not in output
    assert how is LogFormat.CONSOLE or "512" in output


def test_a_record_for_people_costs_nothing_for_fields_that_they_do_not_see(
    stderr: Callable[[], str],
) -> None:
    class Untouched(dict[str, str]):
        def items(self) -> Any:
            raise AssertionError("a record of a thousand calls has a thousand of these")

    log_to_stderr(LogFormat.CONSOLE, LogLevel.INFO)

    logging.getLogger("app").info("stored", extra={"calls": [Untouched()], "job_id": "j1", "attempt": 2})

    assert stderr().rstrip().endswith("stored job_id=j1 attempt=2")


def test_a_workflow_that_is_over_and_a_missed_deadline_have_a_line(stderr: Callable[[], str]) -> None:
    events = EventBus()
    log_to_stderr(LogFormat.CONSOLE, LogLevel.INFO)
    log_attempts(events)
    about: Any = {"job_id": "j", "queue": "q", "seconds": 1.5}
    counts = Family(total=3, failed=1, cancelled=1)

    events.emit(WorkflowEnded(**about, type="order", state="failed", counts=counts))
    events.emit(WorkflowEnded(**about, type="part", state="completed", counts=counts, parent="k"))
    events.emit(DeadlineMissed(**about, type="approval"))

    failed, late = stderr().splitlines()
    assert "WARNING workflow order failed after 1.500 s (jobs: 3, failed: 1, cancelled: 1)" in failed
    assert "WARNING job approval missed its deadline after 1.500 s" in late
