"""All cases: each module enters its own when it is imported."""

from tests.chaos import (
    cases_crowds,
    cases_disks,
    cases_families,
    cases_mixed,
    cases_network,
    cases_postgres,
    cases_processes,
    cases_stores,
    cases_valkey,
)

__all__ = [
    "cases_crowds",
    "cases_disks",
    "cases_families",
    "cases_mixed",
    "cases_network",
    "cases_postgres",
    "cases_processes",
    "cases_stores",
    "cases_valkey",
]
