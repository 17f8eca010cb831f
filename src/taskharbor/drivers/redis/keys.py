"""Every key, named once. docs/reference/redis-keys.md says what each of them holds.

The part in braces is the hash tag: all keys with the same tag are in the same slot of a cluster.
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
        home = f"{{{namespace}}}"
        self.data = f"{home}:data"
        self.queues = f"{home}:queues"
        self.configured = f"{home}:configured"
        self.enqueue_rate = f"{home}:rate:enqueue"
        self.execute_rate = f"{home}:rate:execute"
        self.idempotency_ends = f"{home}:idempotency"
        self.workers = f"{home}:workers"
        self.types = f"{home}:types"
        self.roles = f"{home}:roles"
        self.schedules = f"{home}:schedules"
        self.outbox = f"{home}:outbox"
        self.lock = f"{home}:lock"
        self._home = home
        self._queues: dict[str, QueueKeys] = {}

    def queue(self, name: str) -> QueueKeys:
        keys = self._queues.get(name)
        if keys is None:
            keys = self._queues[name] = QueueKeys(*(f"{self._tag(name)}:{part}" for part in _PARTS))
        return keys

    def for_promote(self, queues: Iterable[str]) -> list[str]:
        """What promote.lua is to be given."""
        keys = [self.data]
        for queue in queues:
            own = self.queue(queue)
            keys += (own.later, own.ready, own.wake)
        return keys

    def worker_rate(self, worker_id: str) -> str:
        return f"{self._home}:rate:worker:{worker_id}"

    def told(self, reader: str) -> str:
        """Where a listening process, or a worker, is told something that concerns it alone."""
        return f"{self._home}:told:{reader}"

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
