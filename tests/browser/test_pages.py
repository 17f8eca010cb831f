"""Every page, light and dark, on a desk and on a phone: whole, without errors, and for everybody."""

import pytest

from tests.browser.steps import calm, go, violations

PAGES = [
    "overview", "jobs", "job", "running", "failures", "queues", "workers", "schedules", "system", "more",
]  # fmt: skip
PLACES = {"overview": "", "job": "jobs/{failed}", "running": "jobs/{running}"}


def place_of(name, server):
    return PLACES.get(name, name).format(**server.ids)


MORE = pytest.mark.more("the other half of the table")
FORMS = [
    (1440, "light"),
    (390, "dark"),
    pytest.param(1440, "dark", marks=MORE),
    pytest.param(390, "light", marks=MORE),
]


@pytest.mark.parametrize(("width", "theme"), FORMS)
def test_pages_are_whole_and_for_everybody(pages, server, width, theme):
    page = pages(server.url, width=width, theme=theme)
    found = {}
    for name in PAGES:
        go(page, place_of(name, server))
        page.wait_for_selector("main h1")
        calm(page)
        is_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        found[name] = (is_wide, violations(page))

    assert found == {name: (False, []) for name in PAGES}


@pytest.mark.parametrize("width", [1440, 390])
def test_the_first_key_leads_to_the_content(pages, server, width):
    page = pages(server.url, width=width)
    calm(page)

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")

    assert page.evaluate("document.activeElement.id") == "main"
