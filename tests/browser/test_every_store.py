"""The main pages on a server with Postgres or Valkey behind it: the same as on SQLite."""

import asyncio

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.testing.servers import PostgresServer, ValkeyServer
from taskharbor.testing.servers.postgres import migrate_blocking
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.conftest import Server
from tests.browser.filled import fill
from tests.browser.steps import calm, go
from tests.integration.http.api import served

TEXTS = {
    "": "Oldest wait",
    "jobs": "send_welcome",
    "jobs?q=state:failed": "send_welcome",
    "jobs/{failed}": "timed out",
    "jobs/{running}": "embedding",
    "queues": "reports",
    "queues/reports": "Who waits",
    "workers": "gpu-a",
    "schedules": "nightly",
    "system": "Store",
}


@pytest.fixture(scope="module", params=["postgres", "valkey"])
def stored(request):
    with PostgresServer() if request.param == "postgres" else ValkeyServer() as store:
        if request.param == "postgres":
            migrate_blocking(store.url)
        ids = asyncio.run(fill(store.url))
        app = create_app(Harbor(store.url), ServerConfig(any_type=True), local_callers_are_admin=True)
        with served(app) as port:
            yield Server(port, store.url, ids)


@pytest.mark.more("a server for each store")
def test_the_main_pages_show_what_is_stored(pages, stored):
    page = pages(stored.url)
    calm(page)

    for place, text in TEXTS.items():
        go(page, place.format(**stored.ids))
        expect(page.locator("main")).to_contain_text(text)

    go(page, "queues")
    page.get_by_role("button", name="Pause mail").click()
    expect(page.get_by_role("button", name="Resume mail")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Pause mail")).to_be_visible()
