"""All cases: each module enters its own when it is imported."""

from tests.chaos import cases_mixed, cases_network, cases_processes, cases_stores

__all__ = ["cases_mixed", "cases_network", "cases_processes", "cases_stores"]
