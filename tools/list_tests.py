"""Writes the lists in the READMEs of the test folders: each file with the first sentence of its docstring.

`make fix` runs it. The words above a list are kept as they are; a new folder gets an empty README to fill.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
SENTENCE = re.compile(r"(.+?[.!?])(?: |$)")


def main() -> None:
    for folder in sorted({path.parent for path in TESTS.rglob("test_*.py")}):
        page = folder / "README.md"
        before = page.read_text("utf-8") if page.exists() else f"# tests/{folder.relative_to(TESTS)}\n\n"
        head = before.partition("\n- ")[0].rstrip()
        page.write_text("\n".join([head, "", *lines(folder), ""]), "utf-8")


def lines(folder: Path) -> list[str]:
    found = [f"- `{path.name}`: {promise(path)}" for path in sorted(folder.glob("test_*.py"))]
    inside = sorted(path.name for path in folder.iterdir() if any(path.glob("**/test_*.py")))
    if inside:
        found.append("- folders: " + ", ".join(f"[{name}]({name}/README.md)" for name in inside))
    return found


def promise(path: Path) -> str:
    """The first sentence of a file's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "The conformance kit."
    first = " ".join(docstring.split("\n\n")[0].split())
    sentence = SENTENCE.match(first)
    return sentence[1] if sentence else first


if __name__ == "__main__":
    main()
