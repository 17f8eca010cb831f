"""The docs site in a real browser: nothing from elsewhere, readable on a phone, usable by all."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import TimeoutError as TookTooLong

from tests.browser.steps import violations
from tools import docs

pytestmark = [pytest.mark.more("builds the whole site"), pytest.mark.timeout(400)]

PAGES = ["", "guides/retries/", "reference/python/harbor/", "concepts/lifecycle/", "project/comparison/"]
OF_THE_THEME = {
    "landmark-unique": "each block of code has a navigation of its own",
    "scrollable-region-focusable": "wide tables scroll",
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    subprocess.run(
        [sys.executable, docs.ROOT / "tools/docs.py"], cwd=docs.ROOT, check=True, capture_output=True
    )
    serve = ["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(docs.SITE)]
    with subprocess.Popen(
        [sys.executable, *serve], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        port = re.search(r"port (\d+)", server.stdout.readline())
        assert port is not None
        yield f"http://127.0.0.1:{port[1]}/"
        server.terminate()


def test_pages_fit_a_phone_and_pass_axe(pages, site):
    found = []
    for number, place in enumerate(PAGES):
        theme = ("light", "dark")[number % 2]
        page = pages(site + place, width=380, theme=theme)
        widths = page.evaluate("[document.scrollingElement.scrollWidth, window.innerWidth]")
        wrong = [one for one in violations(page) if one[0] not in OF_THE_THEME]
        found.append((place, widths[0] <= widths[1], wrong))

    assert found == [(place, True, []) for place in PAGES]


def test_every_public_name_is_on_the_site(site):
    pages = (docs.SITE / "reference" / "python").rglob("*.html")
    shown = {
        name for page in pages for name in re.findall(r'id="(taskharbor[\w.]*)"', page.read_text("utf-8"))
    }

    lines = (docs.ROOT / "tests/surface/public_api.txt").read_text("utf-8").splitlines()
    names = [re.findall(r"taskharbor[\w.]*", line)[0] for line in lines]
    # Constructors are shown with their class, errors on their own page.
    own = [
        re.sub(r"^taskharbor\.(JobFailed|TaskHarborError)", r"taskharbor.errors.\1", name) for name in names
    ]
    assert len(own) > 1000
    assert [name for name in own if name.removesuffix(".__init__") not in shown] == []


def test_nothing_is_loaded_from_elsewhere(pages, site):
    page = pages(site)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.goto(site + "guides/retries/")
    page.wait_for_load_state("networkidle")

    assert asked
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []


def test_a_word_is_found(pages, site):
    page = pages(site)
    page.wait_for_load_state("networkidle")

    page.keyboard.press("/")
    page.keyboard.type("fence")

    page.get_by_role("link", name="Leases and fences").first.wait_for()


QUESTIONS = {
    "install": "start/first-job/",
    "postgres": "reference/postgres/",
    "cron": "guides/schedules/",
    "exactly once": "guides/transactions/",
    "pytest": "guides/testing/",
    "gpu": "guides/routing/",
    "kill -9": "start/kill-it/",
    "dead letters": "guides/retries/",
    "celery": "migrate/celery/",
    "scaling": "operations/scaling/",
    "workflow": "guides/workflows/",
    "cancel": "guides/cancellation/",
    "rate limit": "guides/limits/",
    "django": "guides/django/",
    "kubernetes": "operations/kubernetes/",
    "upgrade": "operations/upgrade/",
    "backup": "operations/managed-databases/",
    "monitoring": "guides/observing/",
    "tokens": "operations/security/",
    "one job at a time": "faq/",
    "sigterm": "guides/stopping/",
    "priority": "guides/enqueueing/",
    "windows": "faq/",
    "crash": "guides/crashes/",
}
FOUND = """() => {
  const found = [];
  const walk = (root) => root.querySelectorAll("*").forEach((one) => {
    if (one.shadowRoot) walk(one.shadowRoot);
    const url = one.tagName === "A" && one.href ? new URL(one.href) : null;
    if (url?.searchParams.has("h")) found.push(url.pathname.slice(1));
  });
  walk(document);
  return found;
}"""


def test_what_new_users_ask_for_is_among_the_first_pages_found(pages, site):
    page = pages(site)
    page.wait_for_load_state("networkidle")
    page.keyboard.press("/")
    wrong: dict[str, list[str]] = {}
    for words, wanted in QUESTIONS.items():
        page.keyboard.press("Control+A")
        page.keyboard.type(words)
        try:
            page.wait_for_function(
                f"(page) => [...new Set(({FOUND})())].slice(0, 5).includes(page)", arg=wanted
            )
        except TookTooLong:
            wrong[words] = list(dict.fromkeys(page.evaluate(FOUND)))[:5]

    assert wrong == {}
