"""Sessions of browsers: a signed cookie instead of the token, which is stored nowhere.

    token id . expiry . HMAC      key: the key of the token file and the hash of that token

No store of sessions is needed: every server that shares the token file knows the cookie. Revoking the token,
or giving its id another secret, ends the session. It lasts twelve hours and is not prolonged.

A change by cookie must come from a page of this server, and the browser must say so: see `check_own_page`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from taskharbor.model.clock import Clock
from taskharbor.web.config import LOOPBACK_NAMES
from taskharbor.web.problems import Problem
from taskharbor.web.tokens import Token, TokenFile

LASTS = timedelta(hours=12)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_PLAIN, _SECURE = "taskharbor", "__Secure-taskharbor"
_MOST_DIGITS = 12

Head = dict[bytes, bytes]


class SignedIn(NamedTuple):
    """The token behind a call, and when the caller must sign in again."""

    token: Token
    expires_at: datetime | None


class Sessions:
    """Makes and checks the cookies of one token file."""

    def __init__(self, tokens: TokenFile, key: Callable[[], bytes], clock: Clock) -> None:
        self._tokens = tokens
        self._key = key
        self._clock = clock

    def open(self, text: str) -> tuple[Token, datetime, str] | None:
        """The token, the end of its new session and the cookie's value; None if it is not valid."""
        token = self._tokens.find(text)
        if token is None:
            return None
        ends = int((self._clock.now() + LASTS).timestamp())
        if token.expires_at is not None:
            ends = min(ends, int(token.expires_at.timestamp()))
        value = f"{token.id}.{ends}.{self._signature(token, str(ends))}"
        return token, datetime.fromtimestamp(ends, UTC), value

    def find(self, head: Head) -> SignedIn | None:
        """The session of a request; None without a cookie, or with one that is wrong, over or revoked."""
        parts = _cookie(head).split(".")
        token = self._tokens.by_id(parts[0]) if len(parts) == 3 else None
        if token is None or not (parts[1].isascii() and parts[1].isdigit()) or len(parts[1]) > _MOST_DIGITS:
            return None
        if not hmac.compare_digest(parts[2].encode(), self._signature(token, parts[1]).encode()):
            return None
        expires_at = datetime.fromtimestamp(int(parts[1]), UTC)
        return SignedIn(token, expires_at) if self._clock.now() < expires_at else None

    def _signature(self, token: Token, ends: str) -> str:
        key = hashlib.blake2b(token.hash.encode(), key=self._key()).digest()
        return hmac.new(key, f"session.{token.id}.{ends}".encode(), "sha256").hexdigest()


def new_cookie(head: Head, root_path: str, value: str, max_age: float) -> str:
    """The Set-Cookie header. It says Secure if the page came by https.

    Raises:
        Problem: `forbidden` for plain http to another machine: anybody on the way could read the cookie.
    """
    is_secure = head.get(b"origin", b"").startswith(b"https://")
    if not is_secure and not _is_loopback(head):
        raise Problem(
            "forbidden", "a session needs https, or a server on this machine; send the token instead"
        )
    name = _SECURE if is_secure else _PLAIN
    return _set_cookie(name, value, root_path, max(0, int(max_age)), is_secure)


def ended_cookies(root_path: str) -> list[str]:
    """The headers that delete the cookie, under both of its names."""
    return [_set_cookie(name, "", root_path, 0, name == _SECURE) for name in (_PLAIN, _SECURE)]


def _set_cookie(name: str, value: str, root_path: str, max_age: int, is_secure: bool) -> str:
    path = quote(root_path, safe="/") + "/"
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Path={path}; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}"


def _cookie(head: Head) -> str:
    """The value of our cookie. The plain one counts only on this machine: elsewhere others may plant it."""
    found: dict[str, str] = {}
    for part in head.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        found.setdefault(name, value)
    return found.get(_SECURE) or (found.get(_PLAIN, "") if _is_loopback(head) else "")


# ------------------------------------------------------------------ which page sent it


def has_token(head: Head) -> bool:
    """Whether a header carries a token. Pages of other sites cannot send one."""
    return b"authorization" in head or b"x-api-key" in head


def check_own_page(head: Head) -> None:
    """Raises Problem `forbidden` unless the browser says that a page of this server sent this.

    Without either header it is refused: a caller that is no browser has a token, and needs no cookie.
    """
    site = head.get(b"sec-fetch-site")
    is_own = site == b"same-origin" if site is not None else _is_of_host(head)
    if not is_own:
        raise Problem(
            "forbidden", "a change by cookie must come from a page of this server; nothing was done"
        )


def _is_of_host(head: Head) -> bool:
    origin, host = head.get(b"origin"), head.get(b"host", b"")
    return origin is not None and is_of_host(origin, host)


def is_of_host(origin: bytes, host: bytes) -> bool:
    return origin.partition(b"://")[2].lower() == host.lower()


def _is_loopback(head: Head) -> bool:
    return host_name(head.get(b"host", b"")) in LOOPBACK_NAMES


def host_name(host: bytes) -> str | None:
    """The name in a Host header, without the port."""
    try:
        name = urlsplit(b"//" + host).hostname
    except ValueError:
        return None
    return None if name is None else name.decode("latin-1").lower()
