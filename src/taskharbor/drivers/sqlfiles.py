"""Statements live in files named after their verb; each is read once, when it is first needed.

A file opens with comment lines that say what it promises, its parameters and what it returns.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path


class SqlFiles:
    """The .sql files of one package, by name: `sql["reserve"]` is reserve.sql without its comments."""

    def __init__(self, package: str, folder: str = "sql") -> None:
        root = folder_of(package) / folder
        self._paths = {path.stem: path for path in root.glob("*.sql")}
        if not self._paths:
            raise RuntimeError(f"no .sql files in {package}/{folder}: the installation is incomplete")
        self._text = cache(self._read)

    def __getitem__(self, name: str) -> str:
        return self._text(name)

    def _read(self, name: str) -> str:
        return without_comments(self._paths[name].read_text(encoding="utf-8"))

    def names(self) -> list[str]:
        return sorted(self._paths)


class SqlBlocks(SqlFiles):
    """The statements of topic files, by name: each begins with a line `-- name: reserve_pick`."""

    def __init__(self, package: str, folder: str = "sql") -> None:
        super().__init__(package, folder)
        self._blocks: dict[str, str] = {}
        for path in sorted(self._paths.values()):
            _, *parts = re.split(r"^-- name: (\w+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            for name, text in zip(parts[::2], parts[1::2], strict=True):
                if name in self._blocks:
                    raise RuntimeError(f"{path.name} names the statement {name} a second time")
                self._blocks[name] = without_comments(text)

    def _read(self, name: str) -> str:
        return self._blocks[name]

    def names(self) -> list[str]:
        return sorted(self._blocks)


def folder_of(package: str) -> Path:
    """Where a package's files are. importlib.resources would answer too, and load zipfile and tempfile."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{package} has no folder: the installation is incomplete")
    return Path(spec.origin).parent


def without_comments(text: str) -> str:
    """The statement alone: whole-line comments go, everything else stays as written."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(line for line in lines if line.strip())
