"""Workflows: the list, the graph, the tree; events, retry and cancel after a look at what they would do."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from taskharbor.drivers.messages import Claim, Query
from taskharbor.harbor import Harbor
from taskharbor.model.bonds import Bonds
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser import flows
from tests.browser.conftest import Server, TokenServer
from tests.browser.steps import calm, forget, go, sign_in, toast, violations
from tests.integration.http.api import make_token, served, token_file

SCRIPT = '<img src=x onerror="window.struck=1"><script>window.struck=1</script>${1}\'"`'
MORE = pytest.mark.more("the other half of the table")
FORMS = [
    (1440, "light"),
    (390, "dark"),
    pytest.param(1440, "dark", marks=MORE),
    pytest.param(390, "light", marks=MORE),
]


@pytest.fixture(scope="module")
def flowing(tmp_path_factory):
    """A server with workflows in its store."""
    store = f"sqlite:///{tmp_path_factory.mktemp('flows')}/jobs.db"
    ids = asyncio.run(flows.fill(store))
    app = create_app(Harbor(store), ServerConfig(name="prod", any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        yield Server(port, store, ids)


@pytest.fixture(scope="module")
def guarded(flowing, tmp_path_factory):
    """The same store behind a server that asks for tokens."""
    folder = tmp_path_factory.mktemp("flow-tokens")
    file = token_file(folder)
    tokens = {role: make_token(file, role) for role in ("viewer", "operator")}
    app = create_app(Harbor(flowing.store), ServerConfig(tokens=folder / "tokens.json"))
    with served(app) as port:
        yield TokenServer(f"http://127.0.0.1:{port}/ui/", tokens)


MIDDLES = """() => [...document.querySelectorAll("tbody tr")].map((row) => {
  const middle = (box) => box.top + box.height / 2;
  return middle(row.querySelector(".flowbar").getBoundingClientRect()) - middle(row.getBoundingClientRect());
})"""


def test_progress_is_on_the_line_of_its_workflow(pages, flowing):
    page = pages(flowing.at("workflows?kind=all"))
    expect(page.locator("tbody tr").first).to_be_visible()

    middles = page.evaluate(MIDDLES)

    assert middles
    assert max(map(abs, middles)) <= 1


def in_store(server, work):
    """What a coroutine makes of the driver of the server's store."""

    async def run():
        harbor = Harbor(server.store)
        try:
            return await work(await harbor.client.adriver())
        finally:
            await harbor.aclose()

    with ThreadPoolExecutor(1) as thread:  # in that of the browser a loop is running
        return thread.submit(lambda: asyncio.run(run())).result()


async def copy_of(driver):
    """A fresh workflow, whose first job is ready: for a test that changes it."""
    hands = flows.Hands(driver, SystemClock().now())
    return (await flows.order(hands, f"own-{Entropy().bytes(3).hex()}", 1).aenqueue()).id


@pytest.mark.parametrize(("width", "theme"), FORMS)
def test_the_pages_are_whole_and_for_everybody(pages, flowing, width, theme):
    page = pages(flowing.url, width=width, theme=theme)
    ids = flowing.ids
    ones = [f"workflows/{ids[name]}" for name in ("order", "failed", "group")]
    found = {}
    for place in ["workflows", "workflows?kind=all", *ones, f"jobs/{ids['order']}"]:
        go(page, place)
        page.wait_for_selector("main h1")
        calm(page)
        is_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        found[place] = (is_wide, violations(page))

    assert found == {place: (False, []) for place in found}


def test_a_workflow_is_found_and_read_by_keyboard(pages, flowing):
    page = pages(flowing.at("jobs"))
    page.get_by_role("link", name="Workflows").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Workflows")).to_be_visible()
    row = page.locator("[data-row]").filter(has_text="newsletter")
    expect(row).to_be_visible()
    expect(page.locator("tr", has_text="newsletter")).to_contain_text("0 of 3")
    row.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("newsletter")
    expect(page.locator(".flow")).to_contain_text("33 of 60, 2 failed")
    page.locator(".flow a").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("members")
    expect(page.locator("tbody tr")).to_have_count(60)
    expect(page.get_by_role("link", name="its parent")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Workflows")).to_be_visible()


def test_the_graph_has_layers_and_no_edge_that_others_imply(pages, flowing):
    page = pages(flowing.at(f"workflows/{flowing.ids['order']}"))
    expect(page.locator(".flow a")).to_have_count(7)
    columns = page.evaluate(
        "[...document.querySelectorAll('.flow a')].map((a) => [a.querySelector('.name').textContent,"
        " a.querySelector('rect').getBBox().x])"
    )
    layers = sorted({x for _, x in columns})

    assert {name: layers.index(x) for name, x in columns} == {
        "charge": 0, "pack": 1, "label": 1, "approval": 1, "ship": 2, "refund": 3, "invoice": 4,
    }  # fmt: skip
    assert page.locator(".flow path.thin").count() == 8
    assert page.locator(".flow path.dashed").count() == 2


def test_a_job_names_its_parent_and_a_parent_its_children(pages, flowing):
    page = pages(flowing.at(f"jobs/{flowing.ids['order']}"))
    page.get_by_role("link", name="2 of 7 over").click()
    expect(page.locator("h1")).to_have_text("order")
    page.locator("[data-row]").filter(has_text="pack").click()
    expect(page.locator(".why")).to_contain_text("It runs under web-1")
    page.locator("aside").get_by_role("link", name=flowing.ids["order"][-8:]).click()
    expect(page.locator("h1")).to_have_text("order")


def test_a_retry_says_what_it_would_do_and_then_does_it(pages, flowing):
    page = pages(flowing.at(f"workflows/{flowing.ids['failed']}"))
    expect(page.locator("h1 + .st")).to_have_text("failed")
    calm(page)
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(re.compile(r"Retry \d jobs\?"))
    expect(dialog).to_contain_text("charge")
    expect(dialog).to_contain_text("What completed stays.")
    dialog.get_by_role("button", name=re.compile("Retry")).click()
    expect(toast(page, re.compile(r"Retrying \d jobs in"))).to_be_visible()
    page.get_by_role("button", name="Now", exact=True).click()
    expect(toast(page, re.compile(r"Retried \d jobs"))).to_be_visible()

    expect(page.locator("h1 + .st")).to_have_text("blocked")


def test_a_retry_from_one_job_on_is_taken_back_and_then_done(pages, flowing):
    page = pages(flowing.at(f"workflows/{flowing.ids['completed']}"))
    expect(page.locator("h1 + .st")).to_have_text("completed")
    calm(page)
    dialog = page.get_by_role("dialog")
    from_here = page.get_by_role("button", name="Retry from parse on")
    from_here.click()
    expect(dialog).to_contain_text("parse and all that comes after it run again, completed or not.")
    dialog.get_by_role("button", name="Retry 2").click()
    expect(toast(page, "Retrying 2 jobs in")).to_be_visible()
    page.keyboard.press("u")
    expect(toast(page, "Undone: nothing was changed")).to_be_visible()
    from_here.click()
    dialog.get_by_role("button", name="Retry 2").click()
    page.get_by_role("button", name="Now", exact=True).click()
    expect(toast(page, "Retried 2 jobs")).to_be_visible()

    expect(page.locator("h1 + .st")).to_have_text("blocked")
    expect(page.locator("tr", has_text="fetch")).to_contain_text("completed")
    expect(page.locator("tr", has_text="parse")).to_contain_text("ready")
    expect(page.locator("tr", has_text="store")).to_contain_text("blocked")


def test_a_cancel_names_what_it_stops_and_what_it_spares(pages, flowing):
    own = in_store(flowing, copy_of)
    page = pages(flowing.at(f"workflows/{own}"))
    expect(page.locator("h1 + .st")).to_have_text("blocked")
    calm(page)
    page.keyboard.press("c")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 waiting jobs do not run. Still to run: refund, invoice")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("c")
    dialog.get_by_role("button", name="Cancel 5").click()
    expect(toast(page, "Cancelling 5 jobs in")).to_be_visible()
    page.get_by_role("button", name="Now", exact=True).click()
    expect(toast(page, "Cancelled 5 jobs")).to_be_visible()

    expect(page.locator("tr", has_text="ship")).to_contain_text("cancelled")


def test_an_event_is_sent_once(pages, flowing):
    own = in_store(flowing, copy_of)
    page = pages(flowing.at(f"workflows/{own}"))
    page.get_by_role("button", name="Send approval").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value, as JSON").fill("{oops")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog).to_contain_text("This is not JSON")
    dialog.get_by_label("Value, as JSON").fill('{"by": "Ada"}')
    dialog.get_by_role("button", name="Send").click()
    expect(toast(page, "approval was sent")).to_be_visible()
    page.get_by_role("button", name="Send approval").click()
    dialog.get_by_role("button", name="Send").click()

    expect(dialog).to_contain_text("Nothing was sent")
    pages.expect(f"409 /api/jobs/{own}/events/approval")


def test_what_ends_meanwhile_is_shown_without_asking(pages, flowing):
    own = in_store(flowing, copy_of)
    page = pages(flowing.at(f"workflows/{own}"))
    expect(page.locator("tr", has_text="charge")).to_contain_text("ready")

    async def charge(driver):
        [job] = (await driver.find(Query(parent=own, states=(JobState.READY,)))).jobs
        [taken] = (await driver.reserve(Claim(queues=(job.queue,), worker_id="w"))).jobs
        await driver.settle([Ack(taken.lease)])

    in_store(flowing, charge)

    expect(page.locator("tr", has_text="charge")).to_contain_text("completed")
    expect(page.locator(".head")).to_contain_text("1 of 7")


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True)])
def test_who_may_not_change_it_sees_no_buttons(pages, flowing, guarded, role, may):
    page = sign_in(pages, guarded, role)
    go(page, f"workflows/{flowing.ids['order']}")
    expect(page.locator("h1")).to_have_text("order")
    calm(page)
    changes = ("Retry…", "Cancel…", "Retry label", "Send approval")
    seen = [name for name in changes if page.get_by_role("button", name=name, exact=True).count()]
    page.keyboard.press("c")

    assert len(seen) == (4 if may else 0)
    expect(page.get_by_role("dialog")).to_have_count(1 if may else 0)
    forget(pages, "401")


def test_hostile_names_and_errors_stay_text(pages, flowing):
    async def strike(driver):
        entropy, now = Entropy(), SystemClock().now()
        root, first, second = (entropy.job_id(now) for _ in range(3))
        ties = {
            root: Bonds(done_by="children"),
            first: Bonds(parent=root),
            second: Bonds(parent=root, after=(first,)),
        }
        named = {"taskharbor.node": SCRIPT}
        await driver.enqueue(
            [
                NewJob(id=one, type="strike", queue="struck", headers=named, bonds=bonds)
                for one, bonds in ties.items()
            ]
        )
        [job] = (await driver.reserve(Claim(queues=("struck",), worker_id="w"))).jobs
        await driver.settle([Fail(job.lease, SCRIPT)])
        return root

    root = in_store(flowing, strike)
    page = pages(flowing.at(f"workflows/{root}"))
    expect(page.locator("h1")).to_have_text(SCRIPT)
    expect(page.locator(".flow")).to_contain_text(SCRIPT[:12])
    page.get_by_role("button", name="Retry…").click()
    expect(page.get_by_role("dialog")).to_contain_text(SCRIPT)
    go(page, "workflows?kind=failed")
    expect(page.locator("main")).to_contain_text(SCRIPT)

    assert page.evaluate("window.struck ?? null") is None
    assert page.locator("main img, main script, dialog img").count() == 0


def test_nothing_open_says_so_and_what_to_paste(pages):
    with served(create_app(Harbor("memory://"), local_callers_are_admin=True)) as port:
        page = pages(f"http://127.0.0.1:{port}/ui/#/workflows")
        expect(page.locator(".empty")).to_contain_text("No workflow is open")
        expect(page.locator(".empty pre")).to_contain_text("harbor.chain")
