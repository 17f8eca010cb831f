"""`make check` looks at the dashboard's modules where a compiler runs, and is not held up where none does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tools import check_scripts


@pytest.fixture
def npx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that is found as npx; there is none until a test writes it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = tmp_path / "npx"
    monkeypatch.setattr("shutil.which", lambda name: str(found) if found.exists() else None)
    return found


def write(npx: Path, *lines: str) -> None:
    npx.write_text("\n".join(["#!/bin/sh", *lines]))
    npx.chmod(0o755)


def test_without_node_it_is_skipped(npx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_scripts.main() == 0
    assert capsys.readouterr().out == "skipped: Node is not here: install nodejs and npm\n"


@pytest.mark.parametrize(
    "trouble",
    ["npm error code ENOTFOUND", "SyntaxError: Unexpected token '??='", "npm ERR! cb() never called!"],
)
def test_a_compiler_that_does_not_run_is_skipped(
    npx: Path, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(npx, f'echo "{trouble}" >&2', "exit 1")

    assert check_scripts.main() == 0
    assert capsys.readouterr().out == f"skipped: {check_scripts.COMPILER} does not run: {trouble}\n"


def test_one_that_hangs_with_its_children_is_ended(
    npx: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_scripts, "LONGEST_S", 0.3)
    write(npx, "sleep 60 &", "wait")
    began = time.monotonic()

    assert check_scripts.main() == 0
    assert time.monotonic() - began < 30
    assert capsys.readouterr().out.startswith("skipped: ")


@pytest.mark.parametrize(
    ("finding", "code"),
    [
        ("pages/jobs.js(3,7): error TS2304: Cannot find name 'nobody'.", 1),
        ("pages/jobs.js(3,7): error TS2339: Property 'x' does not exist.", 0),
        ("vendor/preact.js(3,7): error TS2304: Cannot find name 'nobody'.", 0),
    ],
)
def test_only_what_the_compiler_finds_in_our_modules_fails(
    npx: Path, finding: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(npx, f'echo "{finding}"', "exit 2")

    assert check_scripts.main() == code
    assert ("nobody" in capsys.readouterr().out) == bool(code)
