"""What our protocol builds on in uvicorn: looked for at the start, not when the first request comes."""

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from taskharbor.errors import ConfigurationError
from taskharbor.web.protocol import check_uvicorn


def test_the_uvicorn_that_is_installed_has_all_of_it() -> None:
    check_uvicorn()


def test_one_without_a_method_of_ours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(HttpToolsProtocol, "on_header")

    with pytest.raises(ConfigurationError, match=r"on_header.*taskharbor\[server\]"):
        check_uvicorn()


def test_one_whose_requests_have_other_attributes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def differently(self: object) -> None:
        self.content = b""  # type: ignore[attr-defined]

    monkeypatch.setattr(RequestResponseCycle, "__init__", differently)

    with pytest.raises(ConfigurationError):
        check_uvicorn()
