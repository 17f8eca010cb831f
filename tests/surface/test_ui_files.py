"""The files of the dashboard: small, without a build step, and nothing in them that turns text into code."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from taskharbor.web.page_bundles import bundled
from taskharbor.web.pages import gzipped

ROOT = Path(__file__).parents[2]
UI = ROOT / "src/taskharbor/web/ui"
OWN = sorted(path for path in UI.rglob("*.js") if path.parent.name != "vendor")
MOST_LINES = 300
FIRST_VIEW = ("index.html", "styles.css", "app.js")
FIRST_VIEW_KB = 32
EVERYTHING_KB = 60

FORBIDDEN = {
    "markup out of text": r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write",
    "code out of text": r"\beval\(|\bnew Function\b|setTimeout\(\s*[\"'`]|setInterval\(\s*[\"'`]",
    "a style attribute": r"\bstyle=|\.style\b",
    "an inline handler": r"\son[a-z]+=[\"']",
    "another host": r"https?://(?!www\.w3\.org/)",
}


def sent() -> dict[str, bytes]:
    """The files as the server sends them, by name."""
    paths = [path for path in UI.rglob("*") if path.suffix in (".js", ".css", ".html")]
    return bundled({path.relative_to(UI).as_posix(): path.read_bytes() for path in paths})


def gzipped_kb(contents: Iterable[bytes]) -> float:
    return sum(len(gzipped(content)) for content in contents) / 1024


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_page_has(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    pages = [*OWN, UI / "index.html"]

    found = [
        f"{path.relative_to(UI)}:{number}: {line.strip()[:100]}"
        for path in pages
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]

    assert len(pages) > 20
    assert found == []


def test_no_page_shows_a_name_of_the_code() -> None:
    """A rename of a component must not reach the words on the page."""
    shown = [text for path in OWN for text in re.findall(r">\s*([A-Z][a-z]+[A-Z]\w+)\s*<", text_of(path))]

    assert set(shown) == {"TaskHarbor"}


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(UI)): len(text_of(path).splitlines()) for path in OWN}

    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_every_import_leads_to_a_file_of_ours() -> None:
    missing = [
        f"{path.relative_to(UI)} imports {name}"
        for path in OWN
        for name in re.findall(r'(?:from ?|import\()"([^"]+)"', text_of(path))
        if not name.startswith(".") or not (path.parent / name).exists()
    ]

    assert missing == []


def test_the_index_asks_at_once_for_what_the_first_view_needs() -> None:
    asked = re.findall(r'(?:href|src)="ASSETS/([^"]+)"', text_of(UI / "index.html"))

    assert sorted(asked) == sorted(name for name in FIRST_VIEW if name != "index.html")


def test_the_first_view_and_the_whole_are_small() -> None:
    files = sent()

    assert gzipped_kb(files[name] for name in FIRST_VIEW) <= FIRST_VIEW_KB
    assert gzipped_kb(files.values()) <= EVERYTHING_KB


def test_no_text_in_a_style_sheet_has_signs_that_are_shortened() -> None:
    texts = [text for path in UI.glob("*.css") for text in re.findall(r"\"[^\"]*\"|'[^']*'", text_of(path))]

    assert [text for text in texts if re.search(r"[{},;:]", text)] == []


def test_the_vendored_files_are_the_ones_in_the_lock() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/vendor.py"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_changed_vendored_file_is_noticed(tmp_path: Path) -> None:
    tools, vendor = tmp_path / "tools", tmp_path / "src/taskharbor/web/ui/vendor"
    tools.mkdir()
    vendor.mkdir(parents=True)
    for name in ("vendor.py", "npm.py", "vendor.cdx.json"):
        (tools / name).write_bytes((ROOT / "tools" / name).read_bytes())
    for path in (UI / "vendor").iterdir():
        (vendor / path.name).write_bytes(path.read_bytes())
    (vendor / "htm.js").write_text("changed", "utf-8")

    done = subprocess.run([sys.executable, tools / "vendor.py"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "htm.js was changed: its sha256 is not the one in the lock\n"


# ------------------------------------------------------------------ colours

_TOKEN = re.compile(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
GROUNDS = ("canvas", "surface", "sunken", "hover")
INKS = ("ink", "ink-2", "ink-3", "accent", "running", "completed", "retrying", "failed", "neutral")
TINTED = ("accent", "running", "completed", "retrying", "failed", "neutral")


def tokens(theme: int) -> dict[str, str]:
    return {found[0]: found[1 + theme] for found in _TOKEN.findall((UI / "harbor.css").read_text("utf-8"))}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_ink_can_be_read_on_every_ground(theme: int) -> None:
    colours = tokens(theme)

    weak = [
        (ink, ground) for ink in INKS for ground in GROUNDS if contrast(colours[ink], colours[ground]) < 4.5
    ]
    weak += [(ink, f"{ink}-tint") for ink in TINTED if contrast(colours[ink], colours[f"{ink}-tint"]) < 4.6]
    weak += [("edge", ground) for ground in GROUNDS if contrast(colours["edge"], colours[ground]) < 3]

    assert weak == []
