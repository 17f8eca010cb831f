"""The types that users see: what must check does, and what must not check does not."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def mypy(*files: Path) -> list[str]:
    """The errors that mypy finds in these files, under the project's own settings."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--cache-dir",
            str(ROOT / ".mypy_cache" / "typing"),
            "--no-error-summary",
            "--hide-error-context",
            "--strict",
            *map(str, files),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_what_must_check_does():
    assert mypy(HERE / "accepted.py") == []


def test_the_examples_check():
    assert mypy(*sorted((ROOT / "examples").glob("*.py"))) == []


def test_what_must_not_check_does_not(tmp_path):
    file = tmp_path / "refused.py"
    text = (HERE / "refused.py.txt").read_text()
    file.write_text(text)

    found: dict[int, str] = {}
    for line in mypy(file):
        number = int(line.split(":")[1])
        found[number] = found.get(number, "") + line

    wanted = {
        number: line.split("# E: ")[1]
        for number, line in enumerate(text.splitlines(), 1)
        if "# E: " in line and not line.startswith("#")
    }
    assert found.keys() == wanted.keys()
    for number, words in wanted.items():
        assert words in found[number], f"line {number}: {found[number]}"
