"""Quota: how many different queues one token may invent."""

from __future__ import annotations

from taskharbor.web.auth import LOOPBACK, Principal
from taskharbor.web.problems import Problem

_RETRY_SECONDS = 3600


class QueueQuota:
    """The queues that each token has enqueued to since the server started."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[str, set[str]] = {}

    def spend(self, principal: Principal, queue: str) -> None:
        """Note a queue. Raises Problem `rate-limited` for one too many."""
        if principal is LOOPBACK:
            return
        seen = self._seen.setdefault(principal.name, set())
        if queue in seen:
            return
        if len(seen) >= self._most:
            raise Problem(
                "rate-limited",
                f"this token has used {self._most} different queues; nothing was stored",
                headers={"Retry-After": str(_RETRY_SECONDS)},
            )
        seen.add(queue)
