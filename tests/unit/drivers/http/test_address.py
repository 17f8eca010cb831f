"""The URL of a server, taken apart."""

from pathlib import Path

import pytest

from taskharbor.drivers.http.address import address_of
from taskharbor.errors import ConfigurationError
from taskharbor.model.secrets import masked


@pytest.mark.parametrize(
    ("url", "shown", "port"),
    [
        ("http://host", "http://host", 80),
        ("https://host", "https://host", 443),
        ("http://host:8000/", "http://host:8000", 8000),
        ("https://host:443/jobs/", "https://host/jobs", 443),
        ("http://host/jobs/api", "http://host/jobs", 80),
        ("http://[::1]:9000", "http://[::1]:9000", 9000),
    ],
)
def test_a_url_names_host_port_and_path(url: str, shown: str, port: int) -> None:
    address = address_of(url, {})

    assert (address.shown, address.port) == (shown, port)


@pytest.mark.parametrize("url", ["http://secret@host", "http://anything:secret@host", "http://:secret@host"])
def test_the_token_is_the_user_information_and_is_never_shown(url: str) -> None:
    address = address_of(url, {"TASKHARBOR_TOKEN": "another"})

    assert address.token == "secret"
    assert "secret" not in repr(address) + address.shown + str(address) + masked(url)


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")

    assert address_of("http://host", {"TASKHARBOR_TOKEN": "given"}).token == "given"
    assert address_of("http://host", {"TASKHARBOR_TOKEN_FILE": str(file)}).token == "from-a-file"
    assert address_of("http://host", {}).token is None


@pytest.mark.parametrize(
    ("url", "is_exposed"),
    [
        ("http://t@example.net", True),
        ("https://t@example.net", False),
        ("http://t@127.0.0.1:8", False),
        ("http://t@localhost", False),
        ("http://example.net", False),
    ],
)
def test_a_token_in_the_clear_is_noticed(url: str, is_exposed: bool) -> None:
    assert address_of(url, {}).exposes_token is is_exposed


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://host:port",
        "http://host?namespace=a",
        "http://host?timeout=0",
        "http://host?timeout=soon",
        "http://host?connections=1.5",
        "http://host?verify=no",
        "http://to%0d%0aken@host",
        "http://host/a b",
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_token(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        address_of(url.replace("http://", "http://secret@") if "@" not in url else url, {})

    assert "secret" not in str(error.value)


def test_a_token_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="TASKHARBOR_TOKEN_FILE"):
        address_of("http://host", {"TASKHARBOR_TOKEN_FILE": "/nowhere/token"})


def test_certificates_of_ones_own_must_be_there() -> None:
    with pytest.raises(ConfigurationError, match="holds no certificates"):
        address_of("https://host?ca=/nowhere.pem", {}).tls()
