"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.duration import duration, optional_duration, shown
from taskharbor.model.limits import RateLimit, check_rate
from taskharbor.model.outcome import Snooze
from taskharbor.model.queue import QueueSettings, Retention, check_settings
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.speculation import Speculate
from taskharbor.model.worker_options import WorkerOptions


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (timedelta(minutes=2), 120),
        (30, 30),
        (0.25, 0.25),
        ("30", 30),
        ("30s", 30),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 2d ", 172_800),
        ("1w", 604_800),
        ("PT30S", 30),
        ("PT1H30M", 5400),
        ("P1DT12H", 129_600),
        ("pt0.5s", 0.5),
        ("P2W", 1_209_600),
        (0, 0),
    ],
)
def test_a_duration_may_be_written_in_many_ways(text, seconds):
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "30x",
        "m30",
        "5 minutes please",
        "P",
        "PT",
        "P1",
        "PT5",
        True,
        None,
        [],
        float("nan"),
        "inf",
        "1e400",
        "9" * 65,
    ],
)
def test_what_says_no_duration_is_refused_with_examples(text):
    with pytest.raises(InvalidArgument, match=r"timeout=.*examples: 30s"):
        duration(text, "timeout")


def test_a_duration_longer_than_any_calendar_is_refused():
    with pytest.raises(InvalidArgument, match="longer than any calendar"):
        duration(1e300)


def test_no_duration_stays_none():
    assert optional_duration(None) is None
    assert optional_duration("2s") == timedelta(seconds=2)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=4000)))
def test_what_is_shown_reads_back_as_the_same_duration(span):
    assert abs(duration(shown(span)) - span) <= timedelta(microseconds=1)


def test_the_shown_form_is_short():
    assert shown(timedelta(hours=1, minutes=30)) == "1h30m"
    assert shown(timedelta(milliseconds=250)) == "250ms"
    assert shown(timedelta(0)) == "0s"
    assert shown(timedelta(seconds=-5)) == "-5s"


WORKER_SPANS = ("lease", "heartbeat", "grace", "store_wait", "poll", "max_poll", "patience", "report_every")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((lambda span, name=name: WorkerOptions(**{name: span}), name) for name in WORKER_SPANS),
        (lambda span: RetryPolicy(base=span), "base"),
        (lambda span: RetryPolicy(maximum=span), "maximum"),
        (lambda span: Speculate(after=span), "after"),
        (lambda span: Snooze(span), "delay"),
        (lambda span: check_rate(RateLimit(1, span), "rate"), "rate.per"),
        (lambda span: check_settings(QueueSettings(queue="q", retention=Retention(failed=span))), "failed"),
    ],
)
@pytest.mark.parametrize("span", ["30s", 30, "soon"])
def test_objects_that_take_timedeltas_alone_say_so(make, name, span):
    with pytest.raises((ConfigurationError, InvalidArgument), match=f"{name}={span!r} must be a timedelta"):
        make(span)
