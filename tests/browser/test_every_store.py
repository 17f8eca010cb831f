"""The main pages on a server with Postgres or Valkey behind it: the same as on SQLite."""

import asyncio

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.testing.servers import PostgresServer, ValkeyServer
from taskharbor.testing.servers.postgres import migrate_blocking
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser import filled, observed
from tests.browser.conftest import Server
from tests.browser.observed import CAUSE
from tests.browser.steps import calm, go, toast
from tests.integration.http.api import served

TEXTS = {
    "": "Oldest wait",
    "jobs": "send_welcome",
    "jobs?q=state:failed": "send_welcome",
    "jobs/{failed}": "timed out",
    "jobs/{running}": "embedding",
    "failures": CAUSE.title,
    f"failures/{CAUSE.id}": "app/mail/smtp.py in connect",
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
        ids = asyncio.run(filled.fill(store.url)) | asyncio.run(observed.fill(store.url))
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


@pytest.mark.more("a server for each store")
def test_many_jobs_are_changed_and_changes_are_noted(pages, stored):
    page = pages(stored.at("jobs?q=state:failed"))
    for key in ("j", "x", "j", "j", "Shift+X"):
        page.locator(".jobs tbody tr").first.wait_for()
        page.keyboard.press(key)
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 3").click()
    toast(page, "Deleting 3 jobs in").get_by_role("button", name="Now").click()
    expect(toast(page, "Deleted 3 jobs")).to_be_visible()

    go(page, f"failures/{CAUSE.id}")
    page.locator("main button", has_text="Retry all").click()
    page.get_by_role("dialog").locator("button[type=submit]").click()
    expect(toast(page, "Retrying")).to_be_visible()
    page.keyboard.press("u")
    expect(toast(page, "Undone: nothing was changed")).to_be_visible()

    go(page, "queues/audited?edit=max_running")
    page.get_by_label("Running at once", exact=True).fill("7")
    page.keyboard.press("Enter")
    expect(toast(page, "audited:")).to_be_visible()
    go(page, "system/audit")
    expect(page.locator("tbody tr", has_text="audited").first).to_contain_text("max_running none → 7")
