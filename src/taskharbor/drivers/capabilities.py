"""What a store can do, declared by its driver.

Code asks for a capability, never for a driver's class; its name is for texts and pauses only. The
conformance kit skips a case only if the capability it needs is not declared, and fails if a declared one
does not hold.
"""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of one driver."""

    wakeups: bool = False
    """wakeups() works; without it, callers only poll."""

    multiprocess: bool = False
    """Several processes can open the same store."""

    durable: bool = False
    """An answered write survives the death of the process."""

    tx: bool = False
    """enqueue_blocking and enqueue_in join the caller's own transaction; transaction() hands one out."""

    one_writer: bool = False
    """While such a transaction is open no one else can write, not even to extend a lease."""

    blocking_enqueue: bool = False
    """enqueue_blocking() works without an event loop."""

    remote: bool = False
    """The store runs in another process, so it can work while this one runs jobs."""

    atomic_across_queues: bool = False
    """One call over several queues is one step; without it, one step per queue."""

    logbook: bool = False
    """write_log() and read_log() work; without it there is no history of numbers, causes and changes."""

    workflows: bool = False
    """Jobs may have bonds (parents, jobs they come after, deadlines); Park, note() and resolve() work."""
