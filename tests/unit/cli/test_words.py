"""What can be typed after a flag, and which error leads to which exit code."""

from datetime import UTC, datetime, timedelta

import pytest
import typer

from taskharbor import errors
from taskharbor.cli.columns import ago, span_text
from taskharbor.cli.exit_codes import UsageError, code_of, worst
from taskharbor.cli.parameters import (
    parse_count,
    parse_duration,
    parse_instant,
    parse_rate,
    parse_size,
    parse_states,
    parse_value,
)
from taskharbor.cli.search import parse_search
from taskharbor.model.limits import RateLimit


def test_durations_rates_sizes_and_counts() -> None:
    assert parse_duration("1h30m") == timedelta(minutes=90)
    assert parse_rate("100/1m") == RateLimit(100, timedelta(minutes=1))
    assert parse_rate("10/s") == RateLimit(10, timedelta(seconds=1))
    assert parse_rate("none") == "none"
    assert [parse_size(text) for text in ("512MiB", "2GiB", "1k", "7", "1.5kB")] == [
        512 * 1024**2,
        2 * 1024**3,
        1000,
        7,
        1500,
    ]
    assert parse_count("12") == 12


def test_an_instant_without_a_zone_means_utc() -> None:
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)

    assert parse_instant("2026-12-01T12:00") == parse_instant("2026-12-01T13:00+01:00") == noon


def test_a_value_is_json_where_it_is_json() -> None:
    assert [parse_value(text) for text in ("7", "true", '"7"', "{}", "text", "", "[1", "NaN")] == [
        7,
        True,
        "7",
        {},
        "text",
        "",
        "[1",
        "NaN",
    ]


@pytest.mark.parametrize("text", ["10", "x/1m", "/1m", "-1/1m"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_rate(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_size, "big"),
        (parse_size, "1XB"),
        (parse_count, "-1"),
        (parse_states, ""),
        (parse_duration, "soon"),
    ],
)
def test_what_is_not_understood_is_refused(parse, text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse(text)


def test_a_search_that_means_nothing_is_refused_and_marked() -> None:
    for text, mark in (("colour:red", 0), ("type:x state:", 7), ("type:x state:broken", 13)):
        with pytest.raises(UsageError) as refusal:
            parse_search(text)

        line, below = str(refusal.value).splitlines()[-2:]
        assert line.strip() == text
        assert below.index("^") == line.index(text) + mark


def test_every_error_has_its_exit_code() -> None:
    expected = {
        errors.InvalidArgument("x"): 2,
        errors.ConfigurationError("x"): 2,
        errors.EncodeError("x"): 2,
        errors.SchemaOutOfDate("x"): 1,
        errors.JobNotFound("x"): 3,
        errors.StoreRefused("x"): 4,
        errors.NotAllowedInState("x", verb="retry", state="ready"): 5,
        errors.DuplicateJob("x", "y"): 5,
        errors.RateLimited("q", timedelta(1)): 5,
        errors.DriverUnavailable("x"): 6,
        errors.StoreFull("x"): 1,
        errors.JobFailed("x", "failed"): 7,
        errors.DriverMisbehaved("x"): 1,
        TimeoutError(): 124,
        KeyboardInterrupt(): 130,
    }

    assert {error: code_of(error) for error in expected} == expected


def test_of_many_codes_the_gravest_counts() -> None:
    assert worst([]) == worst([0, 0]) == 0
    assert worst([0, 5, 3]) == 3
    assert worst([0, 5]) == 5


def test_spans_are_short() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)

    assert [span_text(seconds) for seconds in (0.21, 14.9, 61, 7300, 200_000)] == [
        "0.2s",
        "14s",
        "1m",
        "2h",
        "2d",
    ]
    assert ago("2026-04-30T23:58:00Z", now) == "2m ago"
    assert ago("2026-05-01T00:05:00Z", now) == "in 5m"
    assert ago(None, now) is None
