"""The pages of the documentation, and what is in them that can be run or checked."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from typer.exceptions import TyperException

from taskharbor.cli.main import COMMANDS, _globals_behind_the_command, build

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN_BY_TOOLS = {"chaos-results.md", "mutation-results.md", "CHANGELOG.md"}
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if path.name not in WRITTEN_BY_TOOLS
)
"""Every page that people write, by its path in the repository."""

_BLOCK = re.compile(r"^( *)```([a-z]*)[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_SHELL = ("", "sh", "console", "bash")
_PLACEHOLDERS = re.compile(r"\[|…|\.\.\.$")


class Block(NamedTuple):
    """A fenced block of a page: its language and its text."""

    language: str
    text: str


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str) -> list[Block]:
    found = _BLOCK.findall(text_of(page))
    return [
        Block(language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in found
    ]


def prose(page: str) -> str:
    """The page without its blocks."""
    return _BLOCK.sub("", text_of(page))


def shell_lines(page: str) -> list[str]:
    """The lines of the page's blocks that a reader would type."""
    found: list[str] = []
    for block in blocks(page):
        if block.language in _SHELL:
            lines = block.text.replace("\\\n", " ").splitlines()
            typed = [line[2:] for line in lines if line.startswith("$ ")]
            found += typed or lines
    return found


def calls(page: str, program: str) -> list[list[str]]:
    """Every call of a program on the page: in its blocks, and in the text between them."""
    lines = [*shell_lines(page), *_INLINE.findall(prose(page))]
    return [words[1:] for line in lines for words in _commands(line) if words[:1] == [program]]


def _commands(line: str) -> list[list[str]]:
    """The commands of one line, without what is assigned before and sent elsewhere behind them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= set("|&;()<>"):
                found.append([])
            elif found[-1] or not re.match(r"[A-Z_]+=", word):
                found[-1].append(word)
    except ValueError:  # no line of a shell
        return []
    return [_plain(words) for words in found if words]


def _plain(words: list[str]) -> list[str]:
    """`python -m taskharbor`, `flask taskharbor`, `manage.py taskharbor` and a path are `taskharbor`."""
    if words[:2] == ["sudo", "-u"]:
        words = words[3:]
    if words[:1] and words[0].endswith("/bin/taskharbor"):
        return ["taskharbor", *words[1:]]
    for before in (["python", "-m"], ["python", "manage.py"], ["manage.py"], ["flask"]):
        if words[: len(before)] == before and words[len(before) :][:1] == ["taskharbor"]:
            return words[len(before) :]
    return words


@cache
def _built(name: str) -> Any:
    return build([name]).commands[name]


def trouble_with(words: list[str]) -> str | None:
    """Why `taskharbor WORDS` is no call of the command line, by its own parser."""
    words = _globals_behind_the_command(_without_settings(_until_placeholder(words)))
    if not words or words[0] in ("--help", "--version", "COMMAND") or words[0].endswith("-completion"):
        return None
    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    leaf, rest = _built(words[0]), words[1:]
    if COMMANDS[words[0]].commands:
        if not rest:
            return None
        if rest[0] not in leaf.commands:
            return f"no command {words[0]} {rest[0]}"
        leaf, rest = leaf.commands[rest[0]], rest[1:]
    return _parsed(leaf, rest)


def flags_of(name: str) -> set[str]:
    """The flags of a command and of its subcommands."""
    command = _built(name)
    leaves = [command, *getattr(command, "commands", {}).values()]
    return {flag for leaf in leaves for flag in _flags(leaf)}


def _flags(leaf: Any) -> set[str]:
    return {flag for one in leaf.params for flag in (*one.opts, *one.secondary_opts)}


def _without_settings(words: list[str]) -> list[str]:
    """Every command takes `--config FILE` and `--profile NAME`, before its own parser sees them."""
    return shlex.split(re.sub(r"--(config|profile)[ =]\S+", "", shlex.join(words)))


def _until_placeholder(words: list[str]) -> list[str]:
    kept = []
    for word in words:
        if _PLACEHOLDERS.match(word):
            break
        kept.append(word)
    return kept


def _parsed(leaf: Any, words: list[str]) -> str | None:
    if words and words[-1] in _flags(leaf):
        words = words[:-1]  # `worker --lease`: the text speaks of a flag, and leaves its value out
    try:
        leaf.make_parser(leaf.context_class(leaf)).parse_args(list(words))
    except TyperException as error:
        return str(error)
    return None
