"""Every line of the page of guarantees names the test that shows it, and that test is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations" / "guarantees.md"
KIT = ROOT / "src" / "taskharbor" / "testing" / "conformance"
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
KIT_TOPICS = re.compile(r"kit's ((?:`\w+`(?:, | and )?)+)")
ELSEWHERE = ("the same", "every chaos case")  # which are in another line, with their link


def rows() -> Iterator[tuple[str, str]]:
    """(what a line promises, what shows it), of every table whose last column says so."""
    is_wanted = False
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_wanted = False
        elif cells[-1] == "shown by":
            is_wanted = True
        elif is_wanted and set(cells[0]) != {"-"}:
            yield cells[0], cells[-1]


ROWS = dict(rows())


def test_the_page_is_read_as_it_is_meant() -> None:
    assert len(ROWS) > 40
    assert any(what.startswith("Z1 ") for what in ROWS)
    assert "SIGKILL of a supervisor" in ROWS


@pytest.mark.parametrize("promise", ROWS)
def test_a_guarantee_names_tests_that_exist(promise: str) -> None:
    shown_by = ROWS[promise]
    links, topics = LINK.findall(shown_by), KIT_TOPICS.findall(shown_by)

    assert links or topics or shown_by.startswith(ELSEWHERE), f"nothing shows {promise!r}"
    for label, target in links:
        assert_leads_to(label, (PAGE.parent / target).resolve())
    for name in re.findall(r"`(\w+)`", " ".join(topics)):
        assert "async def test_" in (KIT / f"{name}.py").read_text("utf-8"), name


def assert_leads_to(label: str, target: Path) -> None:
    """A label is the name of the file, or of chaos cases in it; other words need only lead somewhere."""
    assert target.exists(), target
    for number in re.findall(r"\bC\d\d\b", label):
        assert f'@case("{number}"' in target.read_text("utf-8"), f"{target.name} has no case {number}"
    if label.startswith("test_"):
        assert label == target.stem
        assert "def test_" in target.read_text("utf-8")
