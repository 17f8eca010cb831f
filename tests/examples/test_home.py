"""The programs in the tabs of the home page of the site run, and its commands are those of the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.pages import ROOT, blocks, text_of

HOME = "docs/home.md"
USES = {
    "plain": "",
    "async": "",
    "fastapi": "import asyncio, app; print(asyncio.run(app.sign_up(7))['job'])",
}


def programs() -> list[str]:
    """Those that are one file; the last tab quotes a project of several."""
    return [block.text for block in blocks(HOME) if block.text.startswith("# app.py\n")]


@pytest.mark.parametrize(("name", "number"), [(name, number) for number, name in enumerate(USES)])
def test_a_program_of_a_tab_runs_and_a_worker_runs_its_job(name: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(programs()[number])

    words = ["-c", USES[name]] if USES[name] else ["app.py"]
    printed = run(words, tmp_path)
    run(["-m", "taskharbor", "worker", "app:harbor", "--until-idle"], tmp_path)
    listed = run(["-m", "taskharbor", "jobs", "list", "-A", "app:harbor", "-o", "json"], tmp_path)

    assert re.fullmatch(r"[0-9a-f-]{36}\n", printed)
    assert len(programs()) == len(USES)
    assert printed.strip() in listed
    assert '"completed"' in listed


def test_the_tab_of_django_quotes_its_guide() -> None:
    quoted = [block.text for block in blocks(HOME) if re.match(r"# (shop|orders)/", block.text)]

    guide = [block.text for block in blocks("docs/guides/django.md")]
    assert len(quoted) == 3
    assert [text for text in quoted if text not in guide] == []


def test_commands_and_first_words_are_those_of_the_readme() -> None:
    [session] = [block.text for block in blocks(HOME) if block.language == "console"]
    [first] = re.findall(r"^# TaskHarbor\n\n(.*?)\n\n", text_of(HOME), re.DOTALL)

    assert session in text_of("README.md")
    assert first in text_of("README.md")


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_home_page_asks_for_sections_that_the_readme_has() -> None:
    asked = re.findall(r"^<!-- README: (.+) -->$", text_of(HOME), re.MULTILINE)

    assert len(asked) >= 4
    assert set(asked) <= set(re.findall(r"^## (.+)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
