"""A real browser before a real server: one of each for all tests of this folder.

Playwright's blocking calls keep an event loop running in their thread, which the asyncio tests of the same
process could not bear: so the browser, its pages and the tests that use them live in a thread of their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

from taskharbor.drivers.wire import Role
from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser import observed
from tests.browser.filled import fill
from tests.integration.http.api import make_token, served, token_file
from tools import browser as browsers

_thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
_SLOW_MS = 30_000


def inside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What the function answers, called where the browser lives."""
    return _thread.submit(function, *arguments, **options).result()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    names = pyfuncitem._fixtureinfo.argnames
    inside(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser of all tests. Without one they skip, and fail where CI is set."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=_SLOW_MS)  # five seconds are too few on a busy machine
    found = browsers.find()
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(browsers.HOW)
    path, env = found
    playwright = inside(lambda: sync_playwright().start())
    started = inside(
        playwright.chromium.launch, executable_path=path, args=browsers.FLAGS, env={**os.environ, **env}
    )
    yield started
    inside(started.close)
    inside(playwright.stop)


@dataclass
class Pages:
    """Makes pages, and remembers what went wrong on them."""

    browser: Any
    trouble: list[str] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)

    def __call__(self, url: str, *, width: int = 1440, theme: str = "light", **options: Any) -> Any:
        """A page in a context of its own, at that address."""
        size = {"width": width, "height": 900}
        usual = {"timezone_id": "UTC", "locale": "en-US"}
        context = self.browser.new_context(viewport=size, color_scheme=theme, **usual | options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(_SLOW_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", self._noticed)
        page.on("response", self._answered)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.goto(url)
        page.wait_for_selector("main h1")
        return page

    def expect(self, *refused: str) -> None:
        """Forget these refusals, each as `422 /api/jobs`: the test asked for them."""
        self.trouble[:] = [text for text in self.trouble if text not in refused]

    def _noticed(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.trouble.append(message.text)

    def _answered(self, response: Any) -> None:
        path = urlsplit(response.url).path
        if response.status == 404 and path.endswith("/follow"):
            return  # its stream was replaced by another while the request was on its way
        if response.status >= 400:
            self.trouble.append(f"{response.status} {path}")

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@pytest.fixture
def pages(browser: Any) -> Iterator[Pages]:
    """`pages(url)` opens one. At the end of the test, no page may have reported an error."""
    made = Pages(browser)
    yield made
    inside(made.close)
    assert made.trouble == []


@dataclass(frozen=True)
class Server:
    """A server with a filled store. `url` is for callers without a token, who are admins here."""

    port: int
    store: str
    ids: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/ui/"

    def at(self, place: str) -> str:
        return f"{self.url}#/{place}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that change nothing, or only jobs of their own."""
    store = f"sqlite:///{tmp_path_factory.mktemp('browser')}/jobs.db"
    ids = asyncio.run(fill(store))
    app = create_app(Harbor(store), ServerConfig(name="prod", any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        yield Server(port, store, ids)


@dataclass(frozen=True)
class TokenServer:
    """A server on the same store that asks for a token."""

    url: str
    tokens: dict[str, str]


@pytest.fixture(scope="session")
def token_server(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    folder = tmp_path_factory.mktemp("tokens")
    file = token_file(folder)
    tokens: dict[str, str] = {role: make_token(file, role) for role in get_args(Role)}
    app = create_app(
        Harbor(server.store), ServerConfig(name="prod", any_type=True, tokens=folder / "tokens.json")
    )
    with served(app) as port:
        yield TokenServer(f"http://127.0.0.1:{port}/ui/", tokens)


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a store with a past: causes of failures, workers of different speed, runs of a schedule."""
    store = f"sqlite:///{tmp_path_factory.mktemp('watched')}/jobs.db"
    ids = asyncio.run(observed.fill(store))
    app = create_app(Harbor(store), ServerConfig(name="prod", any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        yield Server(port, store, ids)
