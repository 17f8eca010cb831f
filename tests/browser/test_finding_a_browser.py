"""Where the browser of the tests comes from, and what happens without one: CI fails, others skip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NEEDS_A_BROWSER = "tests/browser/test_finding_a_browser.py::test_a_found_browser_starts"
ROOT = Path(__file__).parents[2]


def run(folder, *command, **env):
    """A command of ours on a machine without a browser and without a cache."""
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_XDIST_WORKER")}
    path = str(folder / "nothing")
    return subprocess.run(
        [sys.executable, *command],
        env={**clean, "PATH": path, "XDG_CACHE_HOME": path, "TASKHARBOR_TEST_BROWSER": "", **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_browser_it_says_how_to_get_one(tmp_path):
    done = run(tmp_path, "tools/browser.py")

    assert done.returncode == 1
    assert "apt install chromium" in done.stdout
    assert "python tools/browser.py --fetch" in done.stdout


def test_a_named_browser_is_taken(tmp_path):
    done = run(tmp_path, "tools/browser.py", TASKHARBOR_TEST_BROWSER="/opt/a-browser")

    assert (done.returncode, done.stdout) == (0, "/opt/a-browser\n")


@pytest.mark.more("starts pytest twice")
@pytest.mark.parametrize(("ci", "outcome"), [("1", "1 error"), ("", "1 skipped")])
def test_without_a_browser_ci_fails_and_others_skip(tmp_path, ci, outcome):
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", NEEDS_A_BROWSER, CI=ci)

    assert outcome in done.stdout
    assert "apt install chromium" in done.stdout


def test_a_found_browser_starts(browser):
    assert browser.is_connected()
