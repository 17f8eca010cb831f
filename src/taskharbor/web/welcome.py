"""Welcome: whether a caller whose request goes on, or waits, may still be served.

A token may be revoked, expire, or get other rights while its stream is open: so the caller is checked again
with every sign of life, and before anything is sent.
"""

from __future__ import annotations

from taskharbor.web.call import Call
from taskharbor.web.problems import Problem

RECHECK_SECONDS = 1.0
"""A host's own hook may be slow: it is not asked more often than this. Token files cost less than that."""


class Welcome:
    """The right of one caller to stay."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._clock = call.service.clock
        self._asked_at = self._clock.monotonic()

    async def check(self) -> None:
        """Raises Problem `unauthenticated` once the caller is not who was let in any more."""
        authenticator = self._call.service.authenticator
        if authenticator.is_slow and self._clock.monotonic() < self._asked_at + RECHECK_SECONDS:
            return
        now = await authenticator.principal_of(self._call)
        self._asked_at = self._clock.monotonic()
        if now != self._call.principal:
            raise Problem("unauthenticated", "the rights of this caller have changed; call again")

    async def holds(self) -> bool:
        try:
            await self.check()
        except Problem:
            return False
        return True
