"""Numbers, spans, words of a search and frames of a traceback, as the pages write and read them."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from taskharbor.web.page_names import OWN

UI = Path(__file__).parents[2] / "src/taskharbor/web/ui"
SOURCE = "/ui/source/"
CALL = f"""([file, name, args]) =>
  import(new URL("{SOURCE}" + file, location.origin).href).then((module) => module[name](...args))"""


@pytest.fixture(scope="module")
def call(browser, server):
    """Call a function of a file of the pages, before the server has joined them."""
    from tests.browser.conftest import inside

    def send(route):
        name = urlsplit(route.request.url).path.removeprefix(SOURCE)
        route.fulfill(path=UI / name, content_type="text/javascript")

    context = inside(browser.new_context, locale="en-US", timezone_id="UTC")
    inside(context.route, f"**{SOURCE}**", send)
    page = inside(context.new_page)
    inside(page.goto, server.at("more"))

    yield lambda file, name, *args: page.evaluate(CALL, [file, name, list(args)])
    inside(context.close)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("number", 9812, "9,812"),
        ("number", 2_140_000, "2.14 M"),
        ("number", None, "–"),
        ("three", 0.28, "0.28"),
        ("three", 41, "41.0"),
        ("three", 803.4, "803"),
        ("rate", 0.28, ["16.8", "/min"]),
        ("rate", 0, ["0", "/s"]),
        ("rate", None, ["–", ""]),
        ("span", 0.00029, "0.3 ms"),
        ("span", 0.012, "12 ms"),
        ("span", 8.1, "8.1 s"),
        ("span", 8, "8 s"),
        ("span", 59.97, "1 min"),
        ("span", 869, "14 min"),
        ("span", 3 * 3600 + 59, "3 h"),
        ("span", 2 * 86400, "2 d"),
        ("span", None, "–"),
        ("bytes", 112, "112 B"),
        ("bytes", 1536, "1.5 KiB"),
        ("bytes", None, "–"),
    ],
)
def test_a_number_is_written_as(call, name, value, text):
    assert call("format.js", name, value) == text


def test_two_units_of_a_span(call):
    assert call("format.js", "span", 170, 2) == "2 min 50 s"


@pytest.mark.parametrize(
    ("q", "texts"),
    [
        ("state:failed type:send_*", ["state:failed", "type:send_*"]),
        ('error:"timed out" -type:ping', ['error:"timed out"', "-type:ping"]),
        ('error:"open', ['error:"open']),
        ("  ", []),
    ],
)
def test_a_query_falls_into_words(call, q, texts):
    assert [word["text"] for word in call("query.js", "words", q)] == texts


def test_completion_goes_on_after_a_comma(call):
    known = {"states": [], "queues": ["mail", "media", "push"], "types": [], "workers": []}

    assert call("query.js", "completions", "queue:push,m", known) == [
        ["queue:push,mail", ""],
        ["queue:push,media", ""],
    ]


def test_own_frames_are_kept_apart_from_those_of_libraries(call):
    own, library = 'File "app/x.py", line 1, in f', 'File "/usr/lib/python3.11/y.py", line 2, in g'
    trace = f"Traceback:\n  {own}\n    g()\n  {library}\nKeyError: 1"

    kinds = [part["kind"] for part in call("parts/texts.js", "framesOf", trace)]

    assert kinds == ["plain", "own", "library", "error"]


def test_a_call_in_python_keeps_the_values(call):
    job = {"type": "app.send", "payload": {"user": 7, "urgent": True, "note": None, "tags": ["a"]}}

    assert (
        call("parts/texts.js", "asPython", job) == 'send.enqueue(user=7, urgent=True, note=None, tags=["a"])'
    )


def test_no_name_of_a_module_is_one_of_the_browsers(browser):
    """The modules share a scope: a module that means the browser's `name` must not get another module's."""
    from tests.surface.test_ui_names import names_at_the_top

    page = browser.new_page()
    found = page.evaluate("(names) => names.filter((name) => name in window)", names_at_the_top())
    page.close()

    assert found == []


def test_what_no_module_declares_is_the_browsers(browser):
    """A name whose declaration was overlooked would keep its long name, and mean nothing."""
    from tests.surface.test_ui_names import names_of_the_browser

    page = browser.new_page()
    found = page.evaluate(
        "(names) => names.filter((name) => !(name in window))", sorted(names_of_the_browser())
    )
    page.close()

    assert found == []


ABSENT = "geolocation|notification|rtc"
"""Beginnings of classes that the pages never use."""


def test_no_property_of_the_browser_is_shortened(browser):
    """Of all its classes, objects and functions, but for those of a few parts that the scripts never name."""
    page = browser.new_page()
    has = """([names, absent]) => {
      const named = (one) => Object.getOwnPropertyNames(one);
      const values = (one) => Object.entries(Object.getOwnPropertyDescriptors(one))
        .filter(([name]) => !new RegExp(`^(${absent})`, "i").test(name)).map(([, { value }]) => value);
      const known = [...values(window), ...values(Intl)].filter((one) => one instanceof Object);
      const classes = known.map((one) => one.prototype).filter((one) => one instanceof Object);
      const all = new Set([window, Object.prototype, ...known, ...classes].flatMap(named));
      return [all.size, names.filter((name) => all.has(name))];
    }"""
    size, found = page.evaluate(has, [sorted(OWN), ABSENT])
    page.close()
    scripts = [path for path in UI.rglob("*.js") if path.parent.name != "vendor"]

    assert size > 4000
    assert found == []
    assert [
        path for path in scripts if re.search(rf"\b({ABSENT})", path.read_text("utf-8"), re.IGNORECASE)
    ] == []
