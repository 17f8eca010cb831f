"""The token of the settings file, for a store that is a server."""

from pathlib import Path

import pytest

from taskharbor.drivers.http.address import address_of
from taskharbor.model.secrets import masked
from taskharbor.settings.store import store_url


@pytest.fixture(autouse=True)
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskharbor.toml").write_text('url = "https://host/jobs"\ntoken = "from/the file"\n')
    monkeypatch.chdir(tmp_path)
    for name in ("TASKHARBOR_TOKEN", "TASKHARBOR_TOKEN_FILE", "TASKHARBOR_URL", "TASKHARBOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", [None, "https://host/jobs"])
def test_it_goes_into_the_url_of_a_server(url: str | None) -> None:
    found = store_url(url)

    assert found == "https://from%2Fthe%20file@host/jobs"
    assert store_url(found) == found
    assert masked(found) == "https://***@host/jobs"


@pytest.mark.parametrize("url", ["https://mine@host", "https://user:mine@host"])
def test_a_url_with_a_token_keeps_its_own(url: str) -> None:
    assert store_url(url) == url
    assert address_of(store_url(url), {}).token == "mine"


def test_a_token_of_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_TOKEN", "of-the-environment")

    assert store_url() == "https://host/jobs"
    assert address_of(store_url()).token == "of-the-environment"


def test_other_stores_have_no_token() -> None:
    assert store_url("sqlite:///jobs.db") == "sqlite:///jobs.db"
