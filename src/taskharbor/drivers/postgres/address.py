"""The URL of a Postgres store: what is ours in it, and what belongs to the database libraries."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import msgspec

from taskharbor.errors import ConfigurationError

DEFAULT_SCHEMA = "taskharbor"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_OURS = ("schema", "namespace", "pool_size", "pooler", "listen_url")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the store is. `dsn` carries the password and is therefore never shown."""

    dsn: str
    schema: str = DEFAULT_SCHEMA
    pool_size: int = 8
    behind_pooler: bool = False  # a pooler in transaction mode: no prepared statement survives a statement
    listen_dsn: str | None = None  # a direct way to the server, for LISTEN; None: the same way

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address without secrets, for messages and logs."""
        parts = urlsplit(self.dsn)
        host = parts.netloc.rpartition("@")[2] or "local socket"
        return f"postgresql://{host}{parts.path}?schema={self.schema}"

    @property
    def listens_apart(self) -> bool:
        """Whether the connection that listens is not one of the pool."""
        return self.behind_pooler or self.listen_dsn is not None

    @property
    def is_listening_direct(self) -> bool:
        """Whether the session that listens is ours alone, so that it can hold a lock."""
        return not self.behind_pooler or self.listen_dsn is not None

    @property
    def channel(self) -> str:
        """The notification channel of this store."""
        return f"taskharbor:{self.schema}"

    @property
    def identifier(self) -> str:
        """The schema as statements write it; its name was checked, so quotes are enough."""
        return f'"{self.schema}"'


def address_of(url: str) -> Address:
    """Take a store URL apart. Options of ours go, everything else stays for the database libraries."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    ours = {name: given.pop(name) for name in _OURS if name in given}
    options: dict[str, Any] = {"schema": _schema(ours)}
    if "pool_size" in ours:
        options["pool_size"] = _pool_size(ours["pool_size"])
    if "pooler" in ours:
        options["behind_pooler"] = _pooler(ours["pooler"])
    if "listen_url" in ours:
        options["listen_dsn"] = ours["listen_url"] or None
    return Address(dsn=_dsn(parts, given), **options)


def _dsn(parts: SplitResult, given: dict[str, str]) -> str:
    return parts._replace(scheme="postgresql", query=urlencode(given)).geturl()


def _schema(ours: dict[str, str]) -> str:
    schema = ours.get("schema", DEFAULT_SCHEMA)
    if namespace := ours.get("namespace"):
        schema = f"{schema}_{_as_identifier(namespace)}"
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"schema {schema!r} is not usable: lower-case letters, digits and '_', at most 40, no digit first"
        )
    return schema


def _as_identifier(namespace: str) -> str:
    """A namespace as part of a schema's name; two namespaces never meet in one."""
    plain = re.sub(r"[^a-z0-9_]", "_", namespace.lower())[:16]
    if plain == namespace:
        return plain
    return f"{plain}_{hashlib.sha256(namespace.encode()).hexdigest()[:8]}"


def _pool_size(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise ConfigurationError(f"pool_size={text[:40]!r} must be a whole number from 1 to 1000")
    return int(text)


def _pooler(text: str) -> bool:
    if text not in ("transaction", "session", "none"):
        raise ConfigurationError(f"pooler={text!r} must be transaction, session or none")
    return text == "transaction"
