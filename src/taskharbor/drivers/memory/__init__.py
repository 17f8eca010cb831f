"""The memory driver: the contract in its plainest words. Read driver.py first."""

from taskharbor.drivers.memory.driver import MemoryDriver

__all__ = ["MemoryDriver"]
