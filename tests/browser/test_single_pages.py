"""The pages of one queue, cause, worker and schedule, tabs and forms: whole, and for everybody."""

import pytest

from tests.browser.observed import CAUSE
from tests.browser.steps import calm, forget, violations

PLACES = [
    f"failures/{CAUSE.id}",
    f"failures?open={CAUSE.id}",
    "queues/mail?edit=max_running",
    "queues/*?edit=retention",
    "workers/gpu-a",
    "schedules/poll_feeds",
    "system/audit",
    "system/tokens",
]


@pytest.mark.more("eight pages each, and axe looks at every element")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_single_pages_are_whole_and_for_everybody(pages, watched, width, theme):
    page = pages(watched.url, width=width, theme=theme)
    found = {}
    for place in PLACES:
        page.goto(watched.at(place))
        page.reload()
        page.wait_for_selector("main h1")
        calm(page)
        is_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        found[place] = (is_wide, violations(page))

    assert found == {place: (False, []) for place in PLACES}


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.more("the other theme"))])
def test_the_login_is_for_everybody(pages, token_server, theme):
    page = pages(token_server.url, width=390, theme=theme)

    assert violations(page) == []
    forget(pages, "401")
