"""Tasks in handler processes, which set up Sentry where they are imported, as a program does."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from taskharbor import Harbor, RetryPolicy
from taskharbor.integrations.sentry import TaskHarborIntegration

CHILD = "SENTRY_APP_CHILD"
"""lifecycle:folder, in handler processes: where they leave what they send."""


class FolderTransport(Transport):
    """Keeps every envelope as a file."""

    def capture_envelope(self, envelope: Envelope) -> None:
        name = f"{envelope.headers.get('event_id') or id(envelope)}.envelope"
        (Path(os.environ[CHILD].partition(":")[2]) / name).write_bytes(envelope.serialize())


if CHILD in os.environ:
    options: dict[str, Any] = {"trace_lifecycle": os.environ[CHILD].partition(":")[0]}
    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=FolderTransport,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[TaskHarborIntegration()],
        **options,
    )

harbor = Harbor("memory://", retry=RetryPolicy(base=timedelta(0), max_attempts=2))


@harbor.task(run_in="process")
def divide(number: int) -> float:
    sentry_sdk.capture_message("dividing")
    sentry_sdk.get_client().flush()
    return 1 / number


@harbor.task(run_in="process", max_stalls=1)
def die() -> None:
    os._exit(7)
