"""sqlite:///file?option=… → where the store is and how it is used."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.model.checks import check_name

Durability = Literal["full", "normal"]

_OPTIONS = ("durability", "namespace", "timeout")


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """One store: a file, and a namespace in it.

    `durability="full"` survives a power loss; "normal" survives the death of any process, and a
    power loss takes at most the last moments. `timeout` is how long to wait for other writers.
    """

    path: str
    namespace: str = ""
    durability: Durability = "full"
    timeout_seconds: float = 5.0

    @property
    def table_prefix(self) -> str:
        """What the tables of this namespace begin with. Names that differ never meet in one prefix.

        SQLite ignores case in the names of tables, so capitals are spelled out.
        """
        if not self.namespace:
            return "th_"
        plain = (c if c.isdigit() or "a" <= c <= "z" else f"${ord(c):02x}" for c in self.namespace)
        return f"th__{''.join(plain)}__"

    @property
    def url(self) -> str:
        options = f"?namespace={self.namespace}" if self.namespace else ""
        return f"sqlite:///{self.path}{options}"


def location_of(url: str) -> Location:
    """sqlite:///relative.db, sqlite:////absolute.db; options namespace, durability, timeout."""
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or path == ":memory:" or path.endswith("/"):
        raise ConfigurationError(
            f"{url!r} names no file; write sqlite:///jobs.db, or with four slashes "
            "sqlite:////var/lib/jobs.db for an absolute path. A store that lives in memory is memory://"
        )
    options = _options(url, parts.query)
    namespace = options.get("namespace", "")
    if namespace:
        check_name(namespace, "namespace")
    return Location(
        path=os.path.abspath(path),  # the working directory may change while the store is in use
        namespace=namespace,
        durability=_durability(options.get("durability", "full")),
        timeout_seconds=_seconds(options.get("timeout", "5")),
    )


def _options(url: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(f"{url!r}: {name}= is not known here; known: {', '.join(_OPTIONS)}")
    return options


def _durability(word: str) -> Durability:
    if word == "full":
        return "full"
    if word == "normal":
        return "normal"
    raise ConfigurationError(f"durability={word!r} must be full or normal")


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise ConfigurationError(f"timeout={text!r} must be seconds from 0 to 3600")
    return seconds
