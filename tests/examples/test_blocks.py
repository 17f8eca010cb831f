"""Everything on the pages that can be copied: commands and flags exist, files and data are well formed."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from taskharbor.cli.main import COMMANDS
from tests.examples.pages import PAGES, ROOT, Block, blocks, calls, flags_of, prose, shell_lines, trouble_with

PARSERS = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
UNPARSED = {
    "": "commands and their output",
    "console": "the same",
    "text": "output",
    "python": "run by tests/examples/test_guides.py",
    "sql": "run by test_roles.py and test_manual.py of tests/integration/postgres",
}
OURS = {flag for name in COMMANDS for flag in flags_of(name)}
SHARED = {"--config", "--profile", "--help", "--install-completion", "--show-completion", "--version"}
OF_OTHER_PROGRAMS = {
    "--seed": "tools/mutants.py",
    "--sample": "tools/mutants.py",
    "--only": "tools/mutants.py",
    "--suite": "tools/mutants.py",
    "--narrow": "tools/mutants.py",
    "--minutes": "tools/mutants.py",
    "--families": "the simulator",
    "--noreload": "Django's runserver",
    "--backend": "manage.py taskharbor",
    "--root-path": "uvicorn",
    "--preload": "gunicorn",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_of_the_command_line(page: str) -> None:
    wrong = {" ".join(words): why for words in calls(page, "taskharbor") if (why := trouble_with(words))}

    assert wrong == {}


def test_flags_named_in_the_text_exist() -> None:
    found = {
        (page, flag)
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", prose(page))
        if code.startswith("--")
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)", code)
    }

    known = OURS | SHARED | set(OF_OTHER_PROGRAMS)
    assert sorted((page, flag) for page, flag in found if flag not in known) == []
    assert set(OF_OTHER_PROGRAMS) <= {flag for _, flag in found}


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

    named = {word for words in calls(page, "make") for word in words[:1] if re.fullmatch("[a-z-]+", word)}

    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_extra_exists(page: str) -> None:
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]

    named = re.findall(r"taskharbor\[([a-z,]+)\]", (ROOT / page).read_text("utf-8"))

    assert {extra for extras in named for extra in extras.split(",")} - set(offered) == set()


def data_blocks() -> list[Any]:
    return [
        pytest.param(block, id=f"{page}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks(page))
        if block.language in PARSERS
    ]


@pytest.mark.parametrize("block", data_blocks())
def test_data_and_programs_are_well_formed(block: Block) -> None:
    PARSERS[block.language](block.text)


def test_every_block_says_what_it_is() -> None:
    found = {block.language for page in PAGES for block in blocks(page)}

    assert found <= set(PARSERS) | set(UNPARSED)


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_repository_that_commands_name_exist(page: str) -> None:
    folders = "|".join(("deploy", "examples", "tools", "tests", "bench", "src"))
    named = {
        match
        for line in shell_lines(page)
        for match in re.findall(rf"(?:^|\s)((?:{folders})/[\w./-]*[\w/])", line)
    }

    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        ("worker app:harbor --leese 3s", "--leese"),
        ("jobs lst", "no command jobs lst"),
        ("wurker", "no command wurker"),
    ],
)
def test_a_wrong_command_is_found(words: str, trouble: str) -> None:
    assert trouble in (trouble_with(words.split()) or "")
