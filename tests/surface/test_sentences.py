"""Sentences are short enough for the first reading: on pages, in help, and in public docstrings."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskharbor.cli.main import COMMANDS
from tests.examples.pages import PAGES, ROOT
from tests.examples.pages import _built as built
from tests.examples.sentences import plain_sentences, sentences, words_in

MOST = 35
# Decisions are never rewritten.
READ = [page for page in PAGES if "/decisions/" not in page]
SOURCE = ROOT / "src" / "taskharbor"
PUBLIC = [
    "errors.py",
    "types.py",
    "events.py",
    "harbor",
    "client",
    "testing/inline.py",
    "testing/draining.py",
]


def too_long(texts: Iterator[str]) -> list[str]:
    """The ten longest of those that are too long, with their numbers of words."""
    found = sorted(((words_in(text), " ".join(text.split())) for text in texts), reverse=True)
    return [f"{number}: {text}" for number, text in found if number > MOST][:10]


@pytest.mark.parametrize("page", READ)
def test_sentences_of_a_page_are_short(page: str) -> None:
    assert too_long(sentences(page)) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_sentences_of_help_are_short(name: str) -> None:
    command = built(name)
    leaves = [command, *getattr(command, "commands", {}).values()]
    texts = [getattr(one, "help", None) or "" for leaf in leaves for one in (leaf, *leaf.params)]

    assert too_long(one for text in texts for one in plain_sentences(text)) == []


def docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield ast.get_docstring(node) or ""


def public_modules() -> list[Path]:
    found: list[Path] = []
    for name in PUBLIC:
        found += [SOURCE / name] if name.endswith(".py") else sorted((SOURCE / name).glob("*.py"))
    return found


@pytest.mark.parametrize("path", public_modules(), ids=lambda path: path.stem)
def test_sentences_of_public_docstrings_are_short(path: Path) -> None:
    assert too_long(one for text in docstrings(path) for one in plain_sentences(text)) == []


def test_a_long_sentence_is_found() -> None:
    long = "This one " + "goes on and " * 12 + "ends. This one does not."

    assert len(too_long(plain_sentences(long))) == 1
