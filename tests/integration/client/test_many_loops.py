"""Programs that start an event loop per call leave nothing behind."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from taskharbor import Harbor


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_a_loop_per_enqueue_leaks_neither_threads_nor_files(tmp_path: Path) -> None:
    with Harbor(f"sqlite:///{tmp_path}/jobs.db") as harbor:

        @harbor.task
        def quick(number: int) -> None: ...

        asyncio.run(quick.aenqueue(0))
        asyncio.run(quick.aenqueue(0))
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for number in range(30):
            asyncio.run(quick.aenqueue(number))

        assert threading.active_count() <= threads + 2
        assert len(os.listdir("/proc/self/fd")) <= files + 4
