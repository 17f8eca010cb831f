"""Draw the pictures of the dashboard: for the documentation, and for the tests to compare with.

Always by the pinned browser, from an hour of the demo's jobs in simulated time: two runs draw the same.
`make pictures` fetches the browser and calls this.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402 - after the path to our own modules

from taskharbor.web.app import create_app  # noqa: E402
from taskharbor.web.config import ServerConfig  # noqa: E402
from tests.browser import scene  # noqa: E402
from tests.integration.http.api import served  # noqa: E402
from tools import browser  # noqa: E402

GOLDENS = ROOT / "tests/browser/pictures"
DOCS = ROOT / "docs/images"
HEIGHT = 900
MOST_TURNS = 200
PLACES = {
    "overview": "",
    "jobs": "jobs",
    "job": "jobs/{dead}",
    "failures": "failures/{cause}",
    "workers": "workers",
}
"""The pages that are drawn, by the name of their picture."""
COMPARED = ["jobs", "workers"]
"""Those that are the same in every run: on the others a retry may fall into another simulated minute."""
FORMS = [(1440, "light"), (390, "dark")]
SHOWN = ["overview", "job", "failures"]
"""Those that README and docs show, wide, in both themes."""


def main() -> None:
    found = browser.pinned()
    if found is None:
        raise SystemExit("the pinned browser is not here: python tools/browser.py --fetch")
    for folder in (GOLDENS, DOCS):
        folder.mkdir(exist_ok=True)
    with dashboard() as url, drawing(found) as chromium:
        for name in COMPARED:
            for width, theme in FORMS:
                write(GOLDENS / f"{name}-{theme}-{width}.png", drawn(chromium, url, name, width, theme))
        for name in SHOWN:
            for theme in ("light", "dark"):
                write(DOCS / f"{name}-{theme}.png", drawn(chromium, url, name, 1440, theme, whole=True))


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    print(f"{path.relative_to(ROOT)}: {len(data) // 1024} KB")


@contextmanager
def dashboard() -> Iterator[str]:
    """The address of a server with the scene in its store and a fixed clock."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/jobs.db"
        clock = asyncio.run(scene.build(store))
        config = ServerConfig(name="demo")
        app = create_app(scene.served_harbor(store, clock), config, local_callers_are_admin=True)
        with served(app) as port:
            yield f"http://127.0.0.1:{port}"


@contextmanager
def drawing(found: browser.Found) -> Iterator[Any]:
    path, env = found
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=browser.FLAGS, env={**os.environ, **env}
        )
        yield started
        started.close()


def drawn(chromium: Any, url: str, name: str, width: int, theme: str, *, whole: bool = False) -> bytes:
    """The picture of a page. The browser's clock is fixed, too, but for the moments that a page needs."""
    context = chromium.new_context(
        viewport={"width": width, "height": HEIGHT},
        color_scheme=theme,
        locale="en-US",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.clock.install(time=scene.START)
        page.clock.pause_at(scene.START + timedelta(seconds=1))
        page.goto(f"{url}/ui/#/{PLACES[name].format(**ids(context, url))}")
        for _ in range(MOST_TURNS):  # timers of the page run only here, and what it asked for arrives between
            page.clock.run_for(10)
            page.wait_for_timeout(50)
            if page.locator("main h1").count() and not page.locator(".live.stale, [aria-busy=true]").count():
                break
        for _ in range(10):
            page.clock.run_for(10)
            page.wait_for_timeout(100)
        data: bytes = page.screenshot(full_page=whole, animations="disabled")
        return data
    finally:
        context.close()


def ids(context: Any, url: str) -> dict[str, str]:
    """A dead letter of the service that is down, and its cause."""
    query = "q=state:failed+type:call_dead_service&limit=1"
    [job] = context.request.get(f"{url}/api/jobs?{query}").json()["items"]
    return {"dead": job["id"], "cause": job["cause"]}


if __name__ == "__main__":
    main()
