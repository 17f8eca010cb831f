"""Instants and spans as whole microseconds."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from taskharbor.model.clock import instant, micros, span_micros


@pytest.mark.parametrize(
    "at",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, microsecond=1, tzinfo=UTC),
        datetime(2031, 4, 5, 6, 7, 8, 999_999, tzinfo=UTC),
        datetime(2199, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
)
def test_an_instant_survives_the_way_to_microseconds_and_back(at):
    assert instant(micros(at)) == at


def test_microseconds_do_not_depend_on_the_time_zone():
    at = datetime(2031, 4, 5, 6, tzinfo=UTC)

    assert micros(at.astimezone(timezone(timedelta(hours=5, minutes=45)))) == micros(at)


def test_the_last_accepted_instant_is_exact_as_a_double():
    assert micros(datetime(2200, 1, 1, tzinfo=UTC)) < 2**53


@pytest.mark.parametrize(("span", "us"), [(timedelta(days=3660), 316_224_000_000_000), (timedelta(0), 0)])
def test_a_span_is_exact(span, us):
    assert span_micros(span) == us
    assert span_micros(span + timedelta(microseconds=1)) == us + 1
