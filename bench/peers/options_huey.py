"""Huey with priorities, on Redis or SQLite: BENCH_HUEY_STORE. It has neither keys nor a bulk verb."""

from __future__ import annotations

import os

import _base
from _base import REDIS_URL, SQLITE_PATH, hit
from _huey import HueyAdapter
from huey import PriorityRedisHuey, SqliteHuey
from job_options import JOBS, priority_of

STORE = os.environ.get("BENCH_HUEY_STORE", "redis")
huey = (
    PriorityRedisHuey("bench", url=REDIS_URL, results=False)
    if STORE == "redis"
    else SqliteHuey("bench", filename=SQLITE_PATH, results=False)
)


@huey.task(name="noop")
def noop(seq: int, t0: int, pad: str) -> None:
    hit(seq, t0)


class HueyWithOptions(HueyAdapter):
    name = f"huey-{STORE}-options"
    backend = STORE
    module = "options_huey"
    config = f"results=False, 2 threads (1p) / 2 processes (2p), {JOBS} jobs"
    huey = huey

    def install(self) -> None:
        if STORE == "sqlite":
            huey.storage.initialize_schema()

    def one(self, p: dict) -> None:
        noop(**p, **({"priority": priority_of(p["seq"])} if JOBS == "prioritised" else {}))


ADAPTER = HueyWithOptions()
if __name__ == "__main__":
    _base.main("options_huey")
