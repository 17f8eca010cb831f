"""After `make test` or `make test-more` failed: run the few tests that failed once more, one after the other.

Thousands of tests with real processes share two cores. One that loses a race there says nothing about the
change that is tested; one that also fails alone does. What passes only now is named: it waits for the wrong
event. Tests whose subject are such races are never repeated. A run that broke off is not saved by this:
`last_exit` (`tests/conftest.py`) says how it ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CACHE = Path(".pytest_cache/v")
TESTS_FAILED = 1
MOST = 3
"""With more failures something is wrong, and not slow."""
NEVER = ("tests/contract/", "tests/property/", "tests/simulation/", "deadlock", "lock_order")
"""Tests that look for races in the product: there a failure that comes only now and then is the find."""


def read(name: str) -> Any:
    path = CACHE / name
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def main() -> int:
    failed = read("cache/lastfailed")
    if read("last_exit") != TESTS_FAILED or not 0 < len(failed) <= MOST:
        return 1
    if any(part in test for test in failed for part in NEVER):
        return 1
    print(f"== once more, alone: {len(failed)} that failed beside others", flush=True)
    again = ["--last-failed", "--last-failed-no-failures", "none", "-p", "no:xdist"]
    if status := subprocess.run([sys.executable, "-m", "pytest", *again], check=False).returncode:
        return status
    for test in failed:
        print(f"== passes alone, failed beside others, to be mended: {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
