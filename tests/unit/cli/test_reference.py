"""docs/reference/cli.md and the commands say the same."""

import re
from pathlib import Path

from taskharbor.cli.main import COMMANDS, build

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
SHARED = {"--url", "--app", "--output", "--json", "--no-color", "--verbose", "--help"}


def commands() -> dict[str, set[str]]:
    """Every command with its own long flags."""
    found = {}
    for name, entry in COMMANDS.items():
        command = build([name]).commands[name]
        for words, leaf in {
            name if not sub else f"{name} {sub}": command if not sub else command.commands[sub]
            for sub in (entry.commands or ("",))
        }.items():
            options = {option for one in leaf.params for option in (*one.opts, *one.secondary_opts)}
            found[words] = {option for option in options if option.startswith("--")} - SHARED
    return found


def documented() -> dict[str, set[str]]:
    """Every command of the page with the flags of its table."""
    sections = re.split(r"^### taskharbor (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return {
        name: {flag for cell in _first_cells(body) for flag in re.findall(r"`(--[a-z-]+)`", cell)}
        for name, body in zip(sections[1::2], sections[2::2], strict=True)
    }


def _first_cells(body: str) -> list[str]:
    return re.findall(r"^\| ([^|]*) \|", body, flags=re.MULTILINE)


def test_the_page_has_every_command_and_no_other() -> None:
    assert list(documented()) == list(commands())


def test_the_page_has_every_flag_and_no_other() -> None:
    assert documented() == commands()


def test_the_page_names_every_shared_flag_and_exit_code() -> None:
    text = PAGE.read_text("utf-8")

    assert [flag for flag in SHARED - {"--help"} if f"`{flag}" not in text] == []
    codes = re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "7", "124", "130"]
