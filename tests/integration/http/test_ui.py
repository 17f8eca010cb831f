"""The dashboard's files: at any path, with strict headers, out of memory and never out of a folder."""

import gzip
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from taskharbor import Harbor
from taskharbor.errors import ConfigurationError
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from taskharbor.web.page_bundles import bundled
from tests.integration.http.api import Api, served, talk

UI = Path(__file__).parents[3] / "src" / "taskharbor" / "web" / "ui"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    yield found
    await found.aclose()


def assets(page: str) -> list[str]:
    """The files that a page names."""
    return re.findall(r'(?:src|href)="([0-9a-f]{16}/[^"]+)"', page)


async def test_the_way_to_the_dashboard_holds_under_any_prefix() -> None:
    harbor = Harbor("memory://")
    tasks = create_app(harbor, local_callers_are_admin=True)
    for host, below in ((tasks, ""), (Starlette(routes=[Mount("/a/b", tasks)]), "/a/b")):
        transport = httpx2.ASGITransport(app=host)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", follow_redirects=True
        ) as http:
            for start in (f"{below}/", f"{below}/ui"):
                page = await http.get(start)
                assert str(page.url) == f"http://localhost{below}/ui/"
                for name in assets(page.text):
                    assert (await http.get(page.url.join(name))).status_code == 200
                assert (await http.get(page.url.join("../api/queues"))).status_code == 200
    await harbor.aclose()


async def test_home_answers_with_a_relative_way(api: Api) -> None:
    home = await api("GET", "/")

    assert (home.status_code, home.headers["location"]) == (303, "ui/")


async def test_the_page_is_never_kept_and_its_files_always(api: Api) -> None:
    page = await api("GET", "/ui/")
    names = assets(page.text)
    paths = (path for path in UI.rglob("*") if path.suffix in (".js", ".css"))
    sent = bundled({path.relative_to(UI).as_posix(): path.read_bytes() for path in paths})

    assert page.headers["cache-control"] == "no-store"
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "ASSETS" not in page.text
    assert [name for name in names if name.endswith(".js")]
    for name in names:
        file = await api("GET", f"/ui/{name}")
        assert "immutable" in file.headers["cache-control"]
        assert file.content == sent[name.partition("/")[2]]


async def test_every_file_comes_with_strict_headers(api: Api) -> None:
    page = await api("GET", "/ui/")
    for path in ("/ui/", f"/ui/{assets(page.text)[0]}"):
        headers = (await api("GET", path)).headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'"
        )
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert len(headers.get_list("content-security-policy")) == 1


async def test_files_are_gzipped_for_those_who_ask(api: Api) -> None:
    name = assets((await api("GET", "/ui/")).text)[0]
    transport = httpx2.ASGITransport(app=api.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for path in ("/ui/", f"/ui/{name}"):
            async with http.stream("GET", path, headers={"Accept-Encoding": "br, gzip"}) as answer:
                packed = b"".join([part async for part in answer.aiter_raw()])
            plain = await http.get(path, headers={"Accept-Encoding": "gzip;q=0, identity"})

            assert answer.headers["content-encoding"] == "gzip"
            assert answer.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
            assert "content-encoding" not in plain.headers
            assert gzip.decompress(packed) == plain.content


@pytest.mark.parametrize(
    "path",
    [
        "index.html",
        "../config.py",
        "..%2f..%2fconfig.py",
        "%2e%2e/config.py",
        "vendor/../../app.py",
        "/etc/passwd",
        "nothing.js",
        "",
        ".",
        "vendor/vendor.lock.json",
    ],
)
async def test_a_path_is_never_a_file(api: Api, path: str) -> None:
    version = assets((await api("GET", "/ui/")).text)[0].partition("/")[0]
    with served(create_app(Harbor("memory://"), local_callers_are_admin=True)) as port:
        head = f"GET /ui/{version}/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert talk(port, head.encode()).startswith(b"HTTP/1.1 404")


async def test_files_of_another_version_are_not_served(api: Api) -> None:
    name = assets((await api("GET", "/ui/")).text)[0].partition("/")[2]

    assert (await api("GET", f"/ui/0123456789abcdef/{name}")).status_code == 404


async def test_it_can_be_switched_off() -> None:
    api = Api(ui="off")

    assert [(await api("GET", path)).status_code for path in ("/", "/ui/", "/ui/x/app.js")] == [404] * 3
    await api.aclose()


async def test_named_origins_may_frame_it() -> None:
    api = Api(frame_ancestors=("https://intranet.example", "'self'"))
    policy = (await api("GET", "/ui/")).headers["content-security-policy"]

    assert "frame-ancestors https://intranet.example 'self';" in policy
    await api.aclose()


@pytest.mark.parametrize(
    "wrong",
    [
        {"ui": "maybe"},
        {"frame_ancestors": ("https://a; script-src *",)},
        {"frame_ancestors": ("*",)},
        {"targets": {"mail": timedelta(0)}},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ServerConfig(**wrong)


@pytest.mark.parametrize(("ui", "is_named"), [("on", True), ("off", False)])
def test_a_server_names_the_address_of_its_dashboard(
    ui: Any, is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskharbor.server")
    app = create_app(Harbor("memory://"), ServerConfig(ui=ui), local_callers_are_admin=True)
    with served(app) as port:
        talk(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    messages = [record.getMessage() for record in caplog.records]
    assert (f"dashboard: http://127.0.0.1:{port}/ui/" in messages) == is_named


# ------------------------------------------------------------------ pages of other sites

NAVIGATION = {"Sec-Fetch-Mode": "navigate"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_may_only_lead_to_the_dashboard(api: Api, site: str) -> None:
    site_header = {"Sec-Fetch-Site": site}

    led = [
        (await api("GET", path, headers={**site_header, **NAVIGATION})).status_code for path in ("/", "/ui/")
    ]
    others = ("/ui/", "/api/queues", "/api/events", "/livez", "/api/openapi.json")
    read = [(await api("GET", path, headers=site_header)).status_code for path in others]
    opened = (await api("GET", "/api/queues", headers={**site_header, **NAVIGATION})).status_code

    assert led == [303, 200]
    assert (read, opened) == ([403] * 5, 403)


async def test_an_answer_of_more_than_a_kibibyte_is_gzipped_for_those_who_ask(api: Api) -> None:
    for _ in range(5):
        await api.put({"type": "x"})
    transport = httpx2.ASGITransport(app=api.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        async with http.stream("GET", "/api/jobs", headers={"Accept-Encoding": "gzip"}) as answer:
            packed = b"".join([part async for part in answer.aiter_raw()])
        plain = await http.get("/api/jobs", headers={"Accept-Encoding": "identity"})
        short = await http.get("/livez", headers={"Accept-Encoding": "gzip"})

    assert answer.headers["content-encoding"] == "gzip"
    assert len(packed) < len(plain.content) / 2
    assert gzip.decompress(packed) == plain.content
    assert "content-encoding" not in short.headers
