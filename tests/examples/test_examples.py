"""Every example runs as it is, and prints what its last comment says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_prints_what_it_says_and_again_the_second_time(script, tmp_path):
    """The second time only where the first one left something behind."""
    expect(script, ran(script, tmp_path))

    if any(tmp_path.iterdir()):
        expect(script, ran(script, tmp_path))


def expect(script, done):
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised(script)
    assert done.stderr == ""


def ran(script, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def promised(script: Path) -> list[str]:
    """What follows `# Prints:` at the end of a script."""
    _, mark, rest = script.read_text("utf-8").rpartition("# Prints:\n")
    assert mark, f"{script.name} does not say what it prints"
    return [line.removeprefix("#   ") for line in rest.splitlines()]


def test_examples_are_numbered_without_gaps():
    assert [script.stem[:2] for script in SCRIPTS] == [f"{n:02}" for n in range(1, len(SCRIPTS) + 1)]
