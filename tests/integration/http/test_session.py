"""Browsers sign in: a cookie for a token, what it may do, and how it ends."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from taskharbor import Harbor
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.app import create_app
from taskharbor.web.auth import Principal
from tests.integration.http.api import Api, make_token, stream, token_file

OWN = {"Sec-Fetch-Site": "same-origin"}
HTTPS = {"Origin": "https://jobs.example", "Host": "jobs.example"}


class Browser(Api):
    """A server with tokens on a simulated clock, and a browser that keeps no cookies by itself."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.clock = SimulatedClock()
        self.file = token_file(folder, self.clock)
        self.token = make_token(self.file, "operator", note="ana")
        super().__init__(Harbor("memory://", clock=self.clock), tokens=folder / "tokens.json", **config)

    async def sign_in(self, token: str | None = None, **headers: str) -> Any:
        origin = headers or {"Origin": "http://localhost"}
        body = {"token": token or self.token}
        return await self("POST", "/api/session", body, headers={**OWN, **origin})

    async def cookie(self, **headers: str) -> dict[str, str]:
        answer = await self.sign_in(**headers)
        assert answer.status_code == 204, answer.text
        return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Browser]:
    found = Browser(tmp_path)
    yield found
    await found.aclose()


async def test_a_token_buys_a_cookie_that_does_not_hold_it(api: Browser) -> None:
    answer = await api.sign_in()
    cookie = answer.headers["set-cookie"]

    assert (answer.status_code, answer.content) == (204, b"")
    assert cookie.startswith("taskharbor=")
    for part in ("; Path=/;", "; Max-Age=43200;", "; HttpOnly", "; SameSite=Strict"):
        assert part in cookie
    assert "Secure" not in cookie
    assert api.token.split("_")[2] not in cookie


async def test_by_https_the_cookie_is_secure_and_has_a_name_that_only_https_may_set(api: Browser) -> None:
    cookie = (await api.sign_in(**HTTPS)).headers["set-cookie"]

    assert cookie.startswith("__Secure-taskharbor=")
    assert cookie.endswith("; Secure")


async def test_below_a_prefix_the_cookie_is_for_that_prefix_only(api: Browser) -> None:
    site = Starlette(routes=[Mount("/a/b", api.app)])
    transport = httpx2.ASGITransport(app=site)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        origin = {**OWN, "Origin": "http://localhost"}
        answer = await http.post("/a/b/api/session", json={"token": api.token}, headers=origin)

    assert "; Path=/a/b/; " in answer.headers["set-cookie"]


async def test_plain_http_to_another_machine_gets_no_cookie(api: Browser) -> None:
    answer = await api.sign_in(Origin="http://jobs.example", Host="jobs.example")

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_plain_cookie_counts_on_this_machine_only(api: Browser) -> None:
    cookie = await api.cookie()

    assert (await api("GET", "/api/jobs", headers=cookie)).status_code == 200
    assert (await api("GET", "/api/jobs", headers={**cookie, "Host": "jobs.example"})).status_code == 401


async def test_the_session_says_who_and_what(api: Browser) -> None:
    by_cookie = (await api("GET", "/api/session", headers=await api.cookie())).json()
    by_token = (await api("GET", "/api/session", token=api.token)).json()

    assert by_cookie["name"] == api.token.split("_")[1]
    assert (by_cookie["note"], by_cookie["role"], by_cookie["queues"]) == ("ana", "operator", None)
    assert by_cookie["may"] == ["enqueue", "retry", "cancel", "delete", "configure", "schedule"]
    assert (by_cookie["read_only"], by_cookie["way"]) == (False, "token")
    assert by_cookie["server"]["driver"] == "memory"
    assert by_cookie["expires_at"] is not None
    assert by_token == {**by_cookie, "expires_at": None}


async def test_a_viewer_may_press_nothing(api: Browser) -> None:
    viewer = make_token(api.file, "viewer", ("mail",))
    api.clock.advance(timedelta(seconds=5))
    session = (await api("GET", "/api/session", token=viewer)).json()

    assert (session["may"], session["queues"]) == ([], ["mail"])


async def test_without_tokens_the_caller_is_admin_and_nobody_signs_in() -> None:
    api = Api(name="prod")
    session = (await api("GET", "/api/session")).json()

    assert (session["way"], session["role"], session["expires_at"]) == ("loopback", "admin", None)
    assert session["server"]["name"] == "prod"
    assert (await api("POST", "/api/session", {"token": "x"}, headers=OWN)).status_code == 409
    await api.aclose()


async def test_nobody_knows_a_caller_without_a_cookie(api: Browser) -> None:
    assert (await api("GET", "/api/session")).status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value[:-1] + ("0" if value[-1] != "0" else "1"),
        lambda value: value.replace(".", ".9", 1),
        lambda value: "f" * 12 + value[12:],
        lambda value: value.partition(".")[0],
        lambda value: "..",
        lambda value: "",
        lambda value: value + ".x",
        lambda value: value.replace(value.split(".")[1], "9" * 400),
        lambda value: "é" + value,
    ],
)
async def test_a_cookie_that_was_changed_is_worth_nothing(api: Browser, change: Any) -> None:
    name, _, value = (await api.cookie())["Cookie"].partition("=")
    headers: Any = {"Cookie": f"{name}={change(value)}".encode()}

    assert (await api("GET", "/api/jobs", headers=headers)).status_code == 401


async def test_a_session_lasts_twelve_hours_and_is_not_prolonged(api: Browser) -> None:
    cookie = await api.cookie()
    api.clock.advance(timedelta(hours=11, minutes=59))
    assert (await api("GET", "/api/jobs", headers=cookie)).status_code == 200

    api.clock.advance(timedelta(minutes=1))
    assert (await api("GET", "/api/jobs", headers=cookie)).status_code == 401


async def test_a_session_ends_with_its_token(api: Browser) -> None:
    soon = api.clock.now() + timedelta(hours=1)
    token = make_token(api.file, "viewer", expires_at=soon)
    api.clock.advance(timedelta(seconds=5))
    answer = await api.sign_in(token)
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert "Max-Age=35" in answer.headers["set-cookie"]

    api.clock.advance(timedelta(hours=1))
    assert (await api("GET", "/api/jobs", headers=cookie)).status_code == 401


async def test_revoking_the_token_ends_its_sessions_within_five_seconds(api: Browser) -> None:
    cookie = await api.cookie()
    api.file.revoke(api.token.split("_")[1])
    api.clock.advance(timedelta(seconds=5))

    assert (await api("GET", "/api/jobs", headers=cookie)).status_code == 401


async def test_revoking_the_token_ends_the_streams_of_its_sessions(
    api: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.web.api.events._CHECK_SECONDS", 0.02)
    async with stream(api, headers=await api.cookie()) as events:
        await events.next()
        api.file.revoke(api.token.split("_")[1])
        api.clock.advance(timedelta(seconds=5))
        await events.ended()


async def test_servers_that_share_the_file_share_sessions(api: Browser, tmp_path: Path) -> None:
    other = Api(Harbor("memory://", clock=api.clock), tokens=tmp_path / "tokens.json")

    assert (await other("GET", "/api/jobs", headers=await api.cookie())).status_code == 200
    await other.aclose()


async def test_signing_out_deletes_the_cookie(api: Browser) -> None:
    answer = await api("DELETE", "/api/session", headers={**OWN, **await api.cookie()})

    assert answer.status_code == 204
    assert answer.headers["clear-site-data"] == '"cache"'
    cookies = answer.headers.get_list("set-cookie")
    assert {one.partition("=")[0] for one in cookies} == {"taskharbor", "__Secure-taskharbor"}
    assert all("=; " in one and "; Max-Age=0; " in one for one in cookies)


async def test_five_wrong_tokens_in_a_minute_are_enough(api: Browser) -> None:
    answers = [await api.sign_in("wrong") for _ in range(6)]
    right = await api.sign_in()

    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert (right.status_code, right.headers["retry-after"]) == (429, "60")
    async with api.caller("192.0.2.9") as elsewhere:
        origin = {**OWN, "Origin": "http://localhost"}
        other = await elsewhere.post("/api/session", json={"token": api.token}, headers=origin)
    assert other.status_code == 204
    api.clock.advance(timedelta(minutes=1))
    assert (await api.sign_in()).status_code == 204


# ------------------------------------------------------------------ which page sent it


@pytest.mark.parametrize(
    "origin", [{}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "none"}]
)
async def test_a_change_by_cookie_must_come_from_our_own_page(api: Browser, origin: dict[str, str]) -> None:
    headers = {**await api.cookie(), **origin}

    assert (await api("POST", "/api/jobs", {"type": "x"}, headers=headers)).status_code == 403
    assert (await api("POST", "/api/session", {"token": api.token}, headers=origin)).status_code == 403
    assert (await api("POST", "/api/jobs", {"type": "x"}, token=api.token)).status_code == 201


@pytest.mark.parametrize("origin", [OWN, {"Origin": "http://localhost"}])
async def test_a_change_by_cookie_from_our_own_page_is_made(api: Browser, origin: dict[str, str]) -> None:
    headers = {**await api.cookie(), **origin}

    assert (await api("POST", "/api/jobs", {"type": "x"}, headers=headers)).status_code == 201


async def test_the_cookie_of_a_host_counts_like_ours() -> None:
    api = Api()
    api.app = create_app(api.harbor, authenticate=lambda _: Principal(name="ann", role="admin"))
    async with api.caller("192.0.2.7") as caller:

        async def put(headers: dict[str, str]) -> int:
            return (await caller.post("/api/jobs", json={"type": "x"}, headers=headers)).status_code

        mine = {"Cookie": "sessionid=1"}
        assert [await put(mine), await put({**mine, **OWN}), await put({})] == [403, 201, 201]
        assert (await caller.get("/api/session", headers=mine)).json()["way"] == "host"
        assert (await caller.post("/api/session", json={"token": "x"}, headers=OWN)).status_code == 409
    await api.aclose()


# ------------------------------------------------------------------ read-only


async def test_read_only_pages_change_nothing_whatever_the_role(tmp_path: Path) -> None:
    api = Browser(tmp_path, ui="read-only")
    headers = {**await api.cookie(), **OWN}

    refused = [
        await api("POST", "/api/jobs", {"type": "x"}, headers=headers),
        await api("POST", "/api/queues/mail/pause", headers=headers),
        await api("POST", "/api/driver/enqueue", {"jobs": []}, headers=headers),
    ]
    session = (await api("GET", "/api/session", headers=headers)).json()
    by_token = await api("POST", "/api/jobs", {"type": "x"}, token=api.token)

    assert [answer.status_code for answer in refused] == [403] * 3
    assert "read-only" in refused[0].json()["detail"]
    assert (session["read_only"], session["may"]) == (True, [])
    assert by_token.status_code == 201
    await api.aclose()


async def test_read_only_holds_for_pages_on_this_machine_too() -> None:
    api = Api(ui="read-only")

    assert (await api("POST", "/api/jobs", {"type": "x"}, headers=OWN)).status_code == 403
    assert (await api("POST", "/api/jobs", {"type": "x"})).status_code == 201
    await api.aclose()


async def test_signing_in_is_in_the_audit_log(api: Browser, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskharbor.audit")
    await api.sign_in()
    await asyncio.sleep(0)
    await api.sign_in("wrong")

    entries = [vars(one) for one in caplog.records if one.name == "taskharbor.audit"]
    assert [(one["operation"], one["status"]) for one in entries] == [
        ("open_session", 204),
        ("open_session", 401),
    ]
    assert entries[0]["principal"] == api.token.split("_")[1]
    assert api.token not in str(entries)
