"""Each deed by keyboard alone: Tab to it, Enter, and u takes it back."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import calm, forget, go, toast

MOST_TABS = 250
FOCUSED = """() => {
  const one = document.activeElement;
  return one.getAttribute("aria-label") || one.labels?.[0]?.textContent.trim() || one.textContent.trim();
}"""


def tab_to(page, name):
    """Press Tab until what has this name has the focus."""
    for _ in range(MOST_TABS):
        if page.evaluate(FOCUSED) == name:
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab does not lead to {name!r}")


def press(page, *names):
    for name in names:
        tab_to(page, name)
        page.keyboard.press("Enter")


def delete(page):
    press(page, "More actions")
    page.get_by_role("menu").wait_for()
    page.keyboard.press("ArrowUp")  # the last of the menu
    assert page.evaluate(FOCUSED) == "Delete…"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    press(page, "Delete 1")
    expect(toast(page, "Deleting 1 job in")).to_be_visible()


def deletes_a_job(page):
    delete(page)
    page.keyboard.press("u")
    expect(toast(page, "Undone: nothing was changed")).to_be_visible()
    delete(page)
    press(page, "Now")
    expect(toast(page, "Deleted 1 job")).to_be_visible()


def changes_a_setting(page):
    value = page.locator(".settings dt", has_text="Running at once").locator("xpath=following-sibling::dd[1]")
    press(page, "Change: Running at once")
    tab_to(page, "Running at once")
    page.keyboard.type("9")
    page.keyboard.press("Enter")
    expect(value).to_contain_text("9")
    press(page, "Undo")
    expect(value).to_contain_text("no limit")


def mutes_a_cause(page):
    page.locator(".group:not(.h) a", has_text="ReadTimeout").wait_for()
    press(page, page.locator(".group:not(.h) a", has_text="ReadTimeout").first.inner_text().strip())
    page.get_by_role("button", name="Mute").wait_for()
    press(page, "Mute")
    expect(page.get_by_role("link", name="Muted 1")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="Muted 0")).to_be_visible()


def pauses_and_runs_a_schedule(page):
    press(page, "Pause nightly")
    expect(page.get_by_role("button", name="Resume nightly")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Pause nightly")).to_be_visible()
    press(page, "nightly")
    page.get_by_role("button", name="Run nightly now").wait_for()
    press(page, "Run nightly now")
    expect(toast(page, "is enqueued")).to_be_visible()
    page.keyboard.press("u")
    expect(toast(page, "Taken back")).to_be_visible()


JOURNEYS = {
    "queues/feeds": changes_a_setting,
    "failures": mutes_a_cause,
    "schedules": pauses_and_runs_a_schedule,
    "jobs/{failed-5}": deletes_a_job,
}


@pytest.mark.more("a browser takes seconds")
@pytest.mark.parametrize("place", JOURNEYS)
def test_a_deed_needs_no_mouse(pages, watched, server, place):
    on = server if "{" in place else watched  # some tests count the jobs of the other
    page = pages(on.at(place.format(**on.ids)))
    calm(page)

    JOURNEYS[place](page)


@pytest.mark.more("a browser takes seconds")
def test_tokens_need_no_mouse(pages, token_server):
    page = pages(token_server.url)
    tab_to(page, "Token")
    page.keyboard.type(token_server.tokens["admin"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".rail", state="attached")
    go(page, "system/tokens")
    calm(page)

    press(page, "New token…")
    tab_to(page, "For")
    page.keyboard.type("by keyboard")
    press(page, "Create", "I have it", "Revoke by keyboard")
    page.keyboard.press("u")
    expect(toast(page, "Undone: the token stays")).to_be_visible()
    press(page, "Revoke by keyboard", "Now")

    expect(page.get_by_role("button", name="Revoke by keyboard")).to_have_count(0)
    forget(pages, "401")
