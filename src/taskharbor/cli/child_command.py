"""A command that ends with its parent process: `python -m taskharbor.cli.child_command PARENT_PID WORDS…`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from taskharbor.worker.executors.process_tree import die_with_parent


def started(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """`taskharbor WORDS…`, in a session of its own, so that Ctrl+C reaches this process alone.

    It does not outlive this process, however that ends (Linux).
    """
    command = [sys.executable, "-m", "taskharbor.cli.child_command", str(os.getpid()), *words]
    return subprocess.Popen(command, start_new_session=True, **options)


def main() -> None:
    die_with_parent(int(sys.argv.pop(1)))
    from taskharbor.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
