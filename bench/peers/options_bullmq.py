"""BullMQ with a deduplication id or a priority on each job."""

from __future__ import annotations

import os
from pathlib import Path

import _base
from job_options import JOBS
from peer_bullmq import BullMQ

os.environ["BENCH_ADAPTERS"] = str(_base.HERE)


class BullMQWithOptions(BullMQ):
    script = str(Path(__file__).with_suffix(".cjs"))
    config = f"concurrency=100, removeOnComplete, {JOBS} jobs"

    def remaining(self) -> int:
        return super().remaining() + _base.redis_command("ZCARD", "bull:bench:prioritized")


ADAPTER = BullMQWithOptions()
if __name__ == "__main__":
    _base.main("options_bullmq")
