"""tools/release.py refuses what must not be published, and says why."""

import pytest

from taskharbor import __version__
from tests.surface.test_repository import ROOT
from tools import release

NOTES = """# Changelog

## [Unreleased]
{pending}
## [0.2.0] - 2027-01-31

### Added

- Something users notice.

## [0.1.0] - 2026-12-01

- The first one.
"""


def test_there_is_one_version_number() -> None:
    assert release.version_of((ROOT / "src/taskharbor/__init__.py").read_text("utf-8")) == __version__
    assert __version__ not in (ROOT / "pyproject.toml").read_text("utf-8").partition("dependencies")[0]


def test_notes_of_the_version_alone_are_released() -> None:
    notes = NOTES.format(pending="")

    release.check_notes(notes, "0.2.0")

    assert "Something users notice" in release.sections(notes)["0.2.0"]
    assert "The first one" not in release.sections(notes)["0.2.0"]


@pytest.mark.parametrize(
    ("pending", "version", "words"),
    [("\n- Not yet.\n", "0.2.0", "under Unreleased"), ("", "0.3.0", r"no section \[0.3.0\]")],
)
def test_pending_and_missing_notes_are_refused(pending: str, version: str, words: str) -> None:
    with pytest.raises(release.Refused, match=words):
        release.check_notes(NOTES.format(pending=pending), version)


def test_a_tree_with_changes_is_refused() -> None:
    release.check_tree("")
    with pytest.raises(release.Refused, match="not committed"):
        release.check_tree(" M src/taskharbor/__init__.py\n")


def test_a_tag_of_another_version_is_refused() -> None:
    release.check_tag("v0.2.0", "0.2.0")
    with pytest.raises(release.Refused, match=r"tag v0.2.0 instead"):
        release.check_tag("v0.1.9", "0.2.0")
