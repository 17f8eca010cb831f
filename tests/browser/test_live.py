"""Live updates: new jobs wait to be asked for, a lost stream is announced and mended, viewers agree."""

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from taskharbor.harbor import Harbor
from taskharbor.testing import SimulatedClock
from taskharbor.testing.http_server import HttpServer
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.moving import ROWS, SEEN, put_seen
from tests.browser.steps import calm, command, go, toast
from tests.integration.http.api import served

CANCEL = "id => fetch(`../api/jobs/${id}/cancel`, {method: 'POST'})"
_thread = ThreadPoolExecutor(1)
"""That of the tests has a loop of playwright that runs."""

AWAY = {
    "type": "urn:taskharbor:problem:store-unavailable",
    "title": "Store unavailable",
    "status": 503,
    "detail": "the store does not answer",
    "request_id": "r-17",
    "retryable": True,
}


@pytest.fixture
def empty(tmp_path):
    """A server with an empty store, and a function that puts jobs in."""
    app = create_app(
        Harbor(f"sqlite:///{tmp_path}/jobs.db"), ServerConfig(any_type=True), local_callers_are_admin=True
    )
    with served(app) as port:

        def put(count):
            body = json.dumps(
                {"jobs": [{"type": "ping", "payload": {"n": n}} for n in range(count)]}
            ).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/jobs/batch", body, {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request).close()

        yield f"http://127.0.0.1:{port}/ui/", put


def test_an_empty_store_says_how_to_begin(pages, empty):
    url, put = empty
    page = pages(url)

    expect(page.locator("h1")).to_have_text("No jobs yet")
    expect(page.locator("pre").first).to_contain_text(".enqueue(")
    put(1)

    expect(page.locator("h1")).not_to_have_text("No jobs yet")


def test_a_harbor_in_which_nothing_happens_is_live(pages):
    """Its stream sends nothing after the first event, which comes before the browser has painted."""
    harbor = Harbor("memory://", clock=SimulatedClock())  # its time never passes: no event follows
    with served(create_app(harbor, local_callers_are_admin=True)) as port:
        page = pages(f"http://127.0.0.1:{port}/ui/")
        expect(page.locator("h1")).to_have_text("No jobs yet")
        page.add_init_script("requestAnimationFrame = (paint) => setTimeout(paint, 1000)")
        page.reload()

        expect(page.locator(".live")).to_have_text("Live")
        expect(page.locator(".rail li", has_text="Workers")).to_contain_text("0")


def test_a_browser_without_a_locale_is_served(pages, empty):
    url, _ = empty
    page = pages(url)
    page.add_init_script("Object.defineProperty(navigator, 'language', { get: () => 'en-US@posix' })")
    page.reload()

    expect(page.locator("h1")).to_have_text("No jobs yet")


def test_new_jobs_gather_and_the_focus_stays(pages, empty):
    url, put = empty
    put(5)
    page = pages(f"{url}#/jobs")
    expect(page.locator(".jobs tbody tr")).to_have_count(5)
    page.keyboard.press("j")
    page.keyboard.press("x")
    focused = page.evaluate("document.activeElement.getAttribute('href')")

    put(37)
    pill = page.locator(".pillnew")
    expect(pill).to_have_text("37 new")
    assert page.evaluate("document.activeElement.getAttribute('href')") == focused
    expect(page.locator(".bulk b")).to_have_text("1 selected")
    expect(page.locator(".jobs tbody tr")).to_have_count(5)
    pill.click()

    expect(page.locator(".jobs tbody tr")).to_have_count(42)
    expect(pill).to_have_count(0)


def test_rows_follow_a_stream_that_opens_after_the_list_came(pages, empty):
    url, put = empty
    put(1)
    page, held = pages(url), []
    page.route("**/api/events?*", lambda route: held.append(route))  # a builtin has no place for its mark
    go(page, "jobs")
    page.reload()
    row = page.locator(".jobs tbody tr")
    expect(row).to_contain_text("ready")
    page.route("**/api/jobs?*", lambda route: route.abort())  # the list itself is not asked again
    held.pop(0).continue_()
    calm(page)

    page.evaluate(CANCEL, row.get_attribute("data-id"))

    expect(row).to_contain_text("cancelled")


def test_a_job_that_changed_while_its_list_was_on_its_way_is_shown_as_it_is(pages, empty):
    url, put = empty
    put(1)
    page, held = pages(url), []
    calm(page)
    page.route("**/api/jobs?*", lambda route: held.append((route, route.fetch())))
    go(page, "jobs")
    while not held:
        page.wait_for_timeout(50)
    (route, listed), *_ = held
    page.evaluate(CANCEL, listed.json()["items"][0]["id"])
    route.fulfill(response=listed)

    expect(page.locator(".jobs tbody tr")).to_contain_text("cancelled")


def test_two_viewers_see_what_one_does(pages, server):
    one, other = pages(server.url), pages(server.url)
    calm(other)

    command(one, "pause webhooks", "Pause queue webhooks")
    expect(toast(one, "Queue webhooks is paused")).to_be_visible()
    expect(other.locator("#queues tr", has_text="webhooks")).to_contain_text("paused")
    one.keyboard.press("u")

    expect(other.locator("#queues tr", has_text="webhooks")).not_to_contain_text("paused")


def test_a_lost_stream_is_announced_and_mended(pages, server):
    page = pages(server.url)
    calm(page)

    page.context.set_offline(True)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.route("**/api/events*", lambda route: route.abort())
    page.keyboard.press("p")
    page.keyboard.press("p")
    expect(page.locator(".banner").first).to_contain_text("The live stream was lost")
    expect(page.locator(".live")).to_contain_text("Not live")
    expect(page.locator("#queues tbody tr").first).to_be_visible()
    page.context.set_offline(False)
    page.unroute("**/api/events*")

    expect(page.locator(".live")).to_have_text("Live")
    expect(page.locator(".banner")).to_have_count(0)
    pages.trouble.clear()  # the browser reports every refused connection


@pytest.mark.more("a server is killed and started again")
def test_a_server_that_was_killed_is_found_again(pages, tmp_path):
    store = f"sqlite:///{tmp_path}/jobs.db"
    _thread.submit(asyncio.run, put_seen(store)).result()
    with HttpServer(store) as server:
        page = pages(f"{server.url}/ui/")
        calm(page)
        expect(page.locator("#queues tbody tr")).to_have_count(1)

        server.kill()
        expect(page.locator(".banner").first).to_contain_text("The live stream was lost")
        expect(page.locator(".live")).to_contain_text("Not live")
        expect(page.locator("#queues tbody tr", has_text=SEEN)).to_contain_text(str(ROWS))
        _thread.submit(asyncio.run, put_seen(store, "later")).result()
        server.start()

        expect(page.locator(".live")).to_have_text("Live")
        expect(page.locator(".banner")).to_have_count(0)
        expect(page.locator("#queues tbody tr", has_text="later")).to_contain_text(str(ROWS))
        page.close()
    pages.trouble.clear()  # the browser reports every refused connection


def test_a_hidden_page_closes_its_stream_and_catches_up(pages, server):
    page, other = pages(server.at("jobs")), pages(server.at("jobs"))
    calm(page)
    hide = """isHidden => {
      Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    streams = []
    page.on("request", lambda request: streams.append(request.url) if "/api/events?" in request.url else None)

    page.evaluate(hide, True)
    other.evaluate("fetch('../api/queues/exports/pause', {method: 'POST'})")
    page.evaluate(hide, False)
    calm(page)
    command(page, "resume exports", "Resume queue exports")

    expect(page.locator(".toast")).to_contain_text("Queue exports runs again")
    assert len(streams) == 1


def test_live_can_be_paused(pages, server):
    page = pages(server.url)
    calm(page)

    page.keyboard.press("p")
    expect(page.locator(".banner")).to_contain_text("Live updates are paused")
    page.keyboard.press("p")

    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator(".live")).to_have_text("Live")


def test_no_request_leaves_the_server(pages, server):
    page = pages(server.url)
    hosts = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))

    for place in ("jobs", f"jobs/{server.ids['failed']}", "failures", "queues", "workers", "system", ""):
        page.evaluate("place => { location.hash = '#/' + place; }", place)
        page.wait_for_selector("main h1")
        page.wait_for_timeout(200)

    assert hosts == {f"127.0.0.1:{server.port}"}


def test_the_store_away_keeps_the_last_numbers(pages, tmp_path):
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")
    app = create_app(harbor, ServerConfig(any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        page = pages(f"http://127.0.0.1:{port}/ui/")
        page.route("**/api/jobs?*", lambda route: route.fulfill(status=503, body=json.dumps(AWAY)))
        page.evaluate("location.hash = '#/jobs'")

        expect(page.locator(".card.empty")).to_contain_text("The jobs could not be listed")
        expect(page.locator(".card.empty")).to_contain_text("r-17")
        page.unroute("**/api/jobs?*")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".card.empty")).to_contain_text("No jobs yet")
    page.close()  # it would ask again
    pages.trouble.clear()  # the 503, and the server that went away
