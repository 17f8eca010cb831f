"""A user with the documented rights keeps the whole contract."""

from taskharbor.testing.conformance import *  # noqa: F403
