"""Makes text safe for a terminal: no escape sequences, control characters or passwords."""

from __future__ import annotations

import os
import re
from typing import TextIO

from taskharbor.observe.plain_text import clean, without_passwords

__all__ = ["clean", "is_fancy", "one_line", "safe_json", "wants_color", "without_passwords"]

_SPACE = re.compile(r"\s+")
_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def one_line(text: str) -> str:
    """Text for one cell of a table."""
    return _SPACE.sub(" ", clean(text)).strip()


def safe_json(text: str) -> str:
    """JSON with non-ASCII control characters escaped: the same data."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_fancy(stream: TextIO, *, no_color: bool = False) -> bool:
    """Whether to use boxes and colors: on a terminal, or with FORCE_COLOR."""
    if no_color or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def wants_color(*, no_color: bool = False) -> bool:
    return not no_color and not os.environ.get("NO_COLOR")
