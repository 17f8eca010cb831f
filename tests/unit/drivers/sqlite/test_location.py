"""URLs of the SQLite driver."""

import os

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.sqlite.location import Location, location_of
from taskharbor.errors import ConfigurationError, InvalidArgument


def test_three_slashes_are_relative_and_four_are_absolute():
    assert location_of("sqlite:///jobs.db").path == os.path.join(os.getcwd(), "jobs.db")
    assert location_of("sqlite:////var/lib/jobs.db").path == "/var/lib/jobs.db"
    assert location_of("sqlite:///with%20space/j.db").path.endswith("/with space/j.db")


def test_the_default_survives_a_power_loss():
    assert location_of("sqlite:///jobs.db").durability == "full"
    assert location_of("sqlite:///jobs.db?durability=normal").durability == "normal"


def test_the_timeout_is_in_seconds():
    assert location_of("sqlite:///jobs.db?timeout=0.25").timeout_seconds == 0.25
    assert location_of("sqlite:///jobs.db?timeout=30s").timeout_seconds == 30


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://jobs.db",
        "sqlite:///:memory:",
        "sqlite:///folder/",
        "sqlite:///jobs.db?durability=maybe",
        "sqlite:///jobs.db?timeout=soon",
        "sqlite:///jobs.db?timeout=-1",
        "sqlite:///jobs.db?timeot=5",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url):
    with pytest.raises(ConfigurationError):
        connect(url)


def test_a_namespace_is_a_name():
    with pytest.raises(InvalidArgument, match="namespace"):
        location_of("sqlite:///jobs.db?namespace=a%20b")


def test_different_namespaces_never_share_a_table():
    names = ["", "a", "A", "a.b", "a-b", "a_b", "ab", "x", "ready", "0"]

    prefixes = [Location(path="jobs.db", namespace=name).table_prefix for name in names]

    assert len({prefix.lower() for prefix in prefixes}) == len(names)
