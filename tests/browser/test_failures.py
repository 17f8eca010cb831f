"""Failures by cause: found, explained, retried and taken back."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.observed import CAUSE, DEAD, RELEASE
from tests.browser.steps import calm, forget, go, toast

NEW = CAUSE.title


@pytest.mark.more("a browser takes seconds")
def test_the_list_says_what_fails_and_what_is_new(pages, watched):
    page = pages(watched.at("failures"))

    expect(page.locator(".lede")).to_contain_text(
        re.compile(r"\d+ attempts failed in 24 hours, for 2 causes")
    )
    expect(page.locator(".lede")).to_contain_text(f"new since release {RELEASE}")
    first = page.locator(".group:not(.h)").first
    expect(first).to_contain_text(NEW)
    expect(first).to_contain_text("in send_welcome")
    expect(first).to_contain_text("app/mail/smtp.py in connect")
    expect(first).to_contain_text(f"{DEAD}")
    expect(page.get_by_role("link", name=f"Dead letters, {DEAD}")).to_have_attribute(
        "href", "#/jobs?q=state%3Afailed"
    )


def test_a_cause_opens_in_place_and_says_what_its_jobs_share(pages, watched):
    page = pages(watched.at("failures"))
    calm(page)

    page.keyboard.press("j")
    page.keyboard.press("Enter")
    opened = page.get_by_role("region", name=f"Cause: {NEW}")
    expect(opened).to_contain_text(f"Began with release {RELEASE}")
    expect(opened).to_contain_text(f"{DEAD} jobs have used up their attempts")
    expect(opened.locator(".same")).to_contain_text('template="welcome"')
    expect(opened.locator(".trace em")).to_contain_text("TimeoutError: timed out connecting")
    assert f"open={CAUSE.id}" in page.url
    page.keyboard.press("Enter")

    expect(opened).to_have_count(0)


def test_all_of_a_kind_are_previewed_held_and_taken_back(pages, watched):
    page = pages(watched.at(f"failures/{CAUSE.id}"))

    page.get_by_role("button", name=f"Retry all {DEAD}…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Retry {DEAD} jobs?")
    expect(dialog.locator(".lines li")).to_have_count(10)
    dialog.get_by_role("button", name=f"Retry {DEAD}", exact=True).click()
    expect(toast(page, f"Retrying {DEAD} jobs in")).to_be_visible()
    page.keyboard.press("u")

    expect(toast(page, "Undone: nothing was changed")).to_be_visible()
    counted = page.evaluate("fetch('../api/jobs/count?q=state:failed').then((answer) => answer.json())")
    assert counted["count"] == DEAD


def test_muting_and_snoozing_can_be_undone(pages, watched):
    page = pages(watched.at("failures"))
    page.get_by_role("link", name="ReadTimeout").click()

    page.get_by_role("button", name="Mute").click()
    expect(page.get_by_role("link", name="Muted 1")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="Muted 0")).to_be_visible()
    page.get_by_role("link", name="ReadTimeout").wait_for()
    page.get_by_role("button", name="Snooze until next release").click()
    expect(page.get_by_role("link", name="Snoozed 1")).to_be_visible()
    page.get_by_role("link", name="Snoozed 1").click()
    page.get_by_role("link", name="ReadTimeout").click()
    page.get_by_role("button", name="Open again").click()

    expect(page.get_by_role("link", name="Snoozed 0")).to_be_visible()


DETAIL = re.compile(f"/api/failures/{CAUSE.id}")
PLACES = """buttons => buttons.map(one => {
  const { left, top } = one.getBoundingClientRect();
  return [one.textContent.replace(/ [\\d,+]+/, ""), left, top];
})"""


def places(page):
    """Where the buttons of a cause are, by what they do."""
    return page.locator(".open > .span:first-child button").evaluate_all(PLACES)


CHANGES: dict[str, dict[str, Any]] = {
    "long": {"began": "Known, " + "for long " * 60, "outlook": "More failed. " * 60},
    "many": {"dead_now": {"count": 10_000, "exact": False}, "outlook": "Many."},
    "none": {"dead_now": {"count": 0, "exact": True}, "outlook": "None is dead."},
}


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("change", CHANGES)
def test_buttons_of_a_cause_stay_where_they_are_when_it_changes(pages, watched, change, width):
    page = pages(watched.at(f"failures/{CAUSE.id}"), width=width)
    page.locator(".open .lines li").first.wait_for()
    before = places(page)

    def answer(route):
        response = route.fetch()
        route.fulfill(response=response, body=json.dumps(response.json() | CHANGES[change]))

    page.route(DETAIL, answer)
    go(page, f"failures/{CAUSE.id}?window=7d")  # the page stays, and asks again
    expect(page.locator(".open")).to_contain_text(CHANGES[change]["outlook"].strip())

    assert [name for name, _left, _top in before] == [
        "Retry one to see", "Retry all…", "Snooze until next release", "Mute",
    ]  # fmt: skip
    assert places(page) == before


def test_buttons_of_a_cause_stay_where_they_are_while_it_loads(pages, watched):
    page, held = pages(watched.at("failures")), []
    calm(page)
    page.route(DETAIL, lambda route: held.append(route))
    with page.expect_request(DETAIL):
        page.get_by_role("link", name=NEW).click()
    expect(page.locator(".open")).to_be_visible()
    before = places(page)

    held[0].continue_()
    expect(page.locator(".open .lines li").first).to_be_visible()

    assert places(page) == before


@pytest.mark.more("a browser takes seconds")
def test_filters_are_in_the_address(pages, watched):
    page = pages(watched.at("failures"))

    page.get_by_label("Queue:").select_option("webhooks")
    expect(page.locator(".group:not(.h)")).to_have_count(1)
    assert "queue=webhooks" in page.url
    page.get_by_label("Queue:").select_option("reports")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.get_by_role("link", name="Show all").click()

    expect(page.locator(".group:not(.h)")).to_have_count(2)


@pytest.mark.more("a browser takes seconds")
def test_a_cause_that_is_not_known_says_so(pages, watched):
    page = pages(watched.at("failures/0123456789abcdef"))

    expect(page.get_by_role("alert")).to_contain_text("This cause is not known any more")
    forget(pages, "404")
