"""What a person or a system asks for: no motion, forced colours, large letters, narrow rows, another zone."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.steps import calm, go, violations
from tests.browser.test_pages import PAGES, place_of

pytestmark = pytest.mark.more("a browser takes seconds, and every page is looked at")
MOVES = """() => {
  const moved = [], isMoved = ({ animationName, transitionDuration }) =>
    animationName !== "none" || transitionDuration.split(", ").some((time) => time !== "0s");
  for (const one of document.querySelectorAll("*"))
    for (const part of [undefined, "::before", "::after"])
      if (isMoved(getComputedStyle(one, part))) moved.push(`${one.tagName} ${part ?? ""}`);
  return moved;
}"""
UNSEEN = """() => {
  const ground = getComputedStyle(document.body).backgroundColor, unseen = [];
  for (const one of document.querySelectorAll(".st svg"))
    if (one.checkVisibility() && getComputedStyle(one).color === ground) unseen.push("shape");
  for (const one of document.querySelectorAll(".switch i"))
    if (getComputedStyle(one, "::after").borderTopColor === ground) unseen.push("knob");
  return unseen;
}"""
HEIGHT = "() => Math.round(document.querySelector('.jobs tbody tr').getBoundingClientRect().height)"


def every_page(page, server, look):
    """What is seen on each page, by its name."""
    found = {}
    for name in PAGES:
        go(page, place_of(name, server))
        page.wait_for_selector("main h1")
        calm(page)
        found[name] = look(page)
    return found


def test_nothing_moves_for_those_who_ask(pages, server):
    still, usual = pages(server.url, reduced_motion="reduce"), pages(server.at("more"))
    calm(usual)

    assert usual.evaluate(MOVES)
    assert every_page(still, server, lambda page: page.evaluate(MOVES)) == {name: [] for name in PAGES}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_forced_colours_leave_everything_visible(pages, server, theme):
    page = pages(server.url, theme=theme, forced_colors="active")

    assert page.evaluate("matchMedia('(forced-colors: active)').matches")
    found = every_page(page, server, lambda page: page.evaluate(UNSEEN) + faults(page))

    assert found == {name: [] for name in PAGES}


def faults(page):
    """What axe finds, without contrast: it takes the page's own colour of letters for the system's."""
    return [found for found in violations(page) if found[0] != "color-contrast"]


@pytest.mark.parametrize("width", [1440, 1280, 1024])
def test_letters_of_twice_the_size_need_no_scrolling_aside(pages, server, width):
    page = pages(server.url, width=width // 2, device_scale_factor=2)

    found = every_page(
        page, server, lambda page: page.evaluate("document.documentElement.scrollWidth > innerWidth")
    )

    assert found == dict.fromkeys(PAGES, False)


def test_rows_are_narrow_for_those_who_ask(pages, server):
    page = pages(server.at("jobs"))
    page.locator(".jobs tbody tr").first.wait_for()
    assert page.evaluate(HEIGHT) == 34

    go(page, "more")
    page.get_by_role("switch", name="Compact rows").press("Space")
    go(page, "jobs")
    page.reload()
    page.locator(".jobs tbody tr").first.wait_for()

    assert page.evaluate(HEIGHT) == 28


def test_times_are_those_of_the_browser_or_of_utc(pages, server):
    page = pages(server.at(f"jobs/{server.ids['failed']}"), timezone_id="Asia/Tokyo")
    zone = page.locator("dl.facts dt", has_text="Zone").locator("xpath=following-sibling::dd[1]")
    expect(zone).to_have_text("Asia/Tokyo")
    there = hour_of(page)

    go(page, "more")
    page.get_by_role("switch", name="Times in UTC").press("Space")
    go(page, f"jobs/{server.ids['failed']}")
    page.reload()
    expect(zone).to_have_text("UTC")

    assert (there - hour_of(page)) % 24 == 9


def hour_of(page):
    """The hour at which the job was enqueued, as the page says it."""
    enqueued = page.locator("dl.facts dt", has_text="Enqueued").locator("xpath=following-sibling::dd[1]")
    found = re.search(r"(\d\d):\d\d:\d\d", enqueued.inner_text())
    assert found is not None
    return int(found[1])
