"""The whole contract, behind a pooler in transaction mode."""

from taskharbor.testing.conformance import *  # noqa: F403
