"""The driver keeps the contract on a cluster; only one step over several queues is missing there."""

from taskharbor.testing.conformance import *  # noqa: F403
