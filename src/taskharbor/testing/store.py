"""in_memory: a program's own harbor on a fresh store of its own, for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.harbor.harbor import Harbor
from taskharbor.model.clock import Clock


@contextmanager
def in_memory(harbor: Harbor, *, clock: Clock | None = None) -> Iterator[Harbor]:
    """Give a harbor an empty store in memory, and afterwards its own store back.

    Its tasks go with it: `send_welcome.enqueue(7)` inside the block touches nothing outside it.
    """
    before, url_before, clock_before = harbor.driver, harbor.url, harbor.clock
    harbor.attach(MemoryDriver(clock=clock), clock=clock)
    try:
        yield harbor
    finally:
        harbor.client._close_anywhere()
        harbor.attach(before, clock=clock_before)
        harbor.url = url_before
