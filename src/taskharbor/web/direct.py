"""Direct: what a connection of our own server offers beside ASGI, so that a short call costs little.

    ours       ──► the body is there: taken; the answer is complete: written in one piece
    any other  ──► receive and send, as ASGI has it

A connection puts it into the scope of its requests. Whoever has it asks first, and goes the usual way
when the answer is no: another server below, middleware in between, a body that is still arriving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Send

DIRECT = "taskharbor.direct"
"""In the scope of a request whose connection is ours; it also watches over the time that a request takes."""


@dataclass(frozen=True, slots=True)
class Direct:
    """The two shortcuts."""

    body: Callable[[Receive], bytes | None]
    """The whole body, if it is there already."""

    write: Callable[[Send, bytes, bytes], bool]
    """Write a head, less its last headers, and a body, if this can be done at once; says whether it was."""
