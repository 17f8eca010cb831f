"""Whose data a server holds: told when a replica has taken the place of the primary.

Replication is asynchronous, so a replica that is promoted lacks what had not reached it yet. It has a
history of its own from then on, and names the one it has followed before, and how far. A handle that has
met the old primary so knows a fail-over when it meets the new one. A server that was started again from a
snapshot looks the same, and may as well lack what came after it.
"""

from __future__ import annotations

import logging

log = logging.getLogger("taskharbor.drivers.redis")

ASK = ("INFO", "replication")


class FailoverDetector:
    """The histories that one handle has met."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def met(self, told: object, shown: str) -> None:
        """What a server has said to ASK, on a new connection."""
        info = parsed(told) if isinstance(told, bytes) else {}
        history, before = info.get("master_replid", ""), info.get("master_replid2", "")
        if not history:
            return
        if history not in self._known and before in self._known:
            log.warning(
                "the store at %s was taken over by a replica, or started again from a snapshot: it has what "
                "was written up to offset %s of its primary, anything later is lost, and leases of such jobs "
                "are refused",
                shown,
                followed_until(info),
            )
        self._known.add(history)


def followed_until(info: dict[str, str]) -> int | None:
    """The offset up to which a server has followed another one before it took over; None if it never did."""
    offset = int(info.get("second_repl_offset", "-1"))
    return None if offset < 0 else offset - 1


def parsed(told: bytes) -> dict[str, str]:
    """What INFO tells."""
    lines = told.decode(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
