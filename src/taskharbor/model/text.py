"""Error texts that every store keeps alike: no NUL, no lone surrogate, cut at a limit in bytes."""

from __future__ import annotations

ERROR_LIMIT = 1024  # last_error: one glance
TRACE_LIMIT = 8 * 1024  # one entry of the history


def safe_text(text: str, limit: int) -> str:
    """The text without what some stores refuse, cut to `limit` UTF-8 bytes at a character's edge."""
    encoded = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(encoded) > limit:
        encoded = encoded[: limit - 3] + "…".encode()
    return encoded.decode("utf-8", "ignore")


def with_article(name: str) -> str:
    """`a Worker`, `an int`."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"
