"""Small things that eyes notice: even margins, numbers and words in their place."""

import asyncio
import re
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from tests.browser.moving import SEEN, put
from tests.browser.steps import calm, go
from tests.integration.http.api import served

ROOMS = """(toast) => {
  const box = toast.getBoundingClientRect(), words = toast.querySelector("span").getBoundingClientRect();
  return [words.left - box.left, box.right - words.right];
}"""


OTHER_PAGES = "**/pages/index.js"
"""What the first view does not need: it is asked for when somebody leaves it."""


async def begin(store):
    """A job that runs, and has made no progress."""
    async with connect(store) as driver:
        await put(driver, SEEN, 1)
        await driver.reserve(Claim(queues=(SEEN,), worker_id="w", limit=1, lease_for=timedelta(minutes=10)))


@pytest.fixture
def begun(tmp_path):
    """The address of a server with a running job."""
    store = f"sqlite:///{tmp_path}/jobs.db"
    asyncio.run(begin(store))
    with served(create_app(Harbor(store), local_callers_are_admin=True)) as port:
        yield f"http://127.0.0.1:{port}/ui/"


def test_a_running_job_says_for_how_long(pages, begun):
    page = pages(f"{begun}#/jobs")

    expect(page.locator(".jobs tbody .c-when")).to_have_text(re.compile(r"^for \d"))


@pytest.mark.parametrize("keys", ["state:failed welc", "state:failed queue:mail welc"])
def test_what_is_typed_before_the_search_is_there_reaches_it(pages, server, keys):
    page, held = pages(server.at("")), []
    calm(page)
    page.route(OTHER_PAGES, lambda route: held.append(route))

    with page.expect_request(OTHER_PAGES):
        page.keyboard.press("/")
    page.keyboard.type(keys)
    held[0].continue_()

    expect(page.locator("#q")).to_have_value("welc")
    expect(page.locator("#q")).to_be_focused()
    expect(page.locator(".query .chip.q").first).to_have_text("state:failed")
    assert "q=state" in page.url


def test_a_search_typed_at_once_is_searched_for(pages, server):
    page = pages(server.at(""))
    calm(page)

    page.keyboard.type("/state:failed queue:mail")
    page.keyboard.press("Enter")

    expect(page.locator(".query .chip.q")).to_have_text(["state:failed", "queue:mail"])
    expect(page.locator("#q")).to_have_value("")


def test_a_note_has_as_much_room_on_its_right_as_on_its_left(pages, server):
    page = pages(server.at(f"jobs/{server.ids['failed']}"))
    calm(page)

    page.get_by_role("button", name="Copy as").click()
    page.get_by_role("menuitem", name="CLI").click()

    left, right = page.locator(".toast", has_text="Copied").evaluate(ROOMS)
    assert abs(left - right) < 1


def test_a_number_of_the_list_before_leaves_the_tabs_with_the_others(pages, server):
    page = pages(server.at("jobs"))
    numbers = page.locator("nav.tabs b")
    expect(numbers.nth(3)).to_have_text(re.compile(r"\d"))

    go(page, "jobs?q=welcome")
    expect(numbers.first).to_be_empty()

    assert "".join(numbers.all_inner_texts()) == ""
