"""The SQLite driver beside the bare statements it cannot do without, at synchronous FULL, in one run.

    python bench/bench_sqlite_floor.py [--jobs 20000] [--rounds 5]

Bare: one table, one index; INSERT a thousand per commit; DELETE 100 + claim 100 in one commit.
Ours: enqueue a thousand per call; exchange of 100. The aim is 60 % of the bare statements.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from results import table, write_section

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NO_TIME, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack

PAYLOAD = '{"seq":12345,"t0":1000000000000000,"pad":"' + "x" * 52 + '"}'
BARE_TABLE = """
create table job (id integer primary key, queue text not null default 'default', state int not null default 0,
  run_at real not null default 0, lease_until real, attempt int not null default 0, payload text not null);
create index job_ready on job (queue, run_at, id) where state = 0;
"""
BARE_CLAIM = """
update job set state = 1, attempt = attempt + 1, lease_until = ? where id in
 (select id from job where queue = 'default' and state = 0 and run_at <= ? order by run_at, id limit 100)
returning id, payload
"""


def bare(folder: str, count: int) -> tuple[float, float]:
    """(inserts a second, claimed and deleted a second) of the statements alone."""
    c = sqlite3.connect(Path(folder, "bare.db"), isolation_level=None)
    c.execute("pragma journal_mode = wal")
    c.execute("pragma synchronous = full")
    c.executescript(BARE_TABLE)
    start = time.perf_counter()
    for _ in range(count // 1000):
        c.execute("begin immediate")
        c.executemany("insert into job (payload) values (?)", [(PAYLOAD,)] * 1000)
        c.execute("commit")
    middle = time.perf_counter()
    done: list[tuple[int]] = []
    for _ in range(count // 100):
        c.execute("begin immediate")
        c.executemany("delete from job where id = ?", done)
        rows = c.execute(BARE_CLAIM, (time.time() + 30, time.time())).fetchall()
        c.execute("commit")
        done = [(row[0],) for row in rows]
    end = time.perf_counter()
    c.close()
    return count / (middle - start), count / (end - middle)


async def ours(folder: str, count: int, keep: bool) -> tuple[float, float]:
    entropy = Entropy()
    payload = PAYLOAD.encode()
    async with connect(f"sqlite:///{Path(folder, 'ours.db')}") as driver:
        if not keep:
            await driver.configure_queue(
                QueueSettings(queue="default", retention=Retention(completed=NO_TIME))
            )
        # As a client makes them: each id at its own instant, so that they are nearly sorted.
        batches = [
            [NewJob(id=entropy.job_id(datetime.now(UTC)), type="noop", payload=payload) for _ in range(1000)]
            for _ in range(count // 1000)
        ]
        start = time.perf_counter()
        for batch in batches:
            await driver.enqueue(batch)
        middle = time.perf_counter()
        claim = Claim(queues=("default",), worker_id="bench", limit=100, lease_for=timedelta(seconds=30))
        acks: list[Ack] = []
        done = 0
        while done < count:
            answer = await driver.exchange(acks, claim)
            acks = [Ack(job.lease) for job in answer.claimed]
            done += len(acks)
        end = time.perf_counter()
        await driver.settle(acks)
    return count / (middle - start), count / (end - middle)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    runs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(args.rounds):
        for name, keep in (("bare statements", None), ("completed deleted", False), ("completed kept", True)):
            with tempfile.TemporaryDirectory() as folder:
                figures = (
                    bare(folder, args.jobs) if keep is None else asyncio.run(ours(folder, args.jobs, keep))
                )
            runs.setdefault(name, []).append(figures)
    medians = {
        name: [statistics.median(column) for column in zip(*r, strict=True)] for name, r in runs.items()
    }
    floor = medians["bare statements"]
    rows = [
        [name, *(f"{rate:,.0f} ({rate / base:.0%})" for rate, base in zip(rates, floor, strict=True))]
        for name, rates in medians.items()
    ]
    text = table(["", "enqueue, 1,000 a call /s", "exchange of 100 /s"], rows)
    print(text)
    write_section("SQLite at FULL beside its bare statements", text)


if __name__ == "__main__":
    main()
