"""Which files changed: with watchfiles if it is installed, else by modification times."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOOK_SECONDS = 0.5
_SUFFIXES = (".py", ".toml")
_PASSED_OVER = frozenset(
    {".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"}
)


def changes(paths: Sequence[Path]) -> Iterator[set[Path]]:
    """Yields the files that changed since the last check; an empty set if none did."""
    try:
        import watchfiles
    except ModuleNotFoundError:
        yield from changes_by_time(paths)
        return
    rounds = watchfiles.watch(
        *paths,
        watch_filter=_is_watched_change,
        rust_timeout=int(_LOOK_SECONDS * 1000),
        yield_on_timeout=True,
        raise_interrupt=True,
    )
    for found in rounds:
        yield {Path(path) for _, path in found}


def changes_by_time(paths: Sequence[Path]) -> Iterator[set[Path]]:
    """The same without watchfiles: compares modification times twice a second."""
    pause = threading.Event()
    before = times_of(paths)
    while True:
        pause.wait(_LOOK_SECONDS)
        now = times_of(paths)
        yield {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
        before = now


def times_of(paths: Sequence[Path]) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for path in paths:
        for file in [path] if path.is_file() else _below(path):
            try:
                found[file] = file.stat().st_mtime_ns
            except OSError:
                continue  # it went away while we looked: the next look sees that
    return found


def _below(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            if entry.name not in _PASSED_OVER:
                yield from _below(entry)
        elif entry.suffix in _SUFFIXES:
            yield entry


def _is_watched_change(_change: object, path: str) -> bool:
    file = Path(path)
    return file.suffix in _SUFFIXES and not _PASSED_OVER & set(file.parts)
