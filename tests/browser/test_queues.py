"""Queues: which falls behind, and settings that count at once and can be undone."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import calm, toast


def setting(page, watched, queue, name):
    return page.evaluate(f"fetch('../api/queues/{queue}').then((answer) => answer.json())")[name]


def value_of(page, label):
    return page.locator(".settings dt", has_text=label).locator("xpath=following-sibling::dd[1]")


def test_a_queue_is_paused_and_the_pause_undone(pages, watched):
    page = pages(watched.at("queues"))
    calm(page)

    page.get_by_role("button", name="Pause reports").click()
    expect(page.get_by_role("button", name="Resume reports")).to_be_visible()
    expect(page.locator(".lede")).to_contain_text("reports is paused")
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Pause reports")).to_be_visible()

    assert setting(page, watched, "reports", "paused") is False


@pytest.mark.more("a browser takes seconds")
def test_the_page_of_a_queue_says_who_waits(pages, watched):
    page = pages(watched.at("queues"))
    page.get_by_role("link", name="reports").click()

    expect(page.locator("h1")).to_have_text("reports")
    expect(page.locator(".lede")).to_contain_text("4 jobs wait, the oldest for")
    expect(page.locator("section", has_text="Who waits").locator("tbody tr")).to_have_count(4)
    expect(page.locator("section", has_text="Who waits").locator("tbody tr").first).to_contain_text(
        "tenant 0"
    )
    expect(page.get_by_text("Nobody is at work")).to_be_visible()
    page.keyboard.press("Escape")

    expect(page.locator("h1")).to_have_text("Queues")


@pytest.mark.parametrize(
    ("name", "label", "text", "shown", "stored"),
    [
        ("max_running", "Running at once", "20", "20", 20),
        ("execute_rate", "Starts", "100 per 60 s", "100 per 1 min", {"count": 100, "per_s": 60.0}),
        ("fail_queue", "Failure jobs go to", "failures", "failures", "failures"),
    ],
)
def test_a_setting_changes_at_once_and_back(pages, watched, name, label, text, shown, stored):
    page = pages(watched.at(f"queues/feeds?edit={name}"))

    page.get_by_label(label, exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(value_of(page, label)).to_contain_text(shown)
    assert setting(page, watched, "feeds", name) == stored
    assert "edit=" not in page.url
    toast(page, "feeds:").get_by_role("button", name="Undo").click()
    expect(value_of(page, label)).not_to_contain_text(shown)

    assert setting(page, watched, "feeds", name) is None


@pytest.mark.more("a browser takes seconds")
def test_how_long_jobs_are_kept(pages, watched):
    page = pages(watched.at("queues/feeds?edit=retention"))

    page.get_by_label("Completed").fill("2 h")
    page.get_by_label("Failed", exact=True).fill("")
    page.get_by_role("button", name="Save").click()
    expect(value_of(page, "Finished jobs")).to_contain_text("completed 2 h, failed for ever, cancelled 14 d")
    toast(page, "feeds:").get_by_role("button", name="Undo").click()

    expect(value_of(page, "Finished jobs")).to_contain_text("as everywhere")


@pytest.mark.more("a browser takes seconds")
def test_what_is_not_understood_is_marked_and_nothing_is_sent(pages, watched):
    page = pages(watched.at("queues/feeds?edit=max_running"))

    page.get_by_label("Running at once", exact=True).fill("many")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not understood")
    assert setting(page, watched, "feeds", "max_running") is None
    page.keyboard.press("Escape")

    expect(value_of(page, "Running at once")).to_contain_text("no limit")


def test_rows_hold_still_when_a_queue_is_paused(pages, watched):
    page = pages(watched.at("queues"))
    calm(page)
    names = page.locator("tbody [data-row]")
    before = names.all_inner_texts()

    page.get_by_role("button", name=f"Pause {before[0]}", exact=True).click()
    expect(page.get_by_role("button", name=f"Resume {before[0]}", exact=True)).to_be_visible()
    expect(page.locator(".lede")).to_contain_text("paused")
    assert names.all_inner_texts() == before
    page.get_by_role("button", name=f"Resume {before[0]}", exact=True).click()

    expect(page.locator(".toast")).to_have_count(1)  # one Undo, for the newest change
    assert names.all_inner_texts() == before
