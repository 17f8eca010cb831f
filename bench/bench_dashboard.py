"""What does the dashboard cost: the server, its viewers' browsers, and the workers that write its history?

    python bench/bench_dashboard.py [--only viewers browser logbook] [--store sqlite postgres redis]

Viewers: CPU of a server process with ten viewers of the overview less that without any, idle and while a
second process moves 10,000 jobs a second through the same store, which holds 20,000 dead letters. Browser:
first paint, and CPU of the main thread, of the pages that change most, with 50 queues and the same load.
Logbook: a drain of no-op jobs in which it is turned on and off. CPU time throughout, but for the first paint:
a busy machine changes little. All of it takes about eleven minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import logbook_cost
import viewers
from results import table, write_section
from viewers import BATCH, PER_SECOND, QUEUES, VIEWERS, moving, serving

MOST_PAINT_S, MOST_MAIN_THREAD = 0.3, 15.0
PAGES = {"overview": "", "jobs": "jobs", "queues": "queues"}
STORES = ("sqlite", "postgres", "redis")
Section = tuple[str, str]
"""The text over a table, and the table."""


def found_browser() -> tuple[str, dict[str, str]]:
    """Without one there is nothing to measure, and what was recorded stays."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tools import browser as browsers

    found = browsers.find()
    if found is None:
        raise SystemExit(browsers.HOW)
    return found


def browser(seconds: float) -> list[list[str]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from playwright.sync_api import sync_playwright

    from tools import browser as browsers

    path, env = found_browser()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = f"sqlite:///{folder}/jobs.db"
        started = playwright.chromium.launch(
            executable_path=path, args=browsers.FLAGS, env={**os.environ, **env}
        )
        with serving(url) as (address, _), moving(url):
            time.sleep(QUEUES * BATCH / PER_SECOND + 1)  # every queue has had jobs
            return [_looked(started, f"{address}ui/#/{page}", name, seconds) for name, page in PAGES.items()]


def _looked(browser: Any, address: str, name: str, seconds: float) -> list[str]:
    paints = [_first_paint(browser, address) for _ in range(9)]
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_timeout(3000)
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, began = _task_seconds(tools), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    share = 100 * (_task_seconds(tools) - before) / (time.monotonic() - began)
    page.context.close()
    paint = min(paints)
    row = [name, f"{paint:.2f}", f"{statistics.median(paints):.2f}", "yes" if paint <= MOST_PAINT_S else "NO"]
    row += [f"{share:.1f}", "yes" if share <= MOST_MAIN_THREAD else "NO"]
    print("  ".join(row), flush=True)
    return row


def _first_paint(browser: Any, address: str) -> float:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    read = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while (painted := page.evaluate(read)) is None:
        page.wait_for_timeout(50)
    page.context.close()
    return float(painted) / 1000


def _task_seconds(tools: Any) -> float:
    metrics = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


# ------------------------------------------------------------------ all of it


def viewers_section(args: argparse.Namespace) -> Section:
    rows = [
        row for name in args.store for row in viewers.measured(name, args.seconds, args.rounds, args.dead)
    ]
    text = (
        f"{VIEWERS} viewers of the overview; {QUEUES} queues while it is busy, and {args.dead:,} dead "
        f"letters: CPU of the server process in % of a core, medians of {args.rounds} rounds of "
        f"{args.seconds:g} s with and without them. Added: the median of the differences."
    )
    return text, table(viewers.HEAD, rows)


def browser_section(args: argparse.Namespace) -> Section:
    text = (
        f"{QUEUES} queues through which {PER_SECOND:,} jobs a second move on the same machine. First "
        "contentful paint: the least disturbed of 9 loads without a cache, and their median. Main thread"
        f": its CPU time over {args.seconds:g} s in % of a core."
    )
    head = ["page", "first paint, s", "median, s", f"≤ {MOST_PAINT_S}"]
    return text, table([*head, "main thread, %", f"≤ {MOST_MAIN_THREAD:g}"], browser(args.seconds))


def logbook_section(args: argparse.Namespace) -> Section:
    rows = [
        logbook_cost.measured(name, args.logbook_rounds, args.stretch) for name in ("memory", *args.store)
    ]
    text = (
        f"No-op jobs, {logbook_cost.CONCURRENCY} at once. A round is off, on, on, off for {args.stretch:,} "
        f"jobs each, {args.logbook_rounds} rounds in one drain, and as many in between that stay off. "
        "CPU of the worker and of the servers of the store, and cost: medians of the rounds."
    )
    return text, table(logbook_cost.HEAD, rows)


SECTIONS = {
    "viewers": ("Dashboard: viewers", viewers_section),
    "browser": ("Dashboard: browser", browser_section),
    "logbook": ("Dashboard: cost of the logbook", logbook_section),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--store", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each figure is taken")
    parser.add_argument("--rounds", type=int, default=3, help="how often with and without viewers")
    parser.add_argument("--dead", type=int, default=20_000, help="dead letters in the store of the viewers")
    parser.add_argument("--logbook-rounds", type=int, default=11, help="of the drain with the logbook")
    parser.add_argument("--stretch", type=int, default=5000, help="jobs in a quarter of such a round")
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    args = parser.parse_args()
    if "browser" in args.only:
        found_browser()  # before minutes of other sections
    for name in args.only:
        title, section = SECTIONS[name]
        text, rows = section(args)
        if not args.only_print:
            write_section(title, f"{text}\n\n{rows}")


if __name__ == "__main__":
    main()
