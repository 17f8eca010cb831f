"""Detects that a replica has replaced the primary.

Replication is asynchronous: a promoted replica lacks the last writes. It starts a new replication history.
INFO shows the id of the new history, and of the one before it with the last offset. If a handle has seen the
old id and now finds the new one, there was a failover. A server that restarted from a snapshot looks the
same, and it may lack writes, too.
"""

from __future__ import annotations

import logging

log = logging.getLogger("taskharbor.drivers.redis")

ASK = ("INFO", "replication")


class FailoverDetector:
    """The replication histories that one handle has seen."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def check(self, reply: object, shown: str) -> None:
        """Check the reply to ASK on a new connection; warns on a failover."""
        info = parse_info(reply) if isinstance(reply, bytes) else {}
        history, before = info.get("master_replid", ""), info.get("master_replid2", "")
        if not history:
            return
        if history not in self._known and before in self._known:
            log.warning(
                "the store at %s was taken over by a replica, or started again from a snapshot. It has what "
                "was written up to offset %s of its primary. Anything later is lost, and leases of such jobs "
                "are refused",
                shown,
                followed_until(info),
            )
        self._known.add(history)


def followed_until(info: dict[str, str]) -> int | None:
    """The offset up to which this server followed another before it was promoted; None if it never did."""
    offset = int(info.get("second_repl_offset", "-1"))
    return None if offset < 0 else offset - 1


def parse_info(reply: bytes) -> dict[str, str]:
    """Parse an INFO reply."""
    lines = reply.decode(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
