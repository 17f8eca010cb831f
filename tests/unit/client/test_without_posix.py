"""Producers run where there is no fork and no POSIX module, as on Windows; workers and the server do not."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
import sys

for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None  # importing it fails
for name in ("register_at_fork", "fork", "getuid", "geteuid", "setsid", "killpg"):
    delattr(os, name)

from taskharbor import Harbor

harbor = Harbor(sys.argv[1])

@harbor.task
def greet(name: str) -> str:
    return name

with harbor:
    handle = greet.enqueue("you")
    print(harbor.get(handle.id).state.value)
"""


def test_a_producer_needs_no_fork_and_no_posix_module(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/jobs.db"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (ran.stderr, ran.stdout) == ("", "ready\n")
