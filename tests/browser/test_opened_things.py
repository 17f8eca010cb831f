"""What is opened over a page, and pages without data or store: whole, and for everybody."""

from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.observed import CAUSE
from tests.browser.steps import calm, forget, go, sign_in, violations
from tests.integration.http.api import served

pytestmark = pytest.mark.more("axe looks at every element of what a page can open, in four forms")
FORMS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]
FAILED = "jobs?q=state:failed"
DIALOG = "dialog[open]"
OPENED = {
    "commands": ("", ["key Control+k"], DIALOG),
    "keys": ("", ["key ?"], DIALOG),
    "search help": ("jobs", ["Search help"], DIALOG),
    "new job": ("jobs", ["New job"], DIALOG),
    "save view": ("jobs", ["Save view"], DIALOG),
    "selected jobs": (FAILED, ["key j", "key x"], ".bulk"),
    "edit selected jobs": (FAILED, ["key j", "key x", "Edit and retry…"], DIALOG),
    "delete selected jobs": (FAILED, ["key j", "key x", "Delete…"], DIALOG),
    "edit a job": ("jobs/{failed}", ["key e"], DIALOG),
    "menu of a job": ("jobs/{failed}", ["More actions"], "[role=menu]"),
    "copy as": ("jobs/{failed}", ["Copy as"], "[role=menu]"),
    "wrong query": ("jobs?q=colour:red", [], ".chip.wrong"),
    "held": ("jobs/{waiting-2}", ["key c"], ".toast"),
}
"""Place, what is pressed there (a key, or the button of that name), and what opens."""
NO_DATA = ["", "jobs", "failures", "workflows", "queues", "workers", "schedules", "system", "system/audit"]


def press(page, what):
    if what.startswith("key "):
        page.keyboard.press(what.removeprefix("key "))
    else:
        page.locator("main").get_by_role("button", name=what, exact=True).first.click()


def faults(page):
    """Whether the page is wider than the window, and what axe finds."""
    return page.evaluate("document.documentElement.scrollWidth > innerWidth"), violations(page)


@pytest.mark.parametrize(("width", "theme"), FORMS)
def test_what_opens_is_whole_and_for_everybody(pages, server, width, theme):
    page, found = pages(server.url, width=width, theme=theme), {}
    for name, (place, steps, opened) in OPENED.items():
        page.goto(server.at(place.format(**server.ids)))
        page.reload()
        calm(page)
        page.wait_for_selector("main h1")
        if place == FAILED:
            page.locator(".jobs tbody tr").first.wait_for()
        for step in steps:
            press(page, step)
        expect(page.locator(opened).first).to_be_visible()
        found[name] = faults(page)
        page.keyboard.press("u")  # takes back what is held
    pages.expect("422 /api/jobs", "422 /api/jobs/count")

    assert found == dict.fromkeys(OPENED, (False, []))


@pytest.mark.parametrize(("width", "theme"), FORMS)
def test_dialogs_of_causes_and_tokens_are_for_everybody(pages, watched, token_server, width, theme):
    page = pages(watched.at(f"failures/{CAUSE.id}"), width=width, theme=theme)
    calm(page)
    page.locator("main button", has_text="Retry all").click()
    expect(page.locator(f"{DIALOG} .lines li").first).to_be_visible()
    assert faults(page) == (False, [])

    page = sign_in(pages, token_server, "admin", width=width, theme=theme)
    go(page, "system/tokens")
    press(page, "New token…")
    expect(page.locator(DIALOG)).to_be_visible()
    assert faults(page) == (False, [])
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".secret")).to_be_visible()

    assert faults(page) == (False, [])


def server_on(store):
    return served(create_app(Harbor(store), ServerConfig(any_type=True), local_callers_are_admin=True))


@pytest.mark.parametrize(("width", "theme"), FORMS)
def test_pages_without_data_are_for_everybody(pages, tmp_path, width, theme):
    with server_on(f"sqlite:///{tmp_path}/jobs.db") as port:
        page, found = pages(f"http://127.0.0.1:{port}/ui/", width=width, theme=theme), {}
        for place in NO_DATA:
            go(page, place)
            page.wait_for_selector("main h1")
            calm(page)
            found[place] = faults(page)
        page.close()

    assert found == dict.fromkeys(NO_DATA, (False, []))


def test_pages_whose_store_is_away_are_for_everybody(pages, tmp_path):
    with ExitStack() as page_server:
        with server_on(f"sqlite:///{tmp_path}/jobs.db") as behind:
            port = page_server.enter_context(server_on(f"http://127.0.0.1:{behind}"))
            address = f"http://127.0.0.1:{port}/ui/#/workers"
            opened = {form: pages(address, width=form[0], theme=form[1]) for form in FORMS}
            for page in opened.values():
                calm(page)

        for page in opened.values():  # a store behind HTTP is tried for a while before it is given up
            expect(page.locator(".banner").first).to_contain_text("does not answer", timeout=60_000)
        found = {str(form): faults(page) for form, page in opened.items()}
        for form, page in opened.items():
            go(page, "schedules")
            expect(page.get_by_role("button", name="Try again")).to_be_visible(timeout=60_000)
            found[f"{form}, schedules"] = faults(page)
            page.close()
    forget(pages, "503", "ERR_")

    assert found == dict.fromkeys(found, (False, []))
