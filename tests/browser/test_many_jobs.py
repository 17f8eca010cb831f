"""The pages on a store with many jobs: numbers, a full list, and a search that says how far it looked."""

import asyncio
import re

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.steps import calm, go
from tests.integration.http.api import served
from tests.integration.http.test_many_jobs import BATCH, MANY, QUEUES, fill

FEW = 2000
COUNTS = [FEW, pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
MILLION = 1_000_000


@pytest.fixture(params=COUNTS)
def crowded(request, tmp_path):
    """The address of a server on such a store, and how many jobs are in it."""
    store = f"sqlite:///{tmp_path}/jobs.db?durability=normal"

    async def filled():
        harbor = Harbor(store)
        try:
            await fill(await harbor.client.adriver(), request.param)
        finally:
            await harbor.aclose()

    asyncio.run(filled())
    app = create_app(Harbor(store), ServerConfig(any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        yield f"http://127.0.0.1:{port}/ui/", request.param


def shown(count):
    return f"{count:,}" if count < MILLION else f"{count / MILLION:.2f} M"


def test_a_full_store_is_listed_counted_and_searched(pages, crowded):
    url, count = crowded
    page = pages(url)
    calm(page)
    expect(page.locator("#queues tbody tr")).to_have_count(min(len(QUEUES), count // BATCH))

    go(page, "jobs")
    expect(page.locator(".jobs tbody tr")).to_have_count(50)
    expect(page.locator(".tabs a", has_text="All")).to_contain_text(shown(count))
    expect(page.locator(".tabs a", has_text="Failed")).to_contain_text(shown(count * 3 // 100))
    page.get_by_role("button", name="Older").click()
    expect(page.locator(".jobs tbody tr")).to_have_count(100)
    go(page, "jobs?q=type:nobodys")
    expect(page.locator(".card.empty")).to_contain_text(re.compile("looked at [0-9,]+|No job in the store"))
    go(page, "jobs?q=state:failed&sort=-ended")
    expect(page.locator(".jobs tbody .st.failed")).to_have_count(min(50, count * 3 // 100))
