"""Text that may leave the process: no control characters, no passwords of URLs."""

from __future__ import annotations

import re

from taskharbor.model.secrets import HIDDEN, secrets_in, without_url_secrets

# Whole sequences first, so that no tail of one is left as text: CSI, then OSC and its relatives up
# to their terminator, then two-character escapes; in both the 7-bit and the 8-bit (C1) spelling.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)


def clean(text: str) -> str:
    """Text for one or more lines: newlines and tabs stay, whatever steers a terminal goes."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def without_passwords(text: str, *urls: str | None) -> str:
    """The text with the secrets of all URLs hidden, and those of `urls` anywhere in it."""
    for secret in {secret for url in urls for secret in secrets_in(url)}:
        text = text.replace(secret, HIDDEN)
    return without_url_secrets(text)
