"""Draw the pictures of the dashboard: for the documentation, and for the tests to compare with.

Always by the pinned browser, from an hour of the demo's jobs in simulated time: two runs draw the same.
`make pictures` fetches the browser and calls this.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402 - after the path to our own modules

from taskharbor.testing import SimulatedClock  # noqa: E402
from taskharbor.web.app import create_app  # noqa: E402
from taskharbor.web.config import ServerConfig  # noqa: E402
from tests.browser import filled, observed, scene, scene_log  # noqa: E402
from tests.integration.http.api import served  # noqa: E402
from tools import browser  # noqa: E402

GOLDENS = ROOT / "tests/browser/pictures"
DOCS = ROOT / "docs/images"
HEIGHT = 900
MOST_TURNS = 200
COMPARED = {
    "hour": {"jobs": 540, "workers": HEIGHT},
    "observed": {"overview": HEIGHT, "failures": 640},
    "filled": {"job": 720},
}
"""The pages that are the same in every run, and how tall their pictures are, by the store that they show.

Of the hour these are two: on its other pages a retry may fall into another simulated minute. The other stores
are settled at fixed instants.
"""
FORMS = [(1440, "light"), (390, "dark")]
SHOWN = ["overview", "job", "failures"]
"""Those that README and docs show, wide, in both themes."""


class Dashboard(NamedTuple):
    """A server with a store and a fixed clock, and where its pages are by the names of their pictures."""

    url: str
    places: dict[str, str]


def main() -> None:
    found = browser.pinned()
    if found is None:
        raise SystemExit("the pinned browser is not here: python tools/browser.py --fetch")
    for folder in (GOLDENS, DOCS):
        folder.mkdir(exist_ok=True)
    with ExitStack() as stack:  # the stores first: a browser has an event loop of its own
        boards = {store: stack.enter_context(dashboard(store)) for store in COMPARED}
        chromium = stack.enter_context(drawing(found))
        for store, pages in COMPARED.items():
            for name, (width, theme) in product(pages, FORMS):
                data = drawn(chromium, boards[store], name, width, theme, pages[name])
                write(GOLDENS / f"{name}-{theme}-{width}.png", data)
        for name, theme in product(SHOWN, ("light", "dark")):
            write(DOCS / f"{name}-{theme}.png", drawn(chromium, boards["hour"], name, 1440, theme))


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    print(f"{path.relative_to(ROOT)}: {len(data) // 1024} KB")


@contextmanager
def dashboard(store: str = "hour") -> Iterator[Dashboard]:
    """A dashboard of the demo's hour, or of a store that the tests fill."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        ids: dict[str, str] = {}
        if store == "hour":
            clock = asyncio.run(scene.build(url))
        else:
            clock = SimulatedClock(scene.START)
            ids = asyncio.run({"filled": filled, "observed": observed}[store].fill(url, clock))
            asyncio.run(scene_log.past(url, clock))
        config = ServerConfig(name="demo", targets=scene.TARGETS)
        app = create_app(scene.served_harbor(url, clock), config, local_callers_are_admin=True)
        with served(app) as port:
            address = f"http://127.0.0.1:{port}"
            if store == "hour":
                read(address, "board")  # the first look; the next one finds what changed
                asyncio.run(scene.go_on(url, clock))
                query = "jobs?q=state:failed+type:call_dead_service&sort=-ended&limit=1"
                [job] = read(address, query)["items"]
                yield Dashboard(address, places(job["id"], job["cause"]))
            else:
                yield Dashboard(address, places(ids.get("failed") or ids["failed-0"], observed.CAUSE.id))


def places(job: str, cause: str) -> dict[str, str]:
    return {
        "overview": "",
        "jobs": "jobs",
        "job": f"jobs/{job}",
        "failures": f"failures?open={cause}",
        "workers": "workers",
    }


def read(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/api/{path}") as answer:
        return json.load(answer)


@contextmanager
def drawing(found: browser.Found) -> Iterator[Any]:
    path, env = found
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=browser.FLAGS, env={**os.environ, **env}
        )
        yield started
        started.close()


def drawn(
    chromium: Any, shown: Dashboard, name: str, width: int, theme: str, height: int | None = None
) -> bytes:
    """The picture of a page, without `height` as tall as the page itself.

    The browser's clock is fixed, too, but for the moments that a page needs.
    """
    context = chromium.new_context(
        viewport={"width": width, "height": height or HEIGHT},
        color_scheme=theme,
        locale="en-US",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.clock.install(time=scene.START)
        page.clock.pause_at(scene.START + timedelta(seconds=1))
        page.goto(f"{shown.url}/ui/#/{shown.places[name]}")
        for _ in range(MOST_TURNS):  # timers of the page run only here, and what it asked for arrives between
            page.clock.run_for(10)
            page.wait_for_timeout(50)
            if page.locator("main h1").count() and not page.locator(".live.stale, [aria-busy=true]").count():
                break
        for _ in range(10):
            page.clock.run_for(10)
            page.wait_for_timeout(100)
        if height is None:  # so that the rail ends with the page
            tall = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": max(tall, HEIGHT)})
            page.wait_for_timeout(100)
        data: bytes = page.screenshot(animations="disabled")
        return data
    finally:
        context.close()


if __name__ == "__main__":
    main()
