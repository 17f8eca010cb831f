"""Task definitions: a name, a function, and the options of its jobs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.client.task import Task
from taskharbor.errors import ConfigurationError, InvalidArgument, PayloadError
from taskharbor.model.codec import CODEC_HEADER, JsonCodec, MsgpackCodec
from taskharbor.model.job import NewJob, Update
from taskharbor.model.outcome import Cancel, Snooze
from taskharbor.model.speculation import Speculate, rule_of
from taskharbor.tasks.handler import load_function
from taskharbor.tasks.request import JobRequest
from taskharbor.tasks.signature import result_type
from tests.unit.tasks.test_handler import job

ID = "01a1de65-ccf2-7a32-806d-1424c2bc77ad"


def greet(name: str) -> str:
    """Say hello."""
    return f"hello, {name}"


def definition(function=greet, **options) -> Task[..., str]:
    codec = options.pop("codec", JsonCodec())
    return Task(function, JobRequest(type="greet", **options), codec=codec)


def test_a_job_of_a_task_with_second_runs_carries_the_rule_unless_it_is_keyed():
    rule = Speculate(after=timedelta(seconds=9), factor=2.0)
    task: Task[..., str] = Task(greet, JobRequest(type="greet"), speculate=rule)

    with_more = task.with_options(headers={"trace": "abc"})
    keyed = with_more.with_options(key="user/7")

    assert rule_of(task.new_job(ID, ("Ada",), {}).headers) == rule
    assert rule_of(dict(task.call("Ada").headers or {})) == rule
    assert rule_of(with_more.new_job(ID, ("Ada",), {}).headers) == rule
    assert with_more.new_job(ID, ("Ada",), {}).headers["trace"] == "abc"
    assert keyed.new_job(ID, ("Ada",), {}).headers == {"trace": "abc"}


def test_a_job_of_a_task_carries_its_options_and_arguments():
    task = definition(
        queue="mail",
        priority=5,
        requires="gpu",
        timeout="30s",
        max_attempts=5,
        min_backoff=2,
        max_backoff="1m",
        key="user/7",
        update=Update(run_at="if_later"),
        idempotency_key="once",
        headers={"trace": "abc"},
        delay="5m",
    )

    assert task.new_job(ID, ("Ada",), {}) == NewJob(
        id=ID,
        type="greet",
        queue="mail",
        payload=b'{"name":"Ada"}',
        priority=5,
        requires="gpu",
        timeout=timedelta(seconds=30),
        max_attempts=5,
        max_stalls=3,
        min_backoff=timedelta(seconds=2),
        max_backoff=timedelta(minutes=1),
        key=b"user/7",
        update=Update(run_at="if_later"),
        idempotency_key=b"once",
        headers={"trace": "abc"},
        delay=timedelta(minutes=5),
    )


def test_a_task_looks_like_its_function():
    task = definition()

    assert (task.__name__, task.__doc__, task.__wrapped__) == ("greet", "Say hello.", greet)  # type: ignore[attr-defined]
    assert repr(task) == "<task greet of queue default>"


def test_a_call_is_a_request_that_can_be_enqueued_later():
    request = definition(queue="mail").call("Ada")

    assert (request.type, request.queue, request.payload) == ("greet", "mail", {"name": "Ada"})


def test_a_call_with_wrong_arguments_is_refused_at_once():
    with pytest.raises(PayloadError, match="argument 'name'"):
        definition().call(7)
    with pytest.raises(TypeError, match="missing a required argument"):
        definition().call()


def test_other_options_make_another_task_and_leave_the_first_alone():
    task = definition(queue="mail", priority=1)

    changed = task.with_options(priority=9, run_at=datetime(2030, 1, 1, tzinfo=UTC))

    assert (task.options.priority, task.options.run_at) == (1, None)
    assert changed.options.priority == 9
    assert changed.queue == "mail"
    assert changed.function is greet


def test_an_option_no_job_has_is_refused():
    with pytest.raises(InvalidArgument, match="colour"):
        definition().with_options(colour="red")


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "no spaces"},
        {"priority": 101},
        {"timeout": -1},
        {"max_attempts": -1},
        {"timeout": "soon"},
        {"update": Update()},
        {"min_backoff": "1m", "max_backoff": "1s"},
        {"key": 7},
    ],
)
def test_options_that_can_never_be_stored_are_refused_when_the_task_is_made(options):
    with pytest.raises(InvalidArgument):
        definition(**options)


def test_a_task_is_made_from_a_function():
    with pytest.raises(ConfigurationError, match="made from a function"):
        definition(function=dict)
    with pytest.raises(ConfigurationError, match="made from a function"):
        definition(function=7)


def test_its_handler_decodes_what_its_jobs_carry():
    handler = definition().handler

    args, kwargs = handler.bind(None, job(b'{"name":"Ada"}'))

    assert handler.encode_result(handler.function(*args, **kwargs)) == b'"hello, Ada"'


def test_a_codec_of_its_own_is_named_in_the_headers_and_used_for_both_ways():
    codec = MsgpackCodec()
    task = definition(codec=codec, headers={"a": "b"})

    new = task.new_job(ID, ("Ada",), {})
    stored = msgspec.structs.replace(job(new.payload), headers=new.headers)

    assert new.headers == {"a": "b", CODEC_HEADER: "msgpack"}
    assert codec.decode(new.payload) == {"name": "Ada"}
    assert task.handler.bind(None, stored) == ((), {"name": "Ada"})
    assert task.read_result(task.handler.encode_result("hello") or b"") == "hello"


def test_jobs_written_before_the_codec_was_changed_are_still_read():
    old = definition().new_job(ID, ("Ada",), {})

    changed = definition(codec=MsgpackCodec())

    assert changed.handler.bind(None, job(old.payload)) == ((), {"name": "Ada"})


def test_annotations_that_name_something_further_down_are_read_at_first_use():
    later = type(sys)("later")
    exec(
        "from __future__ import annotations\ndef function(x: Later) -> Later: return x\n",
        later.__dict__,
    )
    task = definition(function=later.function)
    with pytest.raises(ConfigurationError, match="names 'Later'"):
        task.new_job(ID, (1,), {})

    setattr(later, "Later", int)  # noqa: B010 - the module is made up

    assert task.new_job(ID, (1,), {}).payload == b'{"x":1}'
    with pytest.raises(PayloadError, match="argument 'x'"):
        task.new_job(ID, ("one",), {})


DECORATED = definition(function=greet)


def test_the_function_behind_a_task_can_be_imported_in_another_process(monkeypatch):
    plain = greet
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "greet", DECORATED)  # what decorating does

    assert DECORATED.handler.reference == f"{__name__}:greet"
    assert load_function(f"{__name__}:greet") is plain


def test_wishes_are_no_part_of_a_result():
    assert result_type(str | Snooze) is str
    assert result_type(str | None | Cancel) == str | None
    assert result_type(list[int]) == list[int]
    assert result_type(Snooze | Cancel) is Any
    assert result_type(Snooze) is Any


def test_a_return_annotation_that_no_codec_can_check_is_taken_as_it_comes():
    class One: ...

    class Other: ...

    assert result_type(One | Other) is Any


def test_results_come_back_by_the_return_annotation():
    def when() -> datetime:
        raise NotImplementedError

    task: Task[[], datetime] = Task(when, JobRequest(type="when"))
    stored = task.handler.encode_result(datetime(2030, 1, 1, tzinfo=UTC))

    assert task.read_result(stored or b"") == datetime(2030, 1, 1, tzinfo=UTC)
