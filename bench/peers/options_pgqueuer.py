"""PGQueuer with a deduplication key or a priority on each job."""

from __future__ import annotations

import json

import _base
from job_options import JOBS, key_of, priority_of
from peer_pgqueuer import PgQueuerAdapter


class PgQueuerWithOptions(PgQueuerAdapter):
    config = f"{PgQueuerAdapter.config}, {JOBS} jobs"

    async def many(self, ps: list[dict]) -> None:
        names, payloads = ["noop"] * len(ps), [json.dumps(p).encode() for p in ps]
        priorities = [priority_of(p["seq"]) if JOBS == "prioritised" else 0 for p in ps]
        keys = {"dedupe_key": [key_of(p["seq"]) for p in ps]} if JOBS == "keyed" else {}
        await self.queries.enqueue(names, payloads, priorities, **keys)


ADAPTER = PgQueuerWithOptions()
if __name__ == "__main__":
    _base.main("options_pgqueuer")
