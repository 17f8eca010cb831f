"""A job list while thousands of jobs a second come in: nothing moves, and rows show what changes.

Server and load are processes of their own: so the rate holds on two cores, and it is asserted.
"""

import asyncio
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import expect

from taskharbor.testing.http_server import HttpServer
from tests.browser.moving import ROWS, put_seen

WATCH = """() => {
  const seen = window.seen = {};
  const note = () => {
    for (const row of document.querySelectorAll(".jobs tbody tr")) {
      const percent = row.querySelector(".c-when").textContent.match(/\\d+\\s?%/);
      if (percent) (seen[row.dataset.id] ??= new Set()).add(percent[0]);
    }
  };
  const all = {subtree: true, childList: true, characterData: true};
  new MutationObserver(note).observe(document.querySelector(".jobs tbody"), all);
}"""
CHANGES = "() => Object.values(window.seen).map((percents) => percents.size)"


@dataclass
class Busy:
    """What was seen of a list under load."""

    page: object
    focused: str
    rate: float = 0.0
    share: float = 0.0
    changes: tuple[int, ...] = ()


@pytest.fixture
def shown(tmp_path):
    """A store with as many jobs as a list shows, and the address of its server."""
    store = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    asyncio.run(put_seen(store))
    with HttpServer(store) as server:
        yield f"{server.url}/ui/#/jobs", store


def test_a_list_holds_still_and_shows_what_changes(shown, pages):
    """The small version of the next one."""
    busy = watched_list(pages, *shown, rate=1000, seconds=2.5)

    assert busy.rate >= 900
    check(busy, changes=1)


@pytest.mark.long
def test_a_list_holds_still_under_ten_thousand_jobs_a_second(shown, pages):
    busy = watched_list(pages, *shown, rate=10_000, seconds=30)

    assert busy.rate >= 9000
    assert busy.share <= 0.15
    check(busy, changes=10)


def check(busy, *, changes):
    """The row that was selected still is; all rows have changed so often, and show how they ended."""
    assert busy.page.evaluate("document.activeElement.getAttribute('href')") == busy.focused
    expect(busy.page.locator(".bulk b")).to_have_text("1 selected")
    expect(busy.page.locator(".pillnew")).to_have_text("50+ new")
    assert len(busy.changes) == ROWS
    assert min(busy.changes) >= changes
    expect(busy.page.locator(".jobs tbody .st.completed")).to_have_count(ROWS)


def watched_list(pages, url, store, *, rate, seconds):
    """A list with a focused and selected row while so many jobs a second come in."""
    page = pages(url)
    expect(page.locator(".jobs tbody tr")).to_have_count(ROWS)
    page.keyboard.press("j")
    page.keyboard.press("x")
    busy = Busy(page, page.evaluate("document.activeElement.getAttribute('href')"))
    page.evaluate(WATCH)
    with loaded(store, rate) as reached:
        expect(page.locator(".jobs tbody .st.running")).to_have_count(ROWS)
        busy.share = share_of_main_thread(page, seconds)
        seen_by(page, time.monotonic() + 30)
    busy.rate, busy.changes = reached[0], page.evaluate(CHANGES)
    return busy


def seen_by(page, deadline):
    """Wait until each row has changed: a busy machine looks later. Not a function in the page: its policy."""
    while len(page.evaluate(CHANGES)) < ROWS and time.monotonic() < deadline:
        page.wait_for_timeout(100)


@contextmanager
def loaded(store, rate):
    """Load from a process of its own; afterwards the list has the jobs a second that it put in."""
    reached: list[float] = []
    command = [sys.executable, "-m", "tests.browser.moving", store, str(rate)]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield reached
        reached.append(float(process.communicate(timeout=60)[0]))
    finally:
        process.kill()
        process.communicate()


def share_of_main_thread(page, seconds):
    """How much of a core the page takes for so long."""
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_s():
        metrics = {one["name"]: one["value"] for one in meter.send("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"]

    before, begun = busy_s(), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    return (busy_s() - before) / (time.monotonic() - begun)
