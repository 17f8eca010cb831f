"""Bearer tokens: shown once when created, stored as hashes in a file that is reloaded when it changes.

    taskharbor_<id>_<secret>

The file holds one JSON object: {"tokens": [{"id", "hash", "role", "queues", "expires_at", "note"}],
"cursor_key"}. A secret has 256 random bits, so a plain SHA-256 of it is enough. Servers sign cursors with
`cursor_key`, so a cursor from one works on every server that reads this file.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from taskharbor.drivers.wire import Role
from taskharbor.errors import ConfigurationError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.web.secure_files import read_secure, write_secure

_SHAPE = re.compile(r"taskharbor_([0-9a-f]{12})_([0-9a-f]{64})")
RECHECK_SECONDS = 2.0
"""How often the file is checked: a revoked token must be refused within five seconds."""


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token as it is stored: everything but its secret."""

    id: str
    hash: str
    role: Role
    queues: tuple[str, ...] | None = None
    created_at: datetime
    expires_at: datetime | None = None
    note: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[Token, ...] = ()
    cursor_key: str = ""


def new_token(
    entropy: Entropy,
    role: Role,
    now: datetime,
    *,
    queues: tuple[str, ...] | None = None,
    expires_at: datetime | None = None,
    note: str = "",
) -> tuple[str, Token]:
    """A new token: the text to hand out, which is not stored, and what is stored."""
    token_id, secret = entropy.bytes(6).hex(), entropy.bytes(32).hex()
    kept = Token(
        id=token_id,
        hash=_hash(secret),
        role=role,
        queues=queues,
        created_at=now,
        expires_at=expires_at,
        note=note,
    )
    return f"taskharbor_{token_id}_{secret}", kept


class TokenFile:
    """The tokens of one file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._by_id: dict[str, Token] = {}
        self._cursor_key = ""
        self._seen: tuple[int, int, int] | None = None
        self._next_check = float("-inf")
        self.load()

    def find(self, text: str) -> Token | None:
        """The token of this text; None if it is unknown, wrong, expired or revoked."""
        self._reload_if_changed()
        match = _SHAPE.fullmatch(text)
        known = self._by_id.get(match[1]) if match else None
        # Always hash and compare, so that an unknown id takes as long as a wrong secret.
        expected = known.hash if known else _NOBODY
        is_right = hmac.compare_digest(_hash(match[2] if match else text), expected)
        if known is None or not is_right:
            return None
        return None if self._is_over(known) else known

    def _is_over(self, token: Token) -> bool:
        return token.expires_at is not None and token.expires_at <= self._clock.now()

    def by_id(self, token_id: str) -> Token | None:
        """The token of this id; None if it is unknown, expired or revoked."""
        self._reload_if_changed()
        known = self._by_id.get(token_id)
        return None if known is None or self._is_over(known) else known

    def tokens(self) -> list[Token]:
        self._reload_if_changed()
        return sorted(self._by_id.values(), key=lambda token: token.created_at)

    @property
    def cursor_key(self) -> str:
        """The key that signs cursors; empty if the file has none."""
        return self._cursor_key

    def add(self, token: Token) -> None:
        with self._locked():
            self.load()
            self._cursor_key = self._cursor_key or Entropy().bytes(32).hex()
            self._write([*self._by_id.values(), token])

    def revoke(self, token_id: str) -> bool:
        with self._locked():
            self.load()
            left = [token for token in self._by_id.values() if token.id != token_id]
            is_known = len(left) < len(self._by_id)
            if is_known:
                self._write(left)
            return is_known

    def load(self) -> None:
        """Read the file now. A missing file has no tokens. Raises ConfigurationError for a broken one."""
        self._by_id, self._seen = {}, None
        found = read_secure(self.path)
        if found is None:
            return
        content, facts = found
        self._seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        try:
            read = msgspec.json.decode(content, type=_File)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the token file {self.path} is not valid: {error}") from None
        self._by_id, self._cursor_key = {token.id: token for token in read.tokens}, read.cursor_key

    def _reload_if_changed(self) -> None:
        if self._clock.monotonic() < self._next_check:
            return
        self._next_check = self._clock.monotonic() + RECHECK_SECONDS
        try:
            facts = os.stat(self.path)
            seen: tuple[int, int, int] | None = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            self.load()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclusive access: of two concurrent changes, one would be lost."""
        folder = os.open(self.path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, tokens: list[Token]) -> None:
        """Replace the file in one step, readable by its owner only."""
        content = msgspec.json.format(msgspec.json.encode(_File(tuple(tokens), self._cursor_key))) + b"\n"
        write_secure(self.path, content)
        self.load()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


_NOBODY = _hash("")
