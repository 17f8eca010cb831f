"""Traces without a change to the program: `opentelemetry-instrument python app.py`.

The agent finds this class by its entry point. OTEL_PYTHON_TASKHARBOR_PARENT=true makes runs children of
the span that put their job in; otherwise they link to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from taskharbor.observe.tracing import trace_jobs

PARENT_VARIABLE = "OTEL_PYTHON_TASKHARBOR_PARENT"


class TaskHarborInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """`instrument(tracer_provider=, meter_provider=, parent=, sizes=)` and `uninstrument()`."""

    _stop: Callable[[], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("taskharbor >= 0.1.0",)

    def _instrument(self, **options: Any) -> None:
        parent = os.environ.get(PARENT_VARIABLE, "").strip().lower()
        self._stop = trace_jobs(
            tracer_provider=options.get("tracer_provider"),
            meter_provider=options.get("meter_provider"),
            parent=options.get("parent", parent in ("1", "true", "yes", "on")),
            sizes=options.get("sizes", False),
        )

    def _uninstrument(self, **_: Any) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None
