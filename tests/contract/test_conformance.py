"""Every driver of ours keeps the contract."""

from taskharbor.testing.conformance import *  # noqa: F403
