"""Handlers: what a worker gets to run a type of job."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.model.codec import JsonCodec
from taskharbor.model.job import Job
from taskharbor.tasks.handler import (
    job_handler,
    load_function,
    reference_of,
    result_encoder,
)


def job(payload: bytes = b"{}") -> Job:
    return Job(
        id="01a1de65-ccf2-7a32-806d-1424c2bc77ad",
        type="t",
        queue="default",
        payload=payload,
        headers={},
        key=None,
        priority=0,
        requires="any",
        run_at=None,
        timeout=timedelta(0),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        attempts=0,
        max_attempts=0,
        stalls=0,
    )


def module_level(ctx: object, job: Job) -> bytes:
    return job.payload


def test_a_handler_of_the_plain_form_gets_context_and_job():
    one = job(b"bytes as they are")

    handler = job_handler("email.send", module_level)

    assert handler.type == "email.send"
    assert handler.bind("ctx", one) == (("ctx", one), {})
    assert handler.function("ctx", one) == b"bytes as they are"


@pytest.mark.parametrize("type_", ["", "   ", None, 7])
def test_a_blank_type_is_refused(type_):
    with pytest.raises(ConfigurationError, match="needs a type"):
        job_handler(type_, module_level)


def test_a_missing_handler_is_refused():
    with pytest.raises(ConfigurationError, match="must be callable"):
        job_handler("email.send", None)  # type: ignore[arg-type]


def test_an_unknown_way_to_run_is_refused():
    with pytest.raises(ConfigurationError, match="must be one of auto, loop, thread, process"):
        job_handler("email.send", module_level, run_in="fiber")  # type: ignore[arg-type]


def test_errors_that_end_a_process_are_kept_by_name():
    one = job_handler("train", module_level, run_in="process", recycle_on=MemoryError)
    more = job_handler("train", module_level, run_in="process", recycle_on=["AcceleratorError", OSError])

    assert one.recycle_on == ("builtins.MemoryError",)
    assert more.recycle_on == ("AcceleratorError", "builtins.OSError")


@pytest.mark.parametrize("wrong", [int, 7, " ", [ValueError, None]])
def test_what_is_no_exception_ends_no_process(wrong):
    with pytest.raises(ConfigurationError, match="recycle_on takes exceptions or their names"):
        job_handler("train", module_level, run_in="process", recycle_on=wrong)


def test_a_handler_without_a_process_has_none_to_recycle():
    with pytest.raises(ConfigurationError, match='run_in="process"'):
        job_handler("train", module_level, recycle_on="AcceleratorError")


def test_results_are_json_and_nothing_stays_nothing():
    encode = job_handler("t", module_level).encode_result

    assert encode({"a": 1}) == b'{"a":1}'
    assert encode(None) is None
    assert result_encoder(JsonCodec())(0) == b"0"


def test_a_function_of_a_module_can_be_found_again_in_another_process():
    reference = reference_of(module_level)

    assert reference == f"{__name__}:module_level"
    assert load_function(reference) is module_level


def test_a_function_that_cannot_be_imported_has_no_reference():
    def nested() -> None: ...

    assert reference_of(nested) is None
    assert reference_of(lambda: None) is None


def test_a_reference_to_nowhere_says_so():
    with pytest.raises(ConfigurationError, match="cannot import"):
        load_function("no_such_module_anywhere:x")
    with pytest.raises(ConfigurationError, match="there is no 'nothing'"):
        load_function("json:nothing")
