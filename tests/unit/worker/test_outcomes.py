"""What comes of errors that misbehave themselves, and of results that cannot be kept."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.errors import EncodeError
from taskharbor.model.checks import MAX_HORIZON
from taskharbor.model.job import FailureKind
from taskharbor.model.outcome import Failed, Succeeded
from taskharbor.model.text import TRACE_LIMIT, safe_text
from taskharbor.worker.outcomes import asked_delay, describe, failure_of, success_of, trace_of


class Touchy(Exception):
    """Every look at it raises."""

    @property
    def retry_after(self) -> object:
        raise RuntimeError("do not ask")

    def __str__(self) -> str:
        raise RuntimeError("do not print")


class Patient(Exception):
    def __init__(self, retry_after: object) -> None:
        super().__init__()
        self.retry_after = retry_after


def test_an_error_that_cannot_be_read_is_still_reported():
    error = Touchy()

    assert describe(error) == "Touchy (its message cannot be read)"
    assert asked_delay(error) is None


@pytest.mark.parametrize(
    ("asked", "delay"),
    [
        (3, timedelta(seconds=3)),
        (0.5, timedelta(seconds=0.5)),
        (timedelta(seconds=7), timedelta(seconds=7)),
        (1e12, MAX_HORIZON),
        (timedelta(days=99999), MAX_HORIZON),
        (0, None),
        (-1, None),
        (timedelta(0), None),
        (True, None),
        (float("inf"), None),
        ("soon", None),
        (None, None),
    ],
)
def test_an_error_may_ask_for_a_wait(asked, delay):
    assert asked_delay(Patient(asked)) == delay


class Odd(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Local(Exception):
    """Of a module that is no builtin."""


def noted() -> Exception:
    error = ValueError("with a note")
    error.add_note("a note")
    return error


def raised(error: BaseException, depth: int = 0) -> BaseException:
    try:
        if depth:
            return raised(error, depth - 1)
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever is asked for
        return caught


def chained(hidden: bool) -> BaseException:
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            if hidden:
                raise ValueError("second") from None
            raise ValueError("second") from first
    except ValueError as second:
        return second


@pytest.mark.parametrize(
    "error",
    [
        *(raised(ValueError(text)) for text in ("", "one", "two\nlines", "ü \ud800")),
        raised(ValueError("deep"), 3),
        raised(ValueError("deeper"), 50),
        *(raised(one) for one in (Local("x"), Local(), Odd(), KeyError("k"), OSError(2, "gone"), noted())),
        *(raised(one) for one in (SyntaxError("bad"), NameError("nam"), KeyboardInterrupt(), SystemExit(3))),
        raised(ExceptionGroup("two", [ValueError(1), KeyError(2)])),
        *(chained(True), chained(False)),
        ValueError("never raised"),
    ],
    ids=repr,
)
def test_a_trace_reads_as_python_writes_it(error):
    whole = "".join(traceback.format_exception(error, limit=-30))

    assert [trace_of(error), trace_of(error)] == [safe_text(whole, TRACE_LIMIT)] * 2


def test_two_errors_of_one_place_keep_their_own_words():
    first, second = (trace_of(raised(ValueError(text))) for text in ("the first", "the second"))

    assert first is not None
    assert second == first.replace("the first", "the second")


def test_a_trace_that_cannot_be_written_is_left_out(monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise RecursionError

    monkeypatch.setattr("traceback.TracebackException.from_exception", broken)

    assert trace_of(ImportError()) is None


def test_a_result_that_cannot_be_kept_fails_for_good():
    def refuse(_: object) -> bytes:
        raise EncodeError("no such type")

    def burst(_: object) -> bytes:
        raise ValueError("odd")

    refused, broken, long = (
        success_of(1, refuse, 9),
        success_of(1, burst, 9),
        success_of(1, lambda _: b"x" * 10, 9),
    )

    assert isinstance(refused, Failed)
    assert refused.failure_kind is FailureKind.UNRECOVERABLE
    assert isinstance(broken, Failed)
    assert broken.failure_kind is FailureKind.ERROR
    assert isinstance(long, Failed)
    assert long.failure_kind is FailureKind.UNRECOVERABLE
    assert success_of(1, lambda _: b"x" * 9, 9) == Succeeded(b"x" * 9)


class Shop:
    class Closed(Exception):
        """An error whose name is nested."""


def test_a_failure_names_the_class_of_its_error():
    classes = [getattr(failure_of(error), "error_class", "") for error in (Shop.Closed("no"), ValueError())]

    assert classes == [f"{__name__}.Shop.Closed", "builtins.ValueError"]
    assert Failed("no exception").error_class is None
