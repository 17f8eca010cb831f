"""Whatever cancels or deletes jobs is held, can be taken back, and is done when nobody takes it back."""

import asyncio
import json
import time
import urllib.parse
import urllib.request

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.conftest import Server
from tests.browser.filled import DEAD, fill
from tests.browser.steps import toast
from tests.integration.http.api import served

FAILED = "state:failed type:send_welcome"
WAITING = "state:ready queue:reports"


@pytest.fixture
def own(tmp_path):
    """A server whose jobs no other test needs."""
    store = f"sqlite:///{tmp_path}/jobs.db"
    ids = asyncio.run(fill(store))
    app = create_app(Harbor(store), ServerConfig(any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        yield Server(port, store, ids)


def expect_count(server, q, expected):
    """Wait for this count: it comes from a look that all callers share, and may be a second old."""
    deadline = time.monotonic() + 60
    while (found := count(server, q)) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == expected


def count(server, q):
    query = urllib.parse.urlencode({"q": q})
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/jobs/count?{query}") as answer:
        return json.load(answer)["count"]


def select(page, q, how_many):
    page.locator(".jobs tbody tr").first.wait_for()
    for tick in page.locator(".jobs tbody .tick").all()[:how_many]:
        tick.check()
    expect(page.locator(".bulk b")).to_have_text(f"{how_many} selected")


def undone(page):
    page.keyboard.press("u")
    expect(toast(page, "Undone: nothing was changed")).to_be_visible()


def test_one_cancel_is_taken_back(pages, own):
    page = pages(own.at(f"jobs/{own.ids['waiting-0']}"))

    page.keyboard.press("c")
    expect(toast(page, "Cancelling 1 job in")).to_be_visible()
    undone(page)

    expect(page.locator(".st.pill").first).to_have_text("ready")
    expect_count(own, WAITING, 3)


def test_several_cancels_are_taken_back_and_then_done(pages, own):
    page = pages(own.at(f"jobs?q={WAITING}"))

    select(page, WAITING, 2)
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(toast(page, "Cancelling 2 jobs in")).to_be_visible()
    undone(page)
    expect_count(own, WAITING, 3)
    select(page, WAITING, 2)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Now").click()
    expect(toast(page, "Cancelled 2 jobs")).to_be_visible()

    expect_count(own, WAITING, 1)


def test_one_delete_is_taken_back_and_then_done(pages, own):
    page = pages(own.at(f"jobs/{own.ids['failed-4']}"))

    def delete():
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Delete…").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete 1").click()

    delete()
    expect(toast(page, "Deleting 1 job in")).to_be_visible()
    undone(page)
    expect_count(own, FAILED, DEAD)
    delete()
    page.get_by_role("button", name="Now").click()
    expect(toast(page, "Deleted 1 job")).to_be_visible()

    page.wait_for_url("**/#/jobs")
    expect_count(own, FAILED, DEAD - 1)


def test_deleting_everything_that_matches_is_taken_back(pages, own):
    page = pages(own.at(f"jobs?q={FAILED}"))

    select(page, FAILED, 1)
    page.get_by_role("button", name=f"Select all {DEAD} that match").click()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name=f"Delete {DEAD}").click()
    expect(toast(page, f"Deleting {DEAD} jobs in")).to_be_visible()
    undone(page)

    expect_count(own, FAILED, DEAD)


def test_jobs_that_changed_meanwhile_are_left_alone_and_counted(pages, own):
    page = pages(own.at(f"jobs?q={FAILED}"))

    select(page, FAILED, 2)
    chosen = page.locator(".jobs tr.on").first.get_attribute("data-id")
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
    expect(toast(page, "Deleting 2 jobs in")).to_be_visible()
    address = f"http://127.0.0.1:{own.port}/api/jobs/{chosen}/retry"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(address, b"{}", headers)).close()
    page.get_by_role("button", name="Now").click()

    expect(toast(page, "Deleted 1 job; 1 other had changed meanwhile")).to_be_visible()
    expect_count(own, f"id:{chosen}", 1)
