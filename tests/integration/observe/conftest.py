from __future__ import annotations

from tests.integration.cli.conftest import free_port, taskharbor

__all__ = ["free_port", "taskharbor"]
