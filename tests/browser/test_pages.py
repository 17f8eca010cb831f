"""Every page, light and dark, on a desk and on a phone: whole, without errors, and for everybody."""

import json
from importlib.resources import files

import pytest
from playwright.sync_api import expect

AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PAGES = [
    "overview", "jobs", "job", "running", "failures", "queues", "workers", "schedules", "system", "more",
]  # fmt: skip
PLACES = {"overview": "", "job": "jobs/{failed}", "running": "jobs/{running}"}


def place_of(name, server):
    return PLACES.get(name, name).format(**server.ids)


def violations(page):
    """What axe finds, as (rule, element)."""
    # Not by a script element: the content security policy would refuse it.
    found = page.evaluate(f"async () => {{ {AXE}; return await axe.run(document, {json.dumps(RULES)}); }}")
    return [(one["id"], one["nodes"][0]["target"]) for one in found["violations"]]


def wait_until_calm(page):
    """Until the stream is open and nothing is on its way."""
    expect(page.locator(".live:not(.stale)")).to_contain_text("Live")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


MORE = pytest.mark.more("the other half of the table")
FORMS = [
    (1440, "light"),
    (390, "dark"),
    pytest.param(1440, "dark", marks=MORE),
    pytest.param(390, "light", marks=MORE),
]


@pytest.mark.parametrize(("width", "theme"), FORMS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_for_everybody(pages, server, name, width, theme):
    page = pages(server.at(place_of(name, server)), width=width, theme=theme)
    wait_until_calm(page)

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(page) == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
