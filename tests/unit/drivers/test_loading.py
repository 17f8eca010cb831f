"""From a URL to a driver, and the error when there is none."""

import pytest

from taskharbor.drivers.loading import _load, connect
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError
from taskharbor.model.secrets import masked


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://[::1", "malformed"),
        ("jobs.db", "not a store URL"),
        ("sqlite:jobs.db", "not a store URL"),
        ("carrier-pigeon://loft", r"no driver for carrier-pigeon://; known: .*memory.*sqlite"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_what_to_write(url, why):
    with pytest.raises(ConfigurationError, match=why):
        connect(url)


def test_a_driver_of_another_project_is_found_by_its_scheme(monkeypatch):
    class Entry:
        name = "loft"

        def load(self):
            return MemoryDriver

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Entry()])

    assert isinstance(connect("loft://"), MemoryDriver)


def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it():
    with pytest.raises(ConfigurationError, match=r"loft:// needs pigeons.*pip install 'taskharbor\[loft\]'"):
        _load("pigeons:Driver", "loft", "loft")


@pytest.mark.parametrize(("module", "extra"), [("taskharbor.pigeons", "loft"), ("pigeons", None)])
def test_a_part_of_our_own_that_is_missing_is_no_matter_of_extras(module, extra):
    with pytest.raises(ModuleNotFoundError):
        _load(f"{module}:Driver", "loft", extra)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@host/db", "postgresql://ann:***@host/db"),
        ("redis://:secret@host", "redis://:***@host"),
        ("https://secret@host/path", "https://***@host/path"),
        ("postgresql://ann@host/db", "postgresql://ann@host/db"),
        ("http://[::1", "***"),
    ],
)
def test_secrets_of_a_url_are_not_shown(url, shown):
    assert masked(url) == shown
