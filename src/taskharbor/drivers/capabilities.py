"""What a store can do, declared by its driver and believed by everybody else.

Nothing asks for a driver's class or name: it asks for an ability. The conformance kit skips a
case only when the ability it needs is not declared, and fails when a declared one does not hold.
"""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of one driver."""

    wakeups: bool = False
    """wakeups() yields hints; without it, callers only poll."""

    multiprocess: bool = False
    """Several processes can open the same store."""

    durable: bool = False
    """An answered write survives the death of the process."""

    tx: bool = False
    """enqueue_blocking and enqueue_in join the caller's own transaction; transaction() hands one out."""

    one_writer: bool = False
    """While such a transaction is open nobody else can write, not even to extend a lease."""

    blocking_enqueue: bool = False
    """enqueue_blocking() works without an event loop."""

    remote: bool = False
    """The store runs in another process, so it can work while this one runs jobs."""

    atomic_across_queues: bool = False
    """One call over several queues is one step; without it, one step per queue."""
