"""Each role and each button of each page: drawn for those who may press it, refused to all others."""

import asyncio
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from taskharbor.drivers.wire import Role
from taskharbor.harbor import Harbor
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser import filled, observed
from tests.browser.conftest import TokenServer
from tests.browser.observed import CAUSE
from tests.browser.steps import calm, go
from tests.integration.http.api import make_token, served, token_file

OPERATES = {"enqueue", "retry", "cancel", "delete", "configure", "schedule"}
MAY: dict[Role, set[str]] = {
    "viewer": set(),
    "producer": {"enqueue"},
    "worker": set(),
    "operator": OPERATES,
    "admin": {*OPERATES, "tokens"},
}
FIELDS = ("Running at once", "Starts", "Enqueues", "Failure jobs go to", "how long finished jobs are kept")
SETTINGS = dict.fromkeys((f"Change: {field}" for field in FIELDS), "configure")
BUTTONS = {
    "jobs?q=state:failed": {
        "New job": "enqueue", "Select": "retry", "bulk Retry": "retry", "bulk Edit and retry…": "retry",
        "bulk Delete…": "delete",
    },
    "jobs?q=state:ready": {"New job": "enqueue", "Select": "cancel", "bulk Cancel": "cancel"},
    "jobs/{failed}": {"Retry": "retry", "Edit and retry…": "retry", "item Delete…": "delete"},
    "jobs/{running}": {"Cancel": "cancel"},
    f"failures/{CAUSE.id}": {
        "Retry one to see": "retry", "Retry all": "retry", "Mute": "configure",
        "Snooze until next release": "configure",
    },
    "workflows": {},
    "queues": {"Pause": "configure", "Resume": "configure"},
    "queues/mail": {"Pause": "configure", **SETTINGS},
    "queues/*": {"Pause": "configure", **SETTINGS},
    "workers": {},
    "schedules": {"Run": "schedule", "Pause": "schedule"},
    "schedules/nightly": {"Run nightly now": "schedule", "Pause nightly": "schedule"},
    "system/settings": SETTINGS,
    "system/tokens": {"New token…": "tokens", "Revoke": "tokens"},
    "system/audit": {"Undo": "configure"},
}  # fmt: skip
"""What changes something, by place; `{failed}` is a job. A label may go on, as in "Retry all 3…"."""

HARMLESS = {
    "Copy", "Copy as", "Remove", "Save view", "Search help", "More actions", "As table", "Refresh",
    "Try again", "1", "2", "3",
    "bulk Clear selection", "bulk Export", "bulk Select all", "item Copy the id", "item Jobs of this task",
    "item Save as NDJSON",
}  # fmt: skip
"""Everything else that can be pressed: a new button must be in one of the two."""

NO_ID = "019e0000-0000-7000-8000-00000000ffff"
REQUESTS = [
    ("enqueue", "POST", "jobs", {}),
    ("retry", "POST", f"jobs/{NO_ID}/retry", {}),
    ("retry", "POST", "bulk", {"action": "retry", "ids": [NO_ID], "dry_run": True}),
    ("retry", "POST", "dlq/retry", {"ids": [NO_ID], "limit": "many"}),
    ("cancel", "POST", f"jobs/{NO_ID}/cancel", {}),
    ("cancel", "POST", "bulk", {"action": "cancel", "ids": [NO_ID], "dry_run": True}),
    ("delete", "POST", "bulk", {"action": "delete", "ids": [NO_ID], "dry_run": True}),
    ("delete", "DELETE", "bulk/b-none", None),
    ("retry", "POST", f"workflows/{NO_ID}/retry", {}),
    ("cancel", "POST", f"workflows/{NO_ID}/cancel", {}),
    ("enqueue", "POST", f"jobs/{NO_ID}/events/approval", {}),
    ("configure", "PATCH", "queues/mail", {"max_running": "many"}),
    ("configure", "POST", "queues/nobodys/pause", {}),
    ("configure", "POST", "queues/nobodys/resume", {}),
    ("configure", "POST", "failures/0000000000000000/mute", {}),
    ("configure", "POST", "failures/0000000000000000/snooze", {"until": 1}),
    ("configure", "POST", "failures/0000000000000000/open", {}),
    ("configure", "POST", "audit/none/undo", {}),
    ("schedule", "POST", "schedules/nobodys/run", {}),
    ("schedule", "POST", "schedules/nobodys/pause", {}),
    ("schedule", "POST", "schedules/nobodys/resume", {}),
    ("tokens", "POST", "tokens", {"role": "king"}),
    ("tokens", "DELETE", "tokens/none", None),
]
"""What the buttons send, with arguments that change nothing where the caller may send them."""

SEND = """(requests) => Promise.all(requests.map(([what, method, path, body]) => fetch(`../api/${path}`, {
  method, headers: {"Content-Type": "application/json"}, body: body && JSON.stringify(body),
}).then((answer) => [what, method, path, answer.status === 403])))"""
LABELS = """() => [...document.querySelectorAll("main button, main input[type=checkbox]")]
  .filter((one) => one.checkVisibility()).map((one) =>
    (one.closest(".bulk") ? "bulk " : one.role === "menuitem" ? "item " : "")
    + (one.getAttribute("aria-label") || one.textContent.trim().replace(/\\s+/g, " ")))"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folder of a store with everything that a page can act on, its jobs, and tokens."""
    folder = tmp_path_factory.mktemp("matrix")
    ids = asyncio.run(filled.fill(f"sqlite:///{folder}/jobs.db"))
    asyncio.run(observed.fill(f"sqlite:///{folder}/jobs.db"))
    file = token_file(folder)
    tokens: dict[str, str] = {role: make_token(file, role) for role in MAY}
    return folder, ids, tokens


@contextmanager
def asking(folder, tokens, ui="on"):
    """A server that asks for these tokens."""
    config = ServerConfig(any_type=True, tokens=folder / "tokens.json", ui=ui)
    with served(create_app(Harbor(f"sqlite:///{folder}/jobs.db"), config)) as port:
        yield TokenServer(f"http://127.0.0.1:{port}/ui/", tokens)


@pytest.fixture(scope="module")
def guarded(stored):
    folder, ids, tokens = stored
    with asking(folder, tokens) as server:
        yield server, ids


def signed_in(pages, server, role):
    page = pages(server.url)
    page.get_by_label("Token").fill(server.tokens[role])
    page.keyboard.press("Enter")
    page.wait_for_selector(".rail", state="attached")
    return page


def labels_at(page, place, *, is_reader):
    """Every button of a page, with those of its menu and of the bar over selected jobs."""
    go(page, place)
    page.wait_for_selector("main h1")
    if is_reader:
        calm(page)
        page.wait_for_function("!document.querySelector('.late, .skel')")
    found = set(page.evaluate(LABELS))
    for opener, opened in (("button[aria-label='More actions']", "[role=menuitem]"), ("tr .tick", ".bulk")):
        if page.locator(f"main {opener}").count():
            page.locator(f"main {opener}").first.click()
            page.locator(f"main {opened}").first.wait_for()
            found |= set(page.evaluate(LABELS))
            page.keyboard.press("Escape")
    return found


def drawn(labels, known):
    return {name for name in known if any(is_called(label, name) for label in labels)}


def is_called(label, name):
    return label == name or label.startswith((f"{name} ", f"{name}:"))


@pytest.mark.more("walks through every page for every role")
@pytest.mark.parametrize("role", MAY)
def test_what_a_role_may_do_is_drawn_and_the_rest_is_refused(pages, guarded, role):
    server, ids = guarded
    page = signed_in(pages, server, role)
    is_reader = role in ("viewer", "operator", "admin")
    page.evaluate(SEND, [("configure", "POST", "queues/nobodys/pause", {})])  # to undo on the audit page

    for place, known in BUTTONS.items():
        labels = labels_at(page, place.format(**ids), is_reader=is_reader)
        may = MAY[role] if is_reader else MAY[role] & {"enqueue"}  # no jobs are shown to act on
        wanted = {name for name, what in known.items() if what in may}
        assert (place, drawn(labels, known)) == (place, wanted), sorted(labels)
        unknown = {label for label in labels if not drawn({label}, {*known, *HARMLESS})}
        assert (place, unknown) == (place, set())
    answers = page.evaluate(SEND, REQUESTS)

    assert answers == [[what, method, path, what not in MAY[role]] for what, method, path, _ in REQUESTS]
    page.close()  # the stream of one who may not look is refused again after seconds
    pages.trouble.clear()


@pytest.mark.more("walks through every page")
def test_read_only_pages_offer_and_change_nothing(pages, stored):
    folder, ids, tokens = stored
    with asking(folder, tokens, "read-only") as server:
        page = signed_in(pages, server, "admin")
        calm(page)
        expect(page.locator(".banner.plain")).to_contain_text("this server's pages are read-only")

        for place, known in BUTTONS.items():
            labels = labels_at(page, place.format(**ids), is_reader=True)
            assert (place, drawn(labels, known)) == (place, set())
        answers = page.evaluate(SEND, REQUESTS)
        page.close()
    pages.trouble.clear()  # what was refused

    assert answers == [[what, method, path, True] for what, method, path, _ in REQUESTS]
