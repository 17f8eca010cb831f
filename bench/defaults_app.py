"""The worker and the handlers of bench_defaults.py. Each run of a job is one record in a file."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from taskharbor import Harbor

_RECORD = struct.Struct("<qqd")


class Start(NamedTuple):
    pid: int
    number: int
    at: float


def harbor_at(url: str, log: str) -> Harbor:
    """The tasks, whose handlers write where they began."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    harbor = Harbor(url)

    def began(number: int) -> None:
        os.write(file, _RECORD.pack(os.getpid(), number, time.monotonic()))

    @harbor.task
    async def waits(number: int, seconds: float, pad: str = "") -> None:
        began(number)
        await asyncio.sleep(seconds)

    @harbor.task
    def blocks(number: int, seconds: float) -> None:
        began(number)
        time.sleep(seconds)

    @harbor.task
    async def computes(number: int, seconds: float) -> None:
        began(number)
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    return harbor


def starts(log: str) -> list[Start]:
    path = Path(log)
    content = path.read_bytes() if path.exists() else b""
    return [Start(*fields) for fields in _RECORD.iter_unpack(content[: len(content) // 24 * 24])]


if __name__ == "__main__":
    url, log, ahead, lease = sys.argv[1:]
    options = {} if ahead == "yes" else {"concurrency": 10, "prefetch": 0}
    harbor_at(url, log).worker(lease=float(lease), **options).run()
