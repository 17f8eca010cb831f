"""A command that ends with its parent: `python -m taskharbor.cli.child_command PARENT_PID WORDS…`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from taskharbor.worker.executors.process_tree import die_with_parent


def started(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `taskharbor WORDS…` in its own session, so that Ctrl+C reaches only this process.

    On Linux it is killed when this process ends.
    """
    command = [sys.executable, "-m", "taskharbor.cli.child_command", str(os.getpid()), *words]
    return subprocess.Popen(command, start_new_session=True, **options)


def main() -> None:
    die_with_parent(int(sys.argv.pop(1)))
    from taskharbor.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
