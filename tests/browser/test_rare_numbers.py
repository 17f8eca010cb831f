"""Numbers that are not exact, and texts that are missing: answers that a small store does not give.

The answers are the server's own, with single fields changed on their way to the page.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.observed import CAUSE, DEAD

pytestmark = pytest.mark.more("a browser takes seconds")


def opened(pages: Any, url: str, path: str, change: Callable[[Any], None]) -> Any:
    """The page at that address, to which every answer of the path comes changed."""
    page = pages(url)

    def answer(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        change(body)
        route.fulfill(response=response, body=json.dumps(body))

    page.route(re.compile(path), answer)
    page.reload()
    page.wait_for_selector("main h1")
    return page


def test_dead_jobs_that_a_walk_did_not_reach_can_be_retried(pages, watched):
    def change(body):
        body["dead_now"] = {"count": 0, "exact": False}

    page = opened(pages, watched.at(f"failures/{CAUSE.id}"), f"/api/failures/{CAUSE.id}", change)

    expect(page.get_by_role("button", name=f"Retry all {DEAD}…")).to_be_visible()


def test_a_job_that_failed_without_a_word_says_so(pages, watched):
    def change(body):
        for job in body["jobs"]:
            job["message"] = ""

    page = opened(pages, watched.at(f"failures/{CAUSE.id}"), f"/api/failures/{CAUSE.id}", change)

    expect(page.locator("ul.lines li").first).to_contain_text("no message")


def test_jobs_that_retry_are_at_least_so_many_if_not_all_were_seen(pages, server):
    def change(body):
        body.update(count=500, exact=False)

    page = opened(pages, server.at("jobs"), "/api/jobs/count", change)

    expect(page.get_by_role("navigation", name="State").get_by_role("link", name="Retrying")).to_contain_text(
        "500+"
    )


@pytest.mark.parametrize(("before", "compares"), [(30, True), (40, False), (10, False)])
def test_twenty_runs_on_each_side_are_compared_with_a_release(pages, server, before, compares):
    """Of fifty runs of the job's task; they are copies of one of the store."""
    job_id = server.ids["failed"]
    since = "2030-01-01T00:00:00Z"

    def change(body):
        if "items" in body:
            one = next((item for item in body["items"] if item.get("started_at")), None)
            years = [2029 if number < before else 2031 for number in range(50)]
            runs = [
                one | {"started_at": f"{year}-01-01T00:00:00Z", "finished_at": f"{year}-01-01T00:00:01Z"}
                for year in years
                if one
            ]
            body["items"] = runs[::-1]
        else:
            body.update(release="r2", release_since=since)

    page = opened(pages, server.at(f"jobs/{job_id}"), f"/api/jobs(/{job_id})?(\\?.*)?$", change)

    words = page.get_by_text("of the last 50 runs succeeded")
    expect(words).to_be_visible()
    assert ("before release r2" in words.inner_text()) is compares
