"""What the jobs of a run are: BENCH_JOBS=plain, keyed or prioritised; BENCH_TH_HANDLER=coroutine or function.

Keys differ from job to job, so that none is left out. Of five priorities each has a fifth of the jobs, mixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from _base import hit

JOBS = os.environ.get("BENCH_JOBS", "plain")
HANDLER = os.environ.get("BENCH_TH_HANDLER", "coroutine")


def priority_of(seq: int) -> int:
    return seq * 7 % 5


def key_of(seq: int) -> str:
    return f"k{seq}"


def options_of(seq: int) -> dict[str, Any]:
    """Options of one of our jobs."""
    return {"plain": {}, "keyed": {"key": key_of(seq)}, "prioritised": {"priority": priority_of(seq)}}[JOBS]


def handler() -> Callable[..., Any]:
    return function if HANDLER == "function" else coroutine


async def coroutine(seq: int, t0: int, pad: str) -> None:
    hit(seq, t0, pad)


def function(seq: int, t0: int, pad: str) -> None:
    hit(seq, t0, pad)
