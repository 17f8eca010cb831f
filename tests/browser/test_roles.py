"""Each role sees the buttons of what it may do, and no others; the routes refuse the rest."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import calm

RETRY = """id => fetch(`../api/jobs/${id}/retry`, {
  method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"
}).then((answer) => answer.status)"""
CHANGES = ["Retry", "Edit and retry…", "New job"]


def sign_in(pages, token_server, role):
    page = pages(token_server.url)
    page.get_by_label("Token").fill(token_server.tokens[role])
    page.keyboard.press("Enter")
    page.wait_for_selector(".rail", state="attached")
    calm(page)
    pages.expect("401 /api/session")
    return page


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True), ("admin", True)])
def test_what_a_role_may_change_is_drawn(pages, token_server, server, role, may):
    page = sign_in(pages, token_server, role)

    seen = []
    for place in ("jobs", f"jobs/{server.ids['failed']}"):
        page.evaluate("place => { location.hash = '#/' + place; }", place)
        page.wait_for_selector(".jobs tbody tr, aside")
        seen += [name for name in CHANGES if page.get_by_role("button", name=name, exact=True).count()]

    assert sorted(seen) == (sorted(CHANGES) if may else [])
    assert page.locator(".tick").count() == 0 or may
    expect(page.locator(".banner.plain")).to_have_count(0 if may else 1)


def test_a_viewer_does_not_see_secrets_and_is_refused(pages, token_server, server):
    page = sign_in(pages, token_server, "viewer")

    page.evaluate("place => { location.hash = '#/' + place; }", f"jobs/{server.ids['failed']}")
    expect(page.locator(".json .x")).to_have_text("hidden")
    assert "secret-value" not in page.content()
    answer = page.evaluate(RETRY, server.ids["failed"])

    assert answer == 403
    pages.expect(f"403 /api/jobs/{server.ids['failed']}/retry")


def test_signing_out_leads_to_the_login(pages, token_server):
    page = sign_in(pages, token_server, "operator")

    page.get_by_role("button", name="Preferences").click()
    page.get_by_role("menuitem", name="Sign out").click()

    expect(page.get_by_label("Token")).to_be_visible()
    pages.expect("401 /api/session")
