"""Every key, named once. docs/reference/redis-keys.md describes what each holds.

The part in braces is the hash tag: keys with the same tag share a cluster slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class QueueKeys(NamedTuple):
    """The keys of one queue."""

    list: str
    ready: str
    later: str
    leases: str
    done: str
    wake: str
    enqueue_rate: str
    execute_rate: str
    copies: str


class Keys:
    """The keys of one harbor."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        prefix = f"{{{namespace}}}"
        self.data = f"{prefix}:data"
        self.queues = f"{prefix}:queues"
        self.configured = f"{prefix}:configured"
        self.enqueue_rate = f"{prefix}:rate:enqueue"
        self.execute_rate = f"{prefix}:rate:execute"
        self.idempotency_ends = f"{prefix}:idempotency"
        self.workers = f"{prefix}:workers"
        self.types = f"{prefix}:types"
        self.roles = f"{prefix}:roles"
        self.schedules = f"{prefix}:schedules"
        self.outbox = f"{prefix}:outbox"
        self.lock = f"{prefix}:lock"
        self._prefix = prefix
        self._queues: dict[str, QueueKeys] = {}

    def queue(self, name: str) -> QueueKeys:
        keys = self._queues.get(name)
        if keys is None:
            keys = self._queues[name] = QueueKeys(*(f"{self._tag(name)}:{part}" for part in _PARTS))
        return keys

    def for_promote(self, queues: Iterable[str]) -> list[str]:
        """The keys of promote.lua."""
        keys = [self.data]
        for queue in queues:
            own = self.queue(queue)
            keys += (own.later, own.ready, own.wake)
        return keys

    def worker_rate(self, worker_id: str) -> str:
        return f"{self._prefix}:rate:worker:{worker_id}"

    def inbox(self, name: str) -> str:
        """The list that one worker or listening handle reads."""
        return f"{self._prefix}:inbox:{name}"

    def _tag(self, queue: str) -> str:
        return f"{{{self.namespace}}}:q:{queue}"


_PARTS = (
    "list",
    "ready",
    "later",
    "leases",
    "done",
    "wake",
    "rate:enqueue",
    "rate:execute",
    "copies",
)
