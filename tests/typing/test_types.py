"""The types that users see: what must check does, and what must not check does not."""

import json
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


def pyright(*files: Path) -> list[tuple[str, int, str]]:
    """The errors that pyright finds in these files: file, line, message."""
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("basedpyright")),
            *("--outputjson", "--level", "error", "--pythonpath", sys.executable),
            *map(str, files),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def refused(tmp_path: Path) -> tuple[Path, dict[int, str]]:
    """A file that must not check, and the words that mypy must say about each of its wrong lines."""
    text = (HERE / "refused.py.txt").read_text()
    file = tmp_path / "refused.py"
    file.write_text(text)
    wanted = {
        number: line.split("# E: ")[1]
        for number, line in enumerate(text.splitlines(), 1)
        if "# E: " in line and not line.startswith("#")
    }
    return file, wanted


def test_what_must_check_does():
    assert mypy(HERE / "accepted.py") == []


def test_what_must_check_does_in_editors():
    assert pyright(HERE / "accepted.py", *sorted((ROOT / "examples").glob("*.py"))) == []


def test_the_examples_check():
    assert mypy(*sorted((ROOT / "examples").glob("*.py"))) == []


def test_what_must_not_check_does_not(tmp_path):
    file, wanted = refused(tmp_path)

    found: dict[int, str] = {}
    for line in mypy(file):
        number = int(line.split(":")[1])
        found[number] = found.get(number, "") + line

    assert found.keys() == wanted.keys()
    for number, words in wanted.items():
        assert words in found[number], f"line {number}: {found[number]}"


def test_what_must_not_check_does_not_in_editors(tmp_path):
    file, wanted = refused(tmp_path)

    assert {line for _, line, _ in pyright(file)} == wanted.keys()
