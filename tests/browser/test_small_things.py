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
