"""Drawings and tables that follow from the code are current, and every claim about others has a source."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from taskharbor.model.state import JobState
from tools import drawings, generated

ROOT = Path(__file__).parents[2]
FILES = {**drawings.files(), **generated.files()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_generated_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == FILES[path], "`make fix` writes it again"


@pytest.mark.parametrize("theme", drawings.THEMES)
def test_a_drawing_shows_every_state_and_layer(theme: str) -> None:
    colours = drawings.THEMES[theme]
    texts = " ".join(
        node.text or ""
        for drawing in (drawings.states(colours), drawings.layers(colours))
        for node in ET.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    )

    wanted = {*JobState, *(name for row in drawings._layers() for name in row)}
    assert [name for name in wanted if name not in texts] == []


def test_a_move_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(drawings.REASONS, (JobState.READY, JobState.RUNNING))

    with pytest.raises(SystemExit, match="moves without a reason"):
        drawings.check_moves()


def test_the_picture_of_top_shows_what_it_prints_now(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    for words in (["migrate", "up"], ["enqueue", "ping"]):
        subprocess.run(
            [sys.executable, "-m", "taskharbor", *words, "--url", store], check=True, capture_output=True
        )
    top = [sys.executable, "-m", "taskharbor", "top", "--once", "--url", store]
    printed = subprocess.run(top, check=True, capture_output=True, text=True).stdout

    headings = set(re.findall(r"^[A-Z/ ]{5,}$", printed, re.MULTILINE))
    picture = (ROOT / "docs/images/top.svg").read_text("utf-8").replace("&#160;", " ")
    assert len(headings) >= 4
    assert [word for line in headings for word in line.split() if word not in picture] == [], "make pictures"


def test_pictures_load_nothing_from_elsewhere() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "docs/images").glob("*.svg")]

    assert len(texts) == 6
    assert [text for text in texts if re.search("https?://", text.replace("http://www.w3.org/", ""))] == []


def test_every_cell_about_another_queue_has_a_source() -> None:
    section = generated.COMPARISON.read_text("utf-8").split("## What they do")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]

    others = [row for row in rows if "TaskHarbor" not in row[0]]
    assert len(others) == 7
    assert [
        cell for row in others for cell in row[1:] if not re.search(r"\(\[source\]\(https://", cell)
    ] == []
