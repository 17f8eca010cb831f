"""Sentences are short enough for the first reading: pages, help, messages, public docstrings."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from taskharbor.cli.main import COMMANDS
from tests.examples.pages import PAGES, ROOT
from tests.examples.pages import _built as built
from tests.examples.sentences import plain_sentences, sentences, words_in
from tests.surface.public_docs import public_docs

MOST = 25
MOST_IN_DECISIONS = 35  # notes of engineers for engineers
SOURCE = ROOT / "src" / "taskharbor"
SQL = re.compile(r"\s*(alter|create|delete|do|insert|select|update|with)\b")
LISTS = {
    "drivers/postgres/rows.py": "columns",
    "drivers/postgres/statements.py": "SQL",
    "drivers/sqlite/rows.py": "columns",
    "model/cause.py": "a pattern",
    "web/page_names.py": "names of properties",
    "web/page_scopes.py": "words of JavaScript",
    "web/page_styles.py": "names of classes",
}


def too_long(texts: Iterable[str], most: int = MOST) -> list[str]:
    """The ten longest of those that are too long, with their numbers of words."""
    found = sorted(((words_in(text), " ".join(text.split())) for text in texts), reverse=True)
    return [f"{number}: {text}" for number, text in found if number > most][:10]


@pytest.mark.parametrize("page", PAGES)
def test_sentences_of_a_page_are_short(page: str) -> None:
    assert too_long(sentences(page), MOST_IN_DECISIONS if "/decisions/" in page else MOST) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_sentences_of_help_are_short(name: str) -> None:
    command = built(name)
    leaves = [command, *getattr(command, "commands", {}).values()]
    texts = [getattr(one, "help", None) or "" for leaf in leaves for one in (leaf, *leaf.params)]

    assert too_long(one for text in texts for one in plain_sentences(text)) == []


def test_sentences_of_public_docstrings_are_short() -> None:
    texts = {text for text in public_docs().values() if text is not None}

    assert len(texts) > 300
    assert too_long(one for text in texts for one in plain_sentences(text)) == []


def messages(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstrings; what is put into them counts as one word."""
    tree = ast.parse(path.read_text("utf-8"))
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    apart |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in apart:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def test_sentences_of_messages_are_short() -> None:
    modules = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).as_posix() not in LISTS]

    found = {
        path.relative_to(SOURCE).as_posix(): long
        for path in modules
        if (
            long := too_long(
                one for text in messages(path) if not SQL.match(text) for one in plain_sentences(text)
            )
        )
    }

    assert found == {}


def test_a_long_sentence_is_found(tmp_path: Path) -> None:
    long = "This one " + "goes on and " * 8 + "ends. This one does not."
    module = tmp_path / "module.py"
    module.write_text(f'raise ValueError(f"{{1}} {long}")\n')

    assert len(too_long(plain_sentences(long))) == 1
    assert len(too_long(one for text in messages(module) for one in plain_sentences(text))) == 1
