"""Causes: failures that are alike are one, whatever host, id and line number they name."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.model.cause import MAX_TITLE, cause_of, cause_of_job, marked_message, own_frame, shape_of
from taskharbor.model.job import AttemptRecord, JobRecord
from taskharbor.model.state import JobState
from tests.unit.growth import assert_linear

AT = datetime(2026, 11, 16, tzinfo=UTC)
TRACE = """Traceback (most recent call last):
  File "/srv/shop/app/mail/tasks.py", line 12, in send_welcome
    connect(host)
  File "/srv/shop/app/mail/smtp.py", line 40, in connect
    sock = socket.create_connection((host, 25))
  File "/usr/lib/python3.12/socket.py", line 865, in create_connection
    raise exceptions[0]
  File "/srv/shop/.venv/lib/python3.12/site-packages/aio/net.py", line 3, in wait
    raise TimeoutError
TimeoutError: timed out
"""


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("TimeoutError: timed out", "TimeoutError: timed out"),
        ("NoRoute: to 10.0.0.7:25 for ana@example.com", "NoRoute: to … for …"),
        ("KeyError: '019e4b7f-1a2b-7c3d-8e4f-5a6b7c8d9e0f'", "KeyError: '…'"),
        ("E: object at 0x7f3a9c0012e0 is gone", "E: object at … is gone"),
        ("E: commit 4f2a9c1d is gone, but cab is there", "E: commit … is gone, but cab is there"),
        ("E: 'short' but 'this one is longer than 24 signs'", "E: 'short' but …"),
        ('E: "this one is longer than 24 signs"', "E: …"),
        ("E: it can't be and it really isn't, so there", "E: it can't be and it really isn't, so there"),
        ("OSError: [Errno 111] refused on port 25", "OSError: [Errno 111] refused on port …"),
        ("HTTPError: 502 Bad Gateway after 3 tries", "HTTPError: 502 Bad Gateway after … tries"),
        ("HTTPError: 502", "HTTPError: 502"),
        ("E: 10.0.0.7 is away", "E: … is away"),
        ("app.S3Error: smtp17 is away", "app.S3Error: smtp… is away"),
        ("S3Error", "S3Error"),
        ("E:  many\t spaces\nand a second line", "E: many spaces"),
        ("", ""),
    ],
)
def test_what_differs_from_job_to_job_is_blank(line: str, shape: str) -> None:
    assert shape_of(line) == shape


def test_the_own_frame_is_the_last_one_of_the_application_without_its_line() -> None:
    moved = TRACE.replace("line 40", "line 41").replace("/srv/shop", "/opt/v2")

    assert own_frame(TRACE) == own_frame(moved) == "app/mail/smtp.py in connect"


@pytest.mark.parametrize(
    ("trace", "frame"),
    [
        ("just a message", None),
        ('  File "/usr/lib/python3/dist-packages/x.py", line 1, in f', None),
        ('  File "<frozen importlib._bootstrap>", line 1, in f', None),
        ('  File "tasks.py", line 1, in <module>', "tasks.py in <module>"),
        ('  | File "C:\\\\shop\\\\app\\\\a.py", line 9, in f', "shop/app/a.py in f"),
    ],
)
def test_frames_of_every_kind_of_traceback(trace: str, frame: str | None) -> None:
    found = own_frame(trace.replace("\\\\", "\\"))

    assert found == frame


def test_a_thousand_errors_that_differ_in_host_and_id_are_one_cause() -> None:
    lines = [f"NoRoute: to mail-{n}.example.com for order {n * 7919}" for n in range(1000)]

    assert len({cause_of("send", line, TRACE, "error") for line in lines}) == 1


def test_another_type_error_or_place_is_another_cause() -> None:
    elsewhere = TRACE.replace("in connect", "in reconnect")
    found = [
        cause_of("send", "E: away", TRACE),
        cause_of("call", "E: away", TRACE),
        cause_of("send", "E: late", TRACE),
        cause_of("send", "E: away", elsewhere),
        cause_of("send", "E: away"),
    ]

    assert len({cause.id for cause in found}) == len(found)
    assert all(len(cause.id) == 16 for cause in found)


def test_an_end_that_no_handler_chose_is_grouped_by_its_kind() -> None:
    first = cause_of("send", "the lease of w-1 ran out", None, "stalled")
    second = cause_of("send", "process 4711 died of SIGKILL", "process 4711 died of SIGKILL", "stalled")
    timeout = cause_of("send", "it ran for 30 s", None, "timeout")

    assert first == second
    assert first.id != timeout.id
    assert first.frame is None
    assert timeout.title == "It ran longer than its timeout"


def test_an_error_is_the_same_cause_whether_it_is_tried_again_or_not() -> None:
    assert cause_of("send", "E: away", TRACE, "error") == cause_of("send", "E: away", TRACE, "unrecoverable")


def test_a_stored_job_has_the_cause_that_its_worker_counted() -> None:
    def attempt(outcome: str, error: str | None) -> AttemptRecord:
        return AttemptRecord(1, "w-1", AT, AT, outcome, error)

    job = JobRecord(
        id="x", seq=1, type="send", queue="mail", state=JobState.FAILED, payload=b"", created_at=AT,
        updated_at=AT, last_error="TimeoutError: timed out", failure_kind="error",
        history=(attempt("retried", "other"), attempt("failed", TRACE), attempt("released", None)),
    )  # fmt: skip

    assert cause_of_job(job) == cause_of("send", "TimeoutError: timed out", TRACE, "error")


def test_a_job_that_never_failed_has_no_cause() -> None:
    job = JobRecord(
        id="x", seq=1, type="send", queue="mail", state=JobState.CANCELLED, payload=b"", created_at=AT,
        updated_at=AT, last_error="cancelled while it waited",
    )  # fmt: skip

    assert cause_of_job(job) is None


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_text_has_a_short_cause_on_one_line(line: str, trace: str) -> None:
    cause = cause_of("send", line, trace, "error")

    assert len(cause.title) <= MAX_TITLE
    assert len(cause.title.splitlines()) <= 1
    assert cause == cause_of("send", line, trace, "error")


@pytest.mark.parametrize(
    "piece", ["a", "9", "a.", "'", '"', "' ", "a@", "1.", "[Errno ", "0x", "abcdef12-", "|", '  File "', "\n"]
)
def test_the_time_grows_in_proportion_to_the_text(piece: str) -> None:
    assert_linear(shape_of, lambda size: piece * size)
    assert_linear(own_frame, lambda size: piece * size)
    assert_linear(marked_message, lambda size: piece * size)


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        (
            "TimeoutError: timed out connecting to smtp-2.internal:25",
            "timed out connecting to `smtp-2.internal:25`",
        ),
        ("ConnectionError: connection refused", "connection refused"),
        ("HTTPError: 502 from 10.0.0.7 for ana@example.com", "502 from `10.0.0.7` for `ana@example.com`"),
        ("OSError: [Errno 111] refused by 10.0.0.7", "[Errno 111] refused by `10.0.0.7`"),
        ("KeyError: 'the one with a name that is long'", "`'the one with a name that is long'`"),
        ("Late: `order` 7\nand more", "'order' `7`"),
        ("no class", "no class"),
        ("", ""),
    ],
)
def test_a_message_marks_the_words_that_differ_from_job_to_job(line: str, marked: str) -> None:
    assert marked_message(line) == marked


@given(st.text(max_size=400))
def test_a_marked_message_has_as_many_beginnings_as_ends(line: str) -> None:
    assert marked_message(line).count("`") % 2 == 0
