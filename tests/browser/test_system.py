"""System: the store, tokens made and revoked, the audit log with its undo; and the login."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import forget, go, sign_in, toast


@pytest.mark.more("a browser takes seconds")
def test_a_wrong_token_is_refused_in_words(pages, token_server):
    page = pages(token_server.url)

    page.get_by_label("Token").fill("taskharbor_wrong")
    page.keyboard.press("Enter")

    expect(page.get_by_role("alert")).to_contain_text("This token is unknown, expired or revoked.")
    expect(page.get_by_label("Token")).to_be_focused()
    forget(pages, "401")


def test_a_token_is_made_used_and_revoked(pages, token_server):
    page = sign_in(pages, token_server, "admin")
    go(page, "system/tokens")

    page.get_by_role("button", name="New token…").click()
    page.get_by_label("For").fill("night shift")
    page.get_by_role("button", name="Create").click()
    made = page.locator(".secret").inner_text()
    page.get_by_role("button", name="I have it").click()
    other = pages(token_server.url)
    other.get_by_label("Token").fill(made)
    other.keyboard.press("Enter")
    expect(other.locator(".rail .foot")).to_contain_text("night shift")

    page.get_by_role("button", name="Revoke night shift").click()
    page.keyboard.press("u")
    expect(toast(page, "Undone: the token stays")).to_be_visible()
    page.get_by_role("button", name="Revoke night shift").click()
    toast(page, "Revoking night shift").get_by_role("button", name="Now").click()

    expect(page.get_by_role("button", name="Revoke night shift")).to_have_count(0)
    expect(other.get_by_label("Token")).to_be_visible(timeout=30_000)
    forget(pages, "401", "ERR_")


def test_only_an_admin_sees_tokens(pages, token_server):
    page = sign_in(pages, token_server, "operator")

    go(page, "system")
    expect(page.locator("nav.tabrow")).to_contain_text("Audit")

    assert "Tokens" not in page.locator("nav.tabrow").inner_text()


def test_a_setting_is_undone_from_the_audit_log(pages, watched):
    page = pages(watched.at("queues/audited?edit=max_running"))
    page.get_by_label("Running at once", exact=True).fill("7")
    page.keyboard.press("Enter")
    expect(page.locator(".settings")).to_contain_text("7")

    go(page, "system/audit")
    row = page.locator("tbody tr", has_text="audited").first
    expect(row).to_contain_text("max_running none → 7")
    row.get_by_role("button", name="Undo").click()
    expect(toast(page, "Undone")).to_be_visible()

    now = page.evaluate("fetch('../api/queues/audited').then((answer) => answer.json())")
    assert now["max_running"] is None


@pytest.mark.more("a browser takes seconds")
def test_the_store_says_what_it_is(pages, watched):
    page = pages(watched.at("system"))

    expect(page.locator("dl.facts").first).to_contain_text("sqlite")
    expect(page.locator(".lede")).to_contain_text("on sqlite")
