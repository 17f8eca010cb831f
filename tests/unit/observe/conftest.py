from __future__ import annotations

from tests.unit.worker.conftest import clock, harness

__all__ = ["clock", "harness"]
