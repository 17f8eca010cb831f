"""Sentry: one trace from request to job, errors at their last attempt, check-ins; judged by what is sent."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk import integrations as sentry_integrations
from sentry_sdk import scope as sentry_scope
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from taskharbor import Cancel, Harbor, JobContext, JobRequest, RetryPolicy, Snooze, middleware
from taskharbor.errors import ConfigurationError, Unrecoverable
from taskharbor.integrations.sentry import TaskHarborIntegration
from taskharbor.integrations.sentry.check_ins import monitor_config
from taskharbor.model.checks import MAX_HEADER_BYTES
from taskharbor.model.schedule import RULE_HEADER, SCHEDULE_HEADER
from taskharbor.model.secrets import HIDDEN
from taskharbor.observe.logs import log_attempts
from taskharbor.testing import SimulatedClock, drain
from tests.integration.frameworks import sentry_app

AT_ONCE = RetryPolicy(base=timedelta(0), max_attempts=3)


class Kept(Transport):
    """Keeps every envelope instead of sending it."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)


class Sentry:
    """A Sentry client whose envelopes stay here, read alike in both lifecycles."""

    def __init__(self, lifecycle: str) -> None:
        self.lifecycle = lifecycle
        self.transport = Kept()

    def init(self, *more: Any, integration: TaskHarborIntegration | None = None, **options: Any) -> None:
        lifecycle: dict[str, Any] = {"trace_lifecycle": self.lifecycle}
        sentry_sdk.init(
            dsn="http://key@localhost/1",
            transport=self.transport,
            traces_sample_rate=1.0,
            default_integrations=False,
            integrations=[integration or TaskHarborIntegration(), *more],
            **lifecycle | options,
        )

    def request(self) -> Any:
        """The span of a request, as a web framework begins it."""
        if self.lifecycle == "stream":
            return sentry_sdk.traces.start_span(name="GET /", parent_span=None)
        return sentry_sdk.start_transaction(name="GET /")

    def sent(self, kind: str) -> list[Any]:
        sentry_sdk.get_client().flush()
        items = [item for envelope in self.transport.envelopes for item in envelope.items]
        return [item.payload.json for item in items if item.type == kind]

    def errors(self) -> list[Any]:
        return [event["exception"]["values"][-1] for event in self.events() if "exception" in event]

    def events(self) -> list[Any]:
        return self.sent("event")

    def check_ins(self) -> list[Any]:
        return self.sent("check_in")

    def spans(self, op: str) -> list[dict[str, Any]]:
        """Spans of this kind: name, trace, id, parent, status, data."""
        if self.lifecycle == "stream":
            streamed = [span for batch in self.sent("span") for span in batch["items"]]
            return [_of_stream(span) for span in streamed if _values(span).get("sentry.op") == op]
        transactions = self.sent("transaction")
        roots = [one["contexts"]["trace"] | {"description": one["transaction"]} for one in transactions]
        inner = [span for one in transactions for span in one["spans"]]
        return [_of_transaction(span) for span in (*roots, *inner) if span.get("op") == op]

    def span(self, op: str) -> dict[str, Any]:
        [span] = self.spans(op)
        return span


def _values(span: dict[str, Any]) -> dict[str, Any]:
    return {name: attribute["value"] for name, attribute in span["attributes"].items()}


def _of_stream(span: dict[str, Any]) -> dict[str, Any]:
    names = {
        "id": "span_id",
        "trace": "trace_id",
        "parent": "parent_span_id",
        "name": "name",
        "status": "status",
    }
    return {ours: span.get(theirs) for ours, theirs in names.items()} | {"data": _values(span)}


def _of_transaction(span: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": span["span_id"],
        "trace": span["trace_id"],
        "parent": span.get("parent_span_id"),
        "name": span["description"],
        "status": "error" if span.get("status") == "internal_error" else "ok",
        "data": span.get("data", {}),
    }


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Sentry is set up once per process and for all of it: undo that, for the tests that follow."""
    lists: list[list[Any]] = [
        middleware.around_every_enqueue,
        middleware.around_every_attempt,
        middleware.around_every_process_call,
        middleware.around_every_step,
        sentry_scope.global_event_processors,
    ]
    before = [list(one) for one in lists]
    sentry_integrations._processed_integrations.discard("taskharbor")
    with sentry_sdk.isolation_scope():
        yield
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)
    sentry_integrations._processed_integrations.discard("taskharbor")
    for one, earlier in zip(lists, before, strict=True):
        one[:] = earlier


@pytest.fixture(params=["static", "stream"])
def sentry(request: pytest.FixtureRequest) -> Sentry:
    return Sentry(request.param)


@pytest.fixture
def static() -> Sentry:
    """For what does not depend on the lifecycle."""
    return Sentry("static")


@pytest.fixture
def harbor() -> Iterator[Harbor]:
    with Harbor("memory://", retry=AT_ONCE) as harbor:
        yield harbor


def work(harbor: Harbor) -> None:
    harbor.worker(scheduler=False).run(until_idle=True)


# ------------------------------------------------------------------ traces


def test_a_request_and_its_job_are_one_trace(sentry: Sentry, harbor: Harbor) -> None:
    @harbor.task(queue="mail")
    def send(address: str) -> None: ...

    sentry.init()
    with sentry.request() as request:
        job = send.enqueue("ada@example.com")
    work(harbor)

    publish, process = sentry.span("queue.publish"), sentry.span("queue.process")
    assert publish["parent"] == request.span_id
    assert process["parent"] == publish["id"]
    assert request.trace_id == publish["trace"] == process["trace"]
    assert (publish["name"], process["name"], process["status"]) == ("send", "send", "ok")
    about = {
        "messaging.system": "taskharbor",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "messaging.message.body.size": len(job.record.payload),
    }
    assert about.items() <= publish["data"].items()
    assert about.items() <= process["data"].items()
    assert process["data"]["messaging.message.retry.count"] == 0
    assert process["data"]["messaging.message.receive.latency"] > 0
    assert process["data"]["taskharbor.outcome"] == "completed"


async def test_jobs_of_async_code_and_of_handlers_are_in_the_trace_too(sentry: Sentry) -> None:
    sentry.init()
    async with Harbor("memory://") as harbor:

        @harbor.task
        async def child() -> None: ...

        @harbor.task
        async def parent() -> None:
            await child.aenqueue()

        with sentry.request() as request:
            await asyncio.gather(parent.aenqueue(), parent.aenqueue())
        await harbor.worker(scheduler=False).arun(until_idle=True)

    published = sentry.spans("queue.publish")
    runs = {span["id"]: span["name"] for span in sentry.spans("queue.process")}
    assert sorted(runs.values()) == ["child", "child", "parent", "parent"]
    assert {span["trace"] for span in sentry.spans("queue.process")} == {request.trace_id}
    by_name = [(span["name"], runs.get(span["parent"], "request")) for span in published]
    assert sorted(by_name) == [
        ("child", "parent"),
        ("child", "parent"),
        ("parent", "request"),
        ("parent", "request"),
    ]


def test_a_batch_has_one_span_and_every_job_its_trace(sentry: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def one() -> None: ...

    @harbor.task
    def other() -> None: ...

    sentry.init()
    with sentry.request():
        harbor.enqueue_many([one.call(), other.call(), one.call()])
    work(harbor)

    publish = sentry.span("queue.publish")
    assert (publish["name"], publish["data"]["messaging.batch.message_count"]) == ("2 tasks", 3)
    assert [span["parent"] for span in sentry.spans("queue.process")] == [publish["id"]] * 3


def test_spans_of_a_workflow_carry_its_id_and_steps_are_spans(sentry: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def render(ctx: JobContext, number: int) -> str:
        return ctx.step("draw", str, number)

    sentry.init()
    with sentry.request():
        job = harbor.group([render.call(1), render.call(2)]).enqueue()
    work(harbor)

    spans = [sentry.span("queue.publish"), *sentry.spans("queue.process")]
    assert [span["data"]["messaging.message.conversation_id"] for span in spans] == [job.id] * 3
    steps = sentry.spans("queue.step")
    assert [step["name"] for step in steps] == ["draw", "draw"]
    assert {step["parent"] for step in steps} == {span["id"] for span in spans[1:]}


def test_without_a_request_each_run_is_still_traced(sentry: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def send() -> None: ...

    sentry.init()
    send.enqueue()
    work(harbor)

    assert sentry.spans("queue.publish") == []
    assert sentry.span("queue.process")["name"] == "send"


def test_under_django_there_is_no_second_publish_span(sentry: Sentry, harbor: Harbor) -> None:
    """Sentry begins a span of this kind around `Task.enqueue` of Django."""

    @harbor.task
    def send() -> None: ...

    sentry.init()
    with sentry.request():
        if sentry.lifecycle == "stream":
            span: Any = sentry_sdk.traces.start_span(
                name="send", attributes={"sentry.op": "queue.submit.django"}
            )
        else:
            span = sentry_sdk.start_span(op="queue.submit.django", name="send")
        with span:
            send.enqueue()
    work(harbor)

    assert sentry.spans("queue.publish") == []
    assert sentry.span("queue.process")["parent"] == sentry.span("queue.submit.django")["id"] == span.span_id


def test_headers_of_others_stay_and_a_trace_without_room_is_left_out(static: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def send() -> None: ...

    static.init()
    with static.request():
        ours = send.using(headers={"baggage": "user=7,sentry-x=1", "tenant": "a"}).enqueue().record.headers
        full = send.using(headers={"big": "x" * (MAX_HEADER_BYTES - 100)}).enqueue().record.headers

    assert ours["tenant"] == "a"
    assert ours["baggage"].endswith(",user=7")
    assert "sentry-trace_id=" in ours["baggage"]
    assert list(full) == ["big", "sentry-trace"]


# ------------------------------------------------------------------ errors


def test_an_error_is_reported_at_its_last_attempt_only(sentry: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def fail(address: str) -> None:
        secret = "local"  # noqa: F841 - seen in the event
        raise ConnectionError(f"no answer from {address}")

    sentry.init()
    with sentry.request() as request:
        job = fail.enqueue("ada")
    work(harbor)

    [event] = sentry.events()
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ConnectionError", "no answer from ada")
    assert error["mechanism"] == {"type": "taskharbor", "handled": False}
    assert [frame["function"] for frame in error["stacktrace"]["frames"]] == ["fail"]
    assert event["contexts"]["trace"]["trace_id"] == request.trace_id
    assert event["tags"] == {
        "taskharbor_task": "fail",
        "taskharbor_queue": "default",
        "taskharbor_job_id": job.id,
    }
    assert event["contexts"]["taskharbor"]["attempt"] == 3
    assert event["transaction"] == "fail"
    runs = sentry.spans("queue.process")
    assert [run["data"]["taskharbor.outcome"] for run in runs] == ["retried", "retried", "failed"]
    assert {run["status"] for run in runs} == {"error"}


def test_every_attempt_can_be_reported(static: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def fail() -> None:
        raise ConnectionError

    static.init(integration=TaskHarborIntegration(every_attempt=True))
    fail.enqueue()
    work(harbor)

    assert [error["mechanism"]["handled"] for error in static.errors()] == [True, True, False]


def test_what_is_not_tried_again_is_reported_at_once(static: Sentry, harbor: Harbor) -> None:
    @harbor.task(no_retry_on=KeyError)
    def look_up() -> None:
        raise KeyError("no such user")

    @harbor.task
    async def charge() -> None:
        try:
            raise OSError("card refused")
        except OSError as error:
            raise Unrecoverable("will never be paid") from error

    static.init()
    look_up.enqueue()
    charge.enqueue()
    work(harbor)

    assert sorted(error["type"] for error in static.errors()) == ["KeyError", "Unrecoverable"]
    assert len(static.events()) == 2


def test_snoozes_cancels_and_stops_are_no_errors(static: Sentry, harbor: Harbor) -> None:
    started = threading.Event()

    @harbor.task
    def later() -> Snooze:
        return Snooze(timedelta(hours=1))

    @harbor.task
    def never() -> Cancel:
        return Cancel("not needed")

    @harbor.task
    async def stuck() -> None:
        started.set()
        await asyncio.Event().wait()

    static.init()
    later.enqueue()
    never.enqueue()
    job = stuck.enqueue()
    canceller = threading.Thread(target=lambda: started.wait(30) and job.cancel())
    canceller.start()
    work(harbor)
    canceller.join()

    runs = {run["name"]: run for run in static.spans("queue.process")}
    assert {name: run["data"]["taskharbor.outcome"] for name, run in runs.items()} == {
        "later": "snoozed",
        "never": "cancelled",
        "stuck": "cancelled",
    }
    assert {run["status"] for run in runs.values()} == {"ok"}
    assert static.events() == []


def test_a_time_limit_and_a_payload_that_does_not_fit_are_errors(static: Sentry, harbor: Harbor) -> None:
    @harbor.task(timeout="0.1s", max_attempts=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    @harbor.task
    def add(number: int) -> None: ...

    static.init()
    slow.enqueue()
    harbor.client.enqueue(JobRequest(type="add", payload={"number": "one"}))
    work(harbor)

    errors = {error["type"]: error for error in static.errors()}
    assert errors.keys() == {"TimedOut", "DecodeError"}
    assert errors["TimedOut"]["value"] == "ran past its time limit of 0.1 s"
    [late] = [event for event in static.events() if event.get("fingerprint")]
    assert late["fingerprint"] == ["taskharbor", "timeout", "slow"]


def test_the_line_about_a_failed_attempt_is_no_second_event(static: Sentry, harbor: Harbor) -> None:
    @harbor.task(max_attempts=1)
    def fail(ctx: JobContext) -> None:
        ctx.log.error("my own words")
        raise ConnectionError

    static.init(LoggingIntegration(event_level=logging.WARNING))
    log_attempts(harbor.events)
    fail.enqueue()
    work(harbor)

    about = [
        event.get("logentry", {}).get("message") or event["exception"]["values"][0]["type"]
        for event in static.events()
    ]
    assert about == ["my own words", "ConnectionError"]


def test_each_attempt_has_a_scope_of_its_own(static: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def tagged() -> None:
        sentry_sdk.set_tag("mine", "yes")
        sentry_sdk.add_breadcrumb(message="of the first job")

    @harbor.task
    async def plain() -> None:
        sentry_sdk.capture_message("hello")

    static.init()
    tagged.enqueue()
    plain.enqueue()
    harbor.worker(scheduler=False, concurrency=1).run(until_idle=True)

    [event] = static.events()
    assert event["tags"]["taskharbor_task"] == "plain"
    assert "mine" not in event["tags"]
    assert event["breadcrumbs"]["values"] == []


@pytest.mark.filterwarnings("ignore:The send_default_pii option")  # old, and still in use
@pytest.mark.parametrize(
    ("options", "is_sent"),
    [
        ({}, False),
        ({"send_default_pii": True}, True),
        ({"data_collection": {"queues": True}}, True),
        ({"data_collection": {"queues": False}}, False),
    ],
)
def test_arguments_are_sent_only_if_the_program_says_so(
    static: Sentry, harbor: Harbor, options: dict[str, Any], is_sent: bool
) -> None:
    @harbor.task(max_attempts=1)
    def fail(user: str, password: str) -> None:
        raise ConnectionError

    static.init(**options)
    fail.enqueue("ada", password="swordfish")
    work(harbor)

    [event] = static.events()
    expected = {"arguments": {"user": "ada", "password": HIDDEN}}
    assert event.get("extra", {}).get("taskharbor-job") == (expected if is_sent else None)


# ------------------------------------------------------------------ processes


@pytest.mark.parametrize(
    "sentry",
    ["static", pytest.param("stream", marks=pytest.mark.more("the same in the other lifecycle"))],
    indirect=True,
)
def test_a_process_handler_is_in_the_trace_and_its_error_is_reported(
    sentry: Sentry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sentry_app.CHILD, f"{sentry.lifecycle}:{tmp_path}")
    sentry.init()
    with sentry.request() as request:
        sentry_app.divide.enqueue(0)
    work(sentry_app.harbor)

    [event] = sentry.events()
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ZeroDivisionError", "division by zero")
    [frame] = error["stacktrace"]["frames"]
    assert (frame["function"], frame["context_line"]) == ("divide", "return 1 / number")
    assert event["contexts"]["trace"]["trace_id"] == request.trace_id
    envelopes = [Envelope.deserialize(path.read_bytes()) for path in tmp_path.glob("*.envelope")]
    messages: list[Any] = [
        item.payload.json for one in envelopes for item in one.items if item.type == "event"
    ]
    runs = sentry.spans("queue.process")
    assert {one["message"] for one in messages} == {"dividing"}
    assert {one["contexts"]["trace"]["trace_id"] for one in messages} == {request.trace_id}
    if sentry.lifecycle == "static":
        parents = {one["contexts"]["trace"]["parent_span_id"] for one in messages}
        assert parents == {run["id"] for run in runs}


def test_a_process_that_dies_is_an_error_once_it_is_not_run_again(static: Sentry) -> None:
    static.init()
    sentry_app.die.enqueue()
    work(sentry_app.harbor)

    [event] = static.events()
    assert event["fingerprint"] == ["taskharbor", "died", "die"]
    assert "7" in event["exception"]["values"][0]["value"]


# ------------------------------------------------------------------ check-ins


def scheduled(rule: str, name: str = "Nightly report!") -> dict[str, str]:
    return {SCHEDULE_HEADER: name, RULE_HEADER: rule}


def test_a_job_of_a_schedule_checks_in(static: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def report(ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise ConnectionError

    static.init()
    rule = '{"cron":"0 3 * * *","timezone":"Europe/Berlin"}'
    job = report.using(headers=scheduled(rule)).enqueue()
    work(harbor)

    began, ended = static.check_ins()
    assert (began["status"], ended["status"]) == ("in_progress", "ok")
    assert began["check_in_id"] == ended["check_in_id"] == job.id.replace("-", "")
    assert began["monitor_slug"] == "nightly-report"
    assert began["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"},
        "timezone": "Europe/Berlin",
    }


def test_a_job_of_a_schedule_that_fails_checks_in_as_an_error(static: Sentry, harbor: Harbor) -> None:
    @harbor.task
    def report() -> None:
        raise ConnectionError

    static.init()
    report.using(headers=scheduled('{"every_seconds":60}')).enqueue()
    work(harbor)

    assert [one["status"] for one in static.check_ins()] == ["in_progress", "error"]


def test_a_real_schedule_reaches_its_monitor(static: Sentry) -> None:
    """By the scheduler beside a worker, to show that names and rules travel."""
    with Harbor("memory://", clock=SimulatedClock()) as harbor:

        @harbor.cron(every="1h", name="hourly")
        @harbor.task
        def tidy() -> None: ...

        static.init()
        drain(harbor, within="90m")

    began, ended = static.check_ins()
    assert (began["monitor_slug"], ended["status"]) == ("hourly", "ok")
    assert began["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "hour"}


@pytest.mark.parametrize(
    "integration",
    [
        lambda: TaskHarborIntegration(monitor_schedules=False),
        lambda: TaskHarborIntegration(exclude_schedules=["nightly*"]),
    ],
)
def test_schedules_can_be_left_out(
    static: Sentry, harbor: Harbor, integration: Callable[[], TaskHarborIntegration]
) -> None:
    @harbor.task
    def report() -> None: ...

    static.init(integration=integration())
    report.using(headers=scheduled("{}", name="nightly-report")).enqueue()
    work(harbor)

    assert static.check_ins() == []


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [
        ('{"cron":"*/5 8-17 * * 1,2"}', {"type": "crontab", "value": "*/5 8-17 * * 1,2"}),
        ('{"cron":"@daily"}', {"type": "crontab", "value": "0 0 * * *"}),
        ('{"every_seconds":172800}', {"type": "interval", "value": 2, "unit": "day"}),
        ('{"every_seconds":90}', None),
        ('{"cron":"0 0 L * *"}', None),
        ('{"cron":"0 0 * * MON"}', None),
        ('{"cron":"0 0 1 * 1"}', None),
        ('{"cron":"0 22-4 * * *"}', None),
        ("not JSON", None),
        (None, None),
    ],
)
def test_only_rules_that_sentry_reads_alike_are_sent(
    rule: str | None, schedule: dict[str, Any] | None
) -> None:
    config = monitor_config(rule)

    assert config == (None if schedule is None else {"schedule": schedule, "timezone": "UTC"})


# ------------------------------------------------------------------ on and off


def test_without_the_integration_nothing_is_added(static: Sentry, harbor: Harbor) -> None:
    @harbor.task(max_attempts=1)
    def fail() -> None:
        raise ConnectionError

    static.init()
    sentry_sdk.init(dsn="http://key@localhost/1", transport=static.transport, default_integrations=False)
    headers = fail.enqueue().record.headers
    work(harbor)

    assert headers == {}
    assert static.events() == []


def test_attempts_leave_no_scope_behind_in_their_slot(static: Sentry, harbor: Harbor) -> None:
    """Else each job would cost a new task."""
    tasks = set()

    @harbor.task
    async def note() -> None:
        tasks.add(asyncio.current_task())

    static.init()
    harbor.enqueue_many([note.call() for _ in range(5)])
    harbor.worker(scheduler=False, concurrency=1).run(until_idle=True)

    assert len(tasks) == 1


def test_a_list_of_schedules_is_a_list() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a list: \['nightly'\]"):
        TaskHarborIntegration(exclude_schedules="nightly")


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = "import sys; sys.modules['sentry_sdk'] = None; import taskharbor.integrations.sentry"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "pip install 'taskharbor[sentry]'" in done.stderr.splitlines()[-1]
