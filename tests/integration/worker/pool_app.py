"""An app whose handlers start threads of their own that Python would wait for: `taskharbor worker`'s test."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from taskharbor import Harbor

harbor = Harbor(os.environ["YARD_URL"])


def _note(what: str) -> None:
    Path(os.environ["YARD"], what).touch()


@harbor.task
async def pooled() -> None:
    """Waits for a call in a pool of its own that never ends."""
    pool = ThreadPoolExecutor(1)
    waiting = asyncio.get_running_loop().run_in_executor(pool, threading.Event().wait)
    _note("pooled")
    await waiting


@harbor.task
def detached() -> None:
    """Leaves a thread behind that never ends, and returns."""
    threading.Thread(target=threading.Event().wait, name="detached", daemon=False).start()
    _note("detached")


@harbor.task
def idle_pool() -> int:
    """Keeps a pool that has nothing to do: Python ends it by itself."""
    pools.append(pool := ThreadPoolExecutor(2))
    return pool.submit(int, "7").result()


pools: list[ThreadPoolExecutor] = []
