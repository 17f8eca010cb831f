"""Where jobs are kept: one contract, a driver per store. `connect(url)` finds the driver."""

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect

__all__ = ["Driver", "connect"]
