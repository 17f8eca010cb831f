from __future__ import annotations

from tests.unit.worker.conftest import clock, yard

__all__ = ["clock", "yard"]
