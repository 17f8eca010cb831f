"""Guides that show a project of several files: written as the page says, then its commands and tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of every block."""
    return BLOCK.findall((DOCS / page).read_text("utf-8"))


def write(page: str, folder: Path) -> None:
    """Put the files of the page into the folder; blocks of one file follow each other."""
    for _, text in blocks(page):
        if (name := FILE.match(text)) is None:
            continue
        path = folder / name[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text + "\n\n")


def run(*command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TASKHARBOR"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env=env | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_tests_on_the_page_about_testing_pass(tmp_path: Path) -> None:
    write("guides/testing.md", tmp_path)
    plugins = (
        "-p",
        "taskharbor.testing.pytest_plugin",
        "-p",
        "pytest_asyncio.plugin",
        "-p",
        "no:cacheprovider",
    )

    output = run("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "pytest", "-q", *plugins, folder=tmp_path)

    tests = (tmp_path / "test_app.py").read_text().count("def test_")
    assert f"{tests} passed" in output
    assert not (tmp_path / "production.db").exists()


def test_the_project_on_the_page_about_several_modules_works(tmp_path: Path) -> None:
    write("guides/several-modules.md", tmp_path)
    for package in ("shop", "shop/tasks"):
        (tmp_path / package / "__init__.py").touch()
    [commands] = [text for _, text in blocks("guides/several-modules.md") if "--until-idle" in text]
    enqueue, worker, look = commands.splitlines()

    run("sh", "-c", enqueue, folder=tmp_path)
    output = run("sh", "-c", worker, folder=tmp_path)

    assert "runs 2 tasks: report, send" in output
    assert run("sh", "-c", look, folder=tmp_path).count("completed") == 2
