"""Tokens over HTTP: admins list, create and revoke them; a secret is shown once."""

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from taskharbor import Harbor
from taskharbor.drivers.wire import Role
from taskharbor.testing.clock import SimulatedClock
from tests.integration.http.api import Api, make_token, token_file


class TokensApi(Api):
    """A server with the token of an admin."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimulatedClock()
        self.admin = make_token(token_file(folder), "admin", note="ana")
        super().__init__(Harbor("memory://", clock=self.clock), tokens=folder / "tokens.json")

    async def as_admin(self, method: str, path: str, body: Any = None) -> Any:
        return await self(method, path, body, token=self.admin)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[TokensApi]:
    found = TokensApi(tmp_path)
    yield found
    await found.aclose()


async def test_a_new_token_works_at_once_and_its_secret_is_shown_once(api: TokensApi, tmp_path: Path) -> None:
    body = {"role": "viewer", "queues": ["mail"], "expires_in_s": 60, "note": "bob"}
    answer = await api.as_admin("POST", "/api/tokens", body)
    made = answer.json()

    assert answer.status_code == 201
    assert (await api("GET", "/api/jobs", token=made["token"])).status_code == 200
    listed = (await api.as_admin("GET", "/api/tokens")).json()
    [shown] = [one for one in listed["items"] if one["id"] == made["id"]]
    assert (shown["role"], shown["queues"], shown["note"]) == ("viewer", ["mail"], "bob")
    assert "hash" not in shown
    assert listed["file"] == str(tmp_path / "tokens.json")
    assert made["token"].rpartition("_")[2] not in str(listed) + (tmp_path / "tokens.json").read_text()
    api.clock.advance(timedelta(seconds=61))
    assert (await api("GET", "/api/jobs", token=made["token"])).status_code == 401


async def test_a_revoked_token_is_refused(api: TokensApi) -> None:
    made = (await api.as_admin("POST", "/api/tokens", {"role": "operator"})).json()

    assert (await api.as_admin("DELETE", f"/api/tokens/{made['id']}")).status_code == 204
    assert (await api("GET", "/api/jobs", token=made["token"])).status_code == 401
    assert (await api.as_admin("DELETE", f"/api/tokens/{made['id']}")).status_code == 404


@pytest.mark.parametrize(
    "body", [{"role": "king"}, {"role": "viewer", "queues": []}, {"role": "viewer", "expires_in_s": 0}, {}]
)
async def test_a_token_that_makes_no_sense_is_refused(api: TokensApi, body: Any) -> None:
    assert (await api.as_admin("POST", "/api/tokens", body)).status_code == 422
    assert len((await api.as_admin("GET", "/api/tokens")).json()["items"]) == 1


@pytest.mark.parametrize("verb", ["create", "revoke"])
async def test_where_the_file_cannot_be_written_the_answer_is_the_command(
    api: TokensApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("taskharbor.web.tokens.write_secure", refuse)
    token_id = api.admin.split("_")[1]
    if verb == "create":
        answer = await api.as_admin(
            "POST", "/api/tokens", {"role": "viewer", "note": "b o b", "queues": ["a", "b"]}
        )
    else:
        answer = await api.as_admin("DELETE", f"/api/tokens/{token_id}")

    commands = {
        "create": "taskharbor tokens create --role viewer --queues a,b --note 'b o b'",
        "revoke": f"taskharbor tokens revoke {token_id}",
    }
    assert answer.status_code == 409
    assert f"`{commands[verb]} --tokens {tmp_path}/tokens.json`" in answer.json()["detail"]


async def test_without_a_token_file_the_answer_is_the_command() -> None:
    api = Api()

    answer = await api("POST", "/api/tokens", {"role": "viewer"})

    assert answer.status_code == 409
    assert "taskharbor tokens create --role viewer" in answer.json()["detail"]
    listed = (await api("GET", "/api/tokens")).json()
    assert (listed["items"], listed["file"]) == ([], None)
    assert tuple(listed["roles"]) == get_args(Role)
    await api.aclose()
