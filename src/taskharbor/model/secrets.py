"""What is secret by its name, and where URLs carry secrets: one list for logs, HTTP API and command line.

A name is looked at word by word (`db_password`, `accessKey`, `X-Auth-Token`), so that `max_tokens`, `author`
and `secretary` stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import unquote, urlsplit

HIDDEN = "***"

_ALWAYS = frozenset(
    [
        "authorization",
        "cookie",
        "cookies",
        "credential",
        "credentials",
        "cvc",
        "cvv",
        "dsn",
        "jwt",
        "otp",
        "passcode",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "pwd",
        "secret",
        "secrets",
        "token",
        "totp",
    ]
)
_ENDINGS = ("apikey", "passphrase", "passwd", "password", "secret", "token", "privatekey", "accesskey")
"""Of words that were written as one: `sslpassword`, `authtoken`."""

_TOGETHER = frozenset(
    {
        *(("access", key) for key in ("key", "keys", "tokens")),
        *(("api", key) for key in ("key", "keys", "tokens")),
        *((what, "key") for what in ("encryption", "master", "private", "session", "signing", "ssh")),
        *((what, "tokens") for what in ("auth", "bearer", "refresh")),
        ("card", "number"),
        ("private", "keys"),
    }
)
_AT_THE_END = frozenset({"auth", "oauth", "session", "sessionid"})
"""The value itself when nothing follows (`x-auth`, `user_session`); not `auth_method`, `session_timeout`."""
_THEN_TOO = frozenset({"code", "cookie", "data", "header", "id", "key", "string"})
_AMOUNTS = frozenset(
    [
        "budget",
        "count",
        "counts",
        "limit",
        "max",
        "min",
        "num",
        "number",
        "per",
        "remaining",
        "total",
        "usage",
        "used",
    ]
)

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_MOST_LETTERS = 200


def is_secret_name(name: object) -> bool:
    """Whether a value of this name is a secret."""
    return isinstance(name, str) and _is_secret(name[:_MOST_LETTERS])


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if "token" in words and _AMOUNTS.intersection(words):
        words = [word for word in words if word != "token"]  # `token_count`
    if any(word in _ALWAYS or word.endswith(_ENDINGS) for word in words):
        return True
    pairs = [*pairwise(words)]
    if _TOGETHER.intersection(pairs):
        return True
    if words and words[-1] in _AT_THE_END:
        return True
    return any(word in _AT_THE_END and after in _THEN_TOO for word, after in pairs)


def redacted(value: Any) -> Any:
    """The same value with everything under a secret name hidden."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if item is not None and is_secret_name(name) else redacted(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return value


def hidden_place(new: Any, stored: Any, place: str = "") -> str | None:
    """Where a new value has the mark of a hidden one and the stored value something else; None if nowhere."""
    if new == HIDDEN:
        return None if stored == HIDDEN else place
    if isinstance(new, dict):
        known = stored if isinstance(stored, dict) else {}
        parts = ((f"{place}.{name}", item, known.get(name)) for name, item in new.items())
    elif isinstance(new, list):
        items = stored if isinstance(stored, list) else []
        parts = (
            (f"{place}[{at}]", item, items[at] if at < len(items) else None) for at, item in enumerate(new)
        )
    else:
        return None
    return next(
        (found for where, item, old in parts if (found := hidden_place(item, old, where)) is not None), None
    )


# ------------------------------------------------------------------ URLs

_DEEPEST = 2
"""URLs within options of URLs that are looked into; what is deeper is hidden whole."""
_OPTION = re.compile(r"([?&])([\w.%-]{1,64})=([^&\s]*)")
# A match begins at the "://" and not with the name before it: a search for the name starts again at each
# letter of a long word. A slash ends every part, so no two matches look at the same letters.
_CREDENTIALS = re.compile(r"(?P<user>://[^\s:/@]*+):[^\s/]*@")
_TOKEN_ALONE = re.compile(r"(?P<scheme>\bhttps?://)[^\s:/@]++@")


def without_url_secrets(text: str) -> str:
    """The text with the secrets of every URL in it hidden: passwords, tokens, options, URLs in options."""
    return _without(text, _DEEPEST)


def _without(text: str, deeper: int) -> str:
    text = _CREDENTIALS.sub(rf"\g<user>:{HIDDEN}@", text)
    text = _TOKEN_ALONE.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _OPTION.sub(lambda found: _hidden_option(found, deeper), text)


def masked(url: str) -> str:
    """One URL with its secrets hidden, also where a password holds a slash that should have been escaped."""
    try:
        urlsplit(url)
    except ValueError:
        return HIDDEN
    scheme, _, rest = url.partition("://")
    place, question, options = rest.partition("?")
    who, at, where = place.rpartition("@")
    if at and not place.startswith("/"):
        user, colon, _ = who.partition(":")
        shown = f"{user}:{HIDDEN}" if colon and scheme not in ("http", "https") else HIDDEN
        place = f"{shown if colon or scheme in ('http', 'https') else user}@{where}"
    return without_url_secrets(f"{scheme}://{place}{question}{options}") if rest else url


def _hidden_option(found: re.Match[str], deeper: int) -> str:
    before, name, value = found.groups()
    if is_secret_name(unquote(name)) and value:
        return f"{before}{name}={HIDDEN}"
    inner = unquote(value) if "%" in value else value
    if inner != value and "://" in inner:  # one that is not quoted was hidden with the rest
        return f"{before}{name}={_without(inner, deeper - 1) if deeper else HIDDEN}"
    return found[0]


def secrets_in(url: str | None, deeper: int = _DEEPEST) -> Iterator[str]:
    """Every secret that a URL carries, as it is written there and as it is meant."""
    try:
        parts = urlsplit(url or "")
        found = [parts.password, parts.username if parts.scheme in ("http", "https") else None]
    except ValueError:
        return
    for _, name, value in _OPTION.findall(f"?{parts.query}"):
        if is_secret_name(unquote(name)):
            found.append(value)
        elif "://" in (inner := unquote(value)):
            yield from secrets_in(inner, deeper - 1) if deeper else ()
    for secret in filter(None, found):
        yield secret
        yield unquote(secret)
