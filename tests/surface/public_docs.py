"""The docstrings of every public name, as the reference of the site shows them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"(?:class|def) taskharbor\.([\w.]+)")


@cache
def public_docs() -> dict[str, str | None]:
    """Every public class and function by its path in the package, with its docstring."""
    package = griffe.load("taskharbor", search_paths=[ROOT / "src"], resolve_aliases=True)
    lines = (ROOT / "tests/surface/public_api.txt").read_text("utf-8").splitlines()
    paths = {found[1] for line in lines if (found := _NAME.match(line))}
    return {path: doc.value if (doc := package[path].docstring) else None for path in sorted(paths)}
