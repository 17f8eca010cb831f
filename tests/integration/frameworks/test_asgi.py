"""FastAPI, Starlette, Litestar: endpoints, mounted API and dashboard, embedded worker, and how they stop."""

import asyncio
import re
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from taskharbor import Harbor, WorkerOptions
from taskharbor.errors import ConfigurationError, DriverUnavailable
from taskharbor.integrations.asgi import lifespan, use
from taskharbor.web import create_app
from tests.integration.frameworks.sites import Site, eventually, uvicorn

GUIDE = Path(__file__).parents[3] / "docs/guides/fastapi.md"

COMMON = """
import asyncio
from taskharbor import Harbor, JobContext, WorkerOptions
from taskharbor.integrations.asgi import lifespan, use
from taskharbor.web import Principal, create_app

harbor = Harbor("sqlite:///jobs.db?durability=normal")

@harbor.task
async def welcome(name: str) -> str:
    return f"welcome, {name}"

def users(connection):
    user = connection.headers.get("x-user")
    if user is None:
        return None
    return Principal(name=user, role="admin") if user == "staff" else Principal.NO_ACCESS
"""

FASTAPI = """
from fastapi import FastAPI

jobs = create_app(harbor, authenticate=users)
app = FastAPI(lifespan=lifespan(harbor, server=jobs, worker=True))

@app.post("/welcome/async")
async def from_async_code(name: str) -> str:
    return (await welcome.aenqueue(name)).id

@app.post("/welcome/plain")
def from_plain_code(name: str) -> str:
    return welcome.enqueue(name).id

app.mount("/a/b", jobs)
app.mount("/", jobs)
"""

STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

jobs = create_app(harbor, authenticate=users)

async def from_async_code(request):
    return JSONResponse((await welcome.aenqueue(request.query_params["name"])).id)

def from_plain_code(request):
    return JSONResponse(welcome.enqueue(request.query_params["name"]).id)

app = Starlette(
    lifespan=lifespan(harbor, server=jobs, worker=True),
    routes=[
        Route("/welcome/async", from_async_code, methods=["POST"]),
        Route("/welcome/plain", from_plain_code, methods=["POST"]),
        Mount("/jobs", jobs),
    ],
)
"""

LITESTAR = """
from litestar import Litestar, asgi, post
from litestar.di import Provide

jobs = create_app(harbor, authenticate=users, prefix="/jobs")

@post("/welcome/async", status_code=200)
async def from_async_code(name: str, queue: Harbor) -> str:
    assert queue is harbor
    return (await welcome.aenqueue(name)).id

@post("/welcome/plain", status_code=200, sync_to_thread=True)
def from_plain_code(name: str) -> str:
    return welcome.enqueue(name).id

app = Litestar(
    route_handlers=[from_async_code, from_plain_code, asgi("/jobs", is_mount=True, copy_scope=True)(jobs)],
    dependencies={"queue": Provide(use(harbor))},
    lifespan=[lifespan(harbor, server=jobs, worker=True)],
)
"""
SITES = {
    "fastapi": (FASTAPI, ["/a/b", ""]),
    "starlette": (STARLETTE, ["/jobs"]),
    "litestar": (LITESTAR, ["/jobs"]),
}
STAFF = {"X-User": "staff"}
JOB = {"type": "welcome", "payload": {"name": "ann"}}


def write(folder: Path, code: str) -> None:
    (folder / "site_app.py").write_text(COMMON + textwrap.dedent(code))


LONGER = pytest.mark.more("the same over another framework, in a process of its own")


@pytest.mark.parametrize("host", ["fastapi", "litestar", pytest.param("starlette", marks=LONGER)])
def test_a_site_runs_and_shows_its_jobs_and_stops_with_an_open_stream(host: str, tmp_path: Path) -> None:
    code, places = SITES[host]
    write(tmp_path, code)
    with uvicorn(tmp_path) as site:
        for path in ("async", "plain"):
            made = site.http.post(f"/welcome/{path}", params={"name": path}).text.strip('"')
            for place in places:
                result = f"{place}/api/jobs/{made}/result?wait_s=30"
                assert site.http.get(result, headers=STAFF).json()["result"] == f"welcome, {path}"
        for place in places:
            assert_behind_its_users(site, place)
        with site.http.stream("GET", f"{places[0]}/api/events", headers=STAFF) as stream:
            next(stream.iter_lines())
            assert site.terminate(3) in (0, -15), site.text
        assert "Traceback" not in site.text


def assert_behind_its_users(site: Site, place: str) -> None:
    http = site.http
    answers = [http.get(f"{place}/api/jobs", headers=who) for who in ({}, {"X-User": "ann"}, STAFF)]
    assert [answer.status_code for answer in answers] == [401, 403, 200]
    made = http.post(f"{place}/api/jobs", json=JOB, headers=STAFF)
    assert made.headers["location"].startswith(f"{place}/api/jobs/")
    assert http.get(made.headers["location"], headers=STAFF).status_code == 200
    page = http.get(f"{place}/", headers=STAFF, follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, f"{place}/ui/")
    assert "<title>TaskHarbor" in page.text
    other_site = {**STAFF, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert http.post(f"{place}/api/jobs", json=JOB, headers=other_site).status_code == 403


@LONGER
def test_links_are_right_behind_a_proxy_that_cuts_off_a_path(tmp_path: Path) -> None:
    write(tmp_path, FASTAPI)
    with uvicorn(tmp_path, "--root-path", "/proxy") as site:
        made = site.http.post("/a/b/api/jobs", json=JOB, headers=STAFF)
        document = site.http.get("/a/b/api/openapi.json", headers=STAFF).json()

    assert made.headers["location"].startswith("/proxy/a/b/api/jobs/")
    assert document["servers"] == [{"url": "/proxy/a/b"}]


def test_the_first_application_of_the_guide_runs_a_job_and_shows_it(tmp_path: Path) -> None:
    [first, *_] = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "site_app.py").write_text(first)
    with uvicorn(tmp_path) as site:
        job = site.http.post("/users/7").json()["job"]
        ended = site.http.get(f"/jobs/api/jobs/{job}/result?wait_s=30").json()
        page = site.http.get("/jobs/", follow_redirects=True)

    assert ended["result"] == "welcome, user 7"
    assert page.url.path == "/jobs/ui/"


RELOADED = """
from datetime import timedelta
from fastapi import FastAPI

@harbor.task
async def slow(ctx: JobContext) -> str:
    if "RELOADED" in open("edited.py").read():
        return f"attempt {ctx.attempt}, stalls {ctx.stalls}"
    open("first_attempt", "w").close()
    await asyncio.sleep(600)

import edited
app = FastAPI(lifespan=lifespan(harbor, worker=WorkerOptions(grace=timedelta(seconds=0.2))))

@app.post("/slow")
async def put() -> str:
    return (await slow.aenqueue()).id

@app.get("/state")
async def state(job: str) -> dict[str, object]:
    found = await harbor.aget(job)
    return {"state": found.state, "ended": [one.outcome for one in found.record.history]}
"""


def test_a_job_of_the_embedded_worker_is_given_back_on_reload(tmp_path: Path) -> None:
    write(tmp_path, RELOADED)
    (tmp_path / "edited.py").write_text("")
    with uvicorn(tmp_path, "--reload") as site:
        eventually(lambda: "Application startup complete" in site.text)
        eventually(lambda: listens(site))  # a reloader's child does so a little later
        job = site.http.post("/slow").json()
        eventually(
            (tmp_path / "first_attempt").exists
        )  # a job that is running may not have begun its handler
        (tmp_path / "edited.py").write_text("RELOADED = True")
        eventually(lambda: answered(site, job).get("state") == "completed", lambda: site.text)

        record = answered(site, job)
    assert record == {"state": "completed", "ended": ["released", "completed"]}


def listens(site: Site) -> bool:
    try:
        return site.http.get("/").status_code > 0
    except httpx2.TransportError:
        return False


def answered(site: Site, job: str) -> dict[str, Any]:
    """The job, or nothing while the server is restarted."""
    try:
        answer = site.http.get("/state", params={"job": job})
    except httpx2.TransportError:
        return {}
    found: dict[str, Any] = answer.json()
    return found


# ------------------------------------------------------------------ in this process


def small_app(harbor: Harbor, **options: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan(harbor, **options))

    @app.get("/tasks")
    async def tasks(jobs: Annotated[Harbor, Depends(use(harbor))]) -> int:
        return len(jobs.tasks)

    return app


def test_an_application_starts_as_often_as_its_tests_want(tmp_path: Path) -> None:
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db?durability=normal")
    jobs = create_app(harbor, authenticate=lambda _: None)
    harbor.task(name="nothing")(lambda: None)
    app = small_app(harbor, server=jobs, worker=True)
    app.mount("/jobs", jobs)

    for _ in range(3):
        with TestClient(app) as client:
            assert client.get("/jobs/readyz").status_code == 200
            assert client.get("/jobs/api/jobs").status_code == 401
            assert client.get("/tasks").json() == 1


def test_tests_replace_the_harbor_of_an_endpoint() -> None:
    harbor, other = Harbor("memory://"), Harbor("memory://")
    other.task(name="one")(lambda: None)
    app = small_app(harbor)
    app.dependency_overrides[use(harbor)] = lambda: other

    with TestClient(app) as client:
        assert client.get("/tasks").json() == 1


async def test_your_own_lifespan_runs_inside_and_its_state_is_kept() -> None:
    harbor, seen = Harbor("memory://"), []

    @harbor.task
    async def late() -> None: ...

    @asynccontextmanager
    async def own(app: object) -> AsyncIterator[dict[str, int]]:
        seen.append((app, (await late.aenqueue()).state))
        yield {"answer": 42}
        seen.append((app, (await late.aenqueue()).state))

    async with lifespan(harbor, inner=own)("the application") as state:
        assert state == {"answer": 42}
    assert seen == [("the application", "ready")] * 2


async def test_an_application_starts_without_its_store() -> None:
    harbor = Harbor("redis://127.0.0.1:1/0")

    @harbor.task
    async def now() -> None: ...

    async with lifespan(harbor, worker=True)(None):
        with pytest.raises(DriverUnavailable):
            await now.aenqueue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WorkerOptions(max_jobs=5), "max_jobs and max_memory"),
        (True, "this worker knows no task"),
    ],
)
async def test_a_worker_that_cannot_work_keeps_the_application_from_starting(
    options: WorkerOptions | bool, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        async with lifespan(Harbor("memory://"), worker=options)(None):
            pytest.fail("it started")


async def test_a_running_job_may_end_within_the_grace() -> None:
    harbor, begun, ended = Harbor("memory://"), asyncio.Event(), []

    @harbor.task
    async def short() -> None:
        begun.set()
        await asyncio.sleep(0.1)
        ended.append(True)

    async with lifespan(harbor, worker=WorkerOptions(grace=timedelta(seconds=30)))(None):
        await short.aenqueue()
        await begun.wait()
    assert ended == [True]
