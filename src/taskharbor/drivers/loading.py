"""URL → driver. Built-in and third-party drivers are both found by name and imported late."""

from __future__ import annotations

import importlib
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from taskharbor.drivers.contract import Driver
from taskharbor.errors import ConfigurationError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.secrets import masked

ENTRY_POINTS = "taskharbor.drivers"
DEFAULT_URL = "sqlite:///taskharbor.db"

# scheme → (module:class, the extra with its dependencies)
_BUILT_IN: dict[str, tuple[str, str | None]] = {
    "memory": ("taskharbor.drivers.memory:MemoryDriver", None),
    "sqlite": ("taskharbor.drivers.sqlite:SqliteDriver", None),
    "postgresql": ("taskharbor.drivers.postgres:PostgresDriver", "postgres"),
    "postgres": ("taskharbor.drivers.postgres:PostgresDriver", "postgres"),
    "redis": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "rediss": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "valkey": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "valkeys": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "redis+cluster": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "rediss+cluster": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "redis+sentinel": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "rediss+sentinel": ("taskharbor.drivers.redis:RedisDriver", "redis"),
    "http": ("taskharbor.drivers.http:HttpDriver", None),
    "https": ("taskharbor.drivers.http:HttpDriver", None),
}


def connect(url: str = DEFAULT_URL, *, clock: Clock | None = None, entropy: Entropy | None = None) -> Driver:
    """The driver for a URL, not opened yet: `async with connect(url) as driver`, or `await driver.open()`.

    A driver class offers `from_url(url, clock=, entropy=)`; third parties register theirs under
    the entry-point group `taskharbor.drivers`, with the URL scheme as its name.
    """
    parts = _split(url)
    factory = _driver_class(parts.scheme)
    return cast("Driver", factory.from_url(url, clock=clock, entropy=entropy))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"the store URL is malformed: {error}") from None
    if not parts.scheme or "://" not in url:
        raise ConfigurationError(
            f"{masked(url)!r} is not a store URL; examples: sqlite:///jobs.db, memory://, postgresql://host/db"
        )
    return parts


def _driver_class(scheme: str) -> Any:
    if scheme in _BUILT_IN:
        target, extra = _BUILT_IN[scheme]
        return _load(target, scheme, extra)
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        return entry.load()
    known = sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})
    raise ConfigurationError(f"no driver for {scheme}://; known: {', '.join(known)}")


def _load(target: str, scheme: str, extra: str | None) -> Any:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").startswith("taskharbor"):
            raise
        raise ConfigurationError(
            f"{scheme}:// needs {error.name}, which is not installed: pip install 'taskharbor[{extra}]'"
        ) from error
