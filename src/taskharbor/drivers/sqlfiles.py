"""Statements live in files named after their verb; this loads them once, and fails early.

A file opens with comment lines that say what it promises, its parameters and what it returns.
"""

from __future__ import annotations

from importlib.resources import files


class SqlFiles:
    """The .sql files of one package, by name: `sql["reserve"]` is reserve.sql without its comments."""

    def __init__(self, package: str, folder: str = "sql") -> None:
        root = files(package).joinpath(folder)
        self._texts = {
            item.name.removesuffix(".sql"): without_comments(item.read_text(encoding="utf-8"))
            for item in root.iterdir()
            if item.name.endswith(".sql")
        }
        if not self._texts:
            raise RuntimeError(f"no .sql files in {package}/{folder}: the installation is incomplete")

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def names(self) -> list[str]:
        return sorted(self._texts)


def without_comments(text: str) -> str:
    """The statement alone: whole-line comments go, everything else stays as written."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(line for line in lines if line.strip())
