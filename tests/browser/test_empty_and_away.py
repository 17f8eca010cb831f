"""Pages without data: an empty store, and a store that does not answer. Written, never blank."""

from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.steps import forget, go
from tests.integration.http.api import served

_PATIENT = 40_000
"""A store behind HTTP is tried for a while before it is given up."""
EMPTY = {
    "failures": "Nothing failed",
    "queues": "No queue yet",
    "workers": "Nobody is at work",
    "schedules": "No schedule yet",
    "system/audit": "Nobody has changed anything",
    "jobs": "No jobs yet",
    "": "No jobs yet",
}


def server_on(store):
    return served(create_app(Harbor(store), ServerConfig(any_type=True), local_callers_are_admin=True))


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    with server_on(f"sqlite:///{tmp_path_factory.mktemp('empty')}/jobs.db") as port:
        yield f"http://127.0.0.1:{port}/ui/"


@pytest.mark.more("a browser takes seconds")
def test_an_empty_store_says_what_would_be_here(pages, empty):
    page = pages(empty)

    for place, text in EMPTY.items():
        go(page, place)
        expect(page.locator("main")).to_contain_text(text)


@pytest.mark.more("a browser takes seconds")
def test_a_store_that_goes_away_is_named_and_old_data_stays(pages, tmp_path):
    with ExitStack() as page_server:
        with server_on(f"sqlite:///{tmp_path}/jobs.db") as behind:
            port = page_server.enter_context(server_on(f"http://127.0.0.1:{behind}"))
            page = pages(f"http://127.0.0.1:{port}/ui/#/workers")
            expect(page.locator("main")).to_contain_text("Nobody is at work")

        expect(page.locator(".banner")).to_contain_text("does not answer", timeout=_PATIENT)
        expect(page.locator("main")).to_contain_text("Nobody is at work")
        page.evaluate("location.hash = '#/schedules'")
        expect(page.get_by_role("alert")).to_contain_text("Request", timeout=_PATIENT)
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.close()  # it would ask again
    forget(pages, "503", "ERR_")
