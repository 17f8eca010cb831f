"""Sentry: one trace from the request to the run, errors at their last attempt, check-ins of schedules.

    sentry_sdk.init(dsn="…", traces_sample_rate=1.0, integrations=[TaskHarborIntegration()])

Nothing is patched: the integration is a layer around every enqueue and around every attempt of the process.
The trace travels in the headers of the job, so that every store carries it.
"""

from taskharbor.errors import ConfigurationError

try:
    import sentry_sdk.traces  # noqa: F401 - both trace lifecycles
except ImportError as error:
    raise ConfigurationError(
        "this needs sentry-sdk 2.74 or newer, which is not installed: pip install 'taskharbor[sentry]'"
    ) from error

from taskharbor.integrations.sentry.integration import TaskHarborIntegration

__all__ = ["TaskHarborIntegration"]
