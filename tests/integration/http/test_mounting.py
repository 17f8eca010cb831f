"""create_app mounts in any ASGI application, at any path."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from taskharbor import Harbor
from taskharbor.web import App, ServerConfig, create_app


def caller(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost")


async def home(_: Any) -> PlainTextResponse:
    return PlainTextResponse("home")


async def test_everything_works_below_a_path_without_a_lifespan() -> None:
    harbor = Harbor("memory://")
    host = Starlette(
        routes=[Route("/", home), Mount("/internal/tasks", create_app(harbor, local_callers_are_admin=True))]
    )
    async with caller(host) as http:
        made = await http.post("/internal/tasks/api/jobs", json={"type": "x"})
        for _ in range(2):
            await http.post("/internal/tasks/api/jobs", json={"type": "x"})
        page = await http.get("/internal/tasks/api/jobs?limit=1")
        document = (await http.get("/internal/tasks/api/openapi.json")).json()
        missing = await http.get("/internal/tasks/nothing")

        assert (await http.get("/")).text == "home"
        assert made.headers["location"].startswith("/internal/tasks/api/jobs/")
        assert (await http.get(made.headers["location"])).status_code == 200
        following = page.headers["link"].removeprefix("<").partition(">")[0]
        assert following.startswith("/internal/tasks/api/jobs?limit=1&cursor=")
        assert (await http.get(following)).status_code == 200
        assert document["servers"] == [{"url": "/internal/tasks"}]
        assert missing.json()["instance"] == "/internal/tasks/nothing"
    await harbor.aclose()


def as_litestar_mounts(app: Any, at: str) -> Any:
    """What Litestar 2.25 does to the scope of a mounted application, as it was seen to."""

    async def host(scope: Any, receive: Any, send: Any) -> None:
        below = scope["path"].removeprefix(at.rstrip("/")).strip("/")
        path = f"{below}/" if at == "/" and below else f"/{below}/" if below else "/"
        await app({**scope, "path": path, "root_path": ""}, receive, send)

    return host


@pytest.mark.parametrize("at", ["/jobs", "/a/b", "/"])
@pytest.mark.parametrize("host", ["starlette", "litestar", "litestar without a prefix"])
async def test_it_works_below_any_path_of_any_host(host: str, at: str) -> None:
    harbor, below = Harbor("memory://"), at.rstrip("/")
    prefix = at if host == "litestar" else None
    tasks = create_app(harbor, local_callers_are_admin=True, prefix=prefix)
    site = Starlette(routes=[Mount(at, tasks)]) if host == "starlette" else as_litestar_mounts(tasks, at)
    async with caller(site) as http:
        made = await http.post(f"{below}/api/jobs/", json={"type": "x"})
        for slash in ("", "/"):
            assert (await http.post(f"{below}/api/jobs{slash}", json={"type": "x"})).status_code == 201
            assert (await http.get(f"{below}/livez{slash}")).status_code == 200
            assert (await http.get(f"{below}/api/jobs/{made.json()['id']}{slash}")).status_code == 200
            assert (await http.get(f"{below}/nothing{slash}")).status_code == 404
        if host != "litestar without a prefix":
            assert (await http.get(made.headers["location"])).status_code == 200
            page = await http.get(f"{below}/api/jobs?limit=1")
            following = page.headers["link"].removeprefix("<").partition(">")[0]
            assert (await http.get(following)).status_code == 200
            document = (await http.get(f"{below}/api/openapi.json")).json()
            assert document["servers"] == [{"url": at}]
    await harbor.aclose()


async def test_a_path_that_only_begins_like_the_place_is_left_alone() -> None:
    harbor = Harbor("memory://")
    tasks = create_app(harbor, local_callers_are_admin=True)
    transport = httpx2.ASGITransport(app=tasks, root_path="/api")
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/api/livez")).status_code == 200
        assert (await http.get("/apilivez")).status_code == 404
    await harbor.aclose()


async def test_a_host_may_run_it_with_its_own_lifespan(tmp_path: Path) -> None:
    harbor = Harbor(f"sqlite:///{tmp_path / 'jobs.db'}?durability=normal")

    @harbor.cron(every="1h")
    @harbor.task
    async def hourly() -> None: ...

    tasks: App = create_app(harbor, ServerConfig(scheduler=True), local_callers_are_admin=True)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with tasks.running():
            yield

    host = Starlette(routes=[Mount("/tasks", tasks)], lifespan=lifespan)
    async with host.router.lifespan_context(host), caller(host) as http:
        while not (found := (await http.get("/tasks/api/schedules")).json()["items"]):
            pass
        assert [one["name"] for one in found] == ["hourly"]


async def test_a_socket_in_the_wrong_place_is_closed() -> None:
    app, sent = create_app(Harbor("memory://"), local_callers_are_admin=True), []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await app({"type": "websocket", "path": "/api/events", "headers": [], "root_path": ""}, receive, send)

    assert [message["type"] for message in sent] == ["websocket.close"]
