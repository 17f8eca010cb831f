"""Workers and schedules: who is slow, who fell silent, what runs next."""

import asyncio
import threading
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.model.presence import WorkerReport
from tests.browser.steps import calm, forget, toast


def test_the_slow_worker_is_named_in_the_first_sentence(pages, watched):
    page = pages(watched.at("workers"))

    expect(page.locator(".lede")).to_contain_text("web-3 is slow: its jobs take 4.0 times as long")
    page.locator(".lede").get_by_role("link", name="web-3").click()

    expect(page.locator("h1")).to_have_text("web-3")
    expect(page.locator(".lede")).to_contain_text("4.0 times as long as the same jobs on other workers")


@pytest.mark.more("a browser takes seconds")
def test_by_speed_the_slowest_comes_first(pages, watched):
    page = pages(watched.at("workers"))

    page.get_by_role("link", name="By speed").click()

    expect(page.locator(".wk [data-row]").first).to_have_text("web-3")
    assert "by=speed" in page.url


@pytest.mark.more("a browser takes seconds")
def test_the_page_of_a_worker_shows_what_it_runs(pages, watched):
    page = pages(watched.at("workers/gpu-a"))

    expect(page.locator("tbody tr")).to_contain_text("embed_text")
    expect(page.get_by_role("img", name="1 of 2 slots busy")).to_be_visible()


def report(store, seconds):
    async def send():
        harbor = Harbor(store)
        try:
            driver = await harbor.client.adriver()
            lost = WorkerReport(
                worker_id="gone-1",
                name="gone-1",
                host="node-9",
                running=("019e0000-0000-7000-8000-000000000001",),
            )
            await driver.report_worker(lost, ttl=timedelta(seconds=seconds))
        finally:
            await harbor.aclose()

    # The thread of the tests has a loop of playwright that runs.
    threading.Thread(target=asyncio.run, args=(send(),)).start()


def test_a_worker_that_falls_silent_is_shown_as_lost(pages, watched):
    page = pages(watched.at("workers"))
    calm(page)

    report(watched.store, 600)
    expect(page.locator(".wk", has_text="gone-1")).to_be_visible()
    report(watched.store, 6)  # long enough for the server to look in the meantime
    expect(page.get_by_text("gone-1 fell silent")).to_be_visible()
    expect(page.locator(".wk", has_text="gone-1")).to_contain_text("lost")
    page.get_by_role("button", name="Dismiss").click()

    expect(page.get_by_text("gone-1 fell silent")).to_have_count(0)


def test_a_schedule_is_paused_and_the_pause_undone(pages, watched):
    page = pages(watched.at("schedules"))

    expect(page.locator(".lede")).to_contain_text("Next: ")
    page.get_by_role("button", name="Pause nightly").click()
    expect(page.get_by_role("button", name="Resume nightly")).to_be_visible()
    page.keyboard.press("u")

    expect(page.get_by_role("button", name="Pause nightly")).to_be_visible()


def test_a_schedule_is_run_now_and_the_job_taken_back(pages, watched):
    page = pages(watched.at("schedules/nightly"))

    page.get_by_role("button", name="Run nightly now").click()
    expect(toast(page, "is enqueued")).to_be_visible()
    page.keyboard.press("u")

    expect(toast(page, "Taken back")).to_be_visible()


@pytest.mark.more("a browser takes seconds")
def test_the_page_of_a_schedule_lists_next_and_last_runs(pages, watched):
    page = pages(watched.at("schedules/poll_feeds"))

    expect(page.locator(".times li")).to_have_count(10)
    expect(page.locator("section", has_text="Last runs").locator("li")).to_contain_text("completed")


@pytest.mark.more("a browser takes seconds")
def test_a_cron_line_can_be_tried(pages, watched):
    page = pages(watched.at("schedules?tz=Europe/Berlin"))

    page.get_by_label("Cron").fill("30 2 29 3 *")
    expect(page.locator(".times li")).to_have_count(10)
    page.get_by_label("Cron").fill("61 2 * * *")

    expect(page.get_by_role("alert")).to_be_visible()
    forget(pages, "422")
