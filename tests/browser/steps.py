"""What tests of several pages do and look for."""

from importlib.resources import files

from playwright.sync_api import expect

PATIENT = 30_000
_AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def calm(page):
    """Until the stream is open and nothing is on its way."""
    expect(page.locator(".live:not(.stale)")).to_contain_text("Live", timeout=PATIENT)
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=PATIENT)


def toast(page, text):
    return page.locator(".toast").filter(has_text=text)


def go(page, place):
    page.evaluate("place => { location.hash = '#/' + place; }", place)


def command(page, text, label):
    """Run the command of this label; what it offers follows from the newest look, which may be on its way."""
    page.keyboard.press("Control+k")
    page.keyboard.type(text)
    expect(page.locator(".cmd [aria-selected=true]")).to_contain_text(label)
    page.keyboard.press("Enter")


def forget(pages, *statuses):
    """Refusals that the test provoked are no trouble."""
    pages.trouble[:] = [text for text in pages.trouble if not any(status in text for status in statuses)]


def sign_in(pages, token_server, role, **options):
    page = pages(token_server.url, **options)
    page.get_by_label("Token").fill(token_server.tokens[role])
    page.keyboard.press("Enter")
    page.wait_for_selector(".rail", state="attached")
    calm(page)
    forget(pages, "401")
    return page


def violations(page):
    """What axe finds, as (rule, element)."""
    if page.evaluate("typeof axe === 'undefined'"):
        # Not by a script element: the content security policy would refuse it.
        page.evaluate(f"() => {{ {_AXE} }}")
    found = page.evaluate("(rules) => axe.run(document, rules)", _RULES)
    return [(one["id"], one["nodes"][0]["target"]) for one in found["violations"]]
