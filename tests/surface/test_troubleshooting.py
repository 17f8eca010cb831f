"""The page for people in trouble quotes messages that the program really has."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations" / "troubleshooting.md"
HEADINGS = re.findall(r"^### `(.+)`$", PAGE.read_text("utf-8"), re.MULTILINE)


@cache
def messages() -> str:
    """Every text of the source, with a gap where a value is put in, and every name of a class."""
    trees = (ast.parse(path.read_text("utf-8")) for path in (ROOT / "src" / "taskharbor").rglob("*.py"))
    return "\n".join(text for tree in trees for node in ast.walk(tree) if (text := text_of(node)))


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.ClassDef):
        return node.name
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_message_exists(heading: str) -> None:
    pattern = ".*".join(re.escape(part.strip()) for part in heading.split("…"))

    assert re.search(pattern, messages())


def test_there_are_messages() -> None:
    assert len(HEADINGS) >= 20
