"""The app of a trial of callbacks: `taskharbor worker tests.chaos.callbacks_app:harbor`.

Every child and every callback appends a line to the file of its run: short, so that the lines of many
processes never mix.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from taskharbor import Harbor

CHILD_SECONDS = 0.005


def line_of(run: int, what: str) -> None:
    path = Path(os.environ["TRIAL_FOLDER"], f"run-{run}")
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(out, f"{what} {os.getpid()}\n".encode())
    finally:
        os.close(out)


harbor = Harbor(os.environ.get("TRIAL_URL", "memory://"))


@harbor.task(name="child", max_stalls=50)
async def child(run: int, number: int) -> None:
    await asyncio.sleep(CHILD_SECONDS)
    line_of(run, f"child {number}")


@harbor.task(name="callback", max_stalls=50)
async def callback(run: int) -> None:
    line_of(run, "callback")
