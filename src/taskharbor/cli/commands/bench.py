"""taskharbor bench: how fast this store enqueues, leases and completes jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from taskharbor.cli.bench_jobs import TYPE, forget_queue, own_queue
from taskharbor.cli.bench_report import RATE, per_second
from taskharbor.cli.session import Session, with_store
from taskharbor.cli.tables import Column
from taskharbor.drivers.messages import Claim, Settled
from taskharbor.errors import StoreRefused, TaskHarborError
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Ack, Cancelled

Verb = Callable[[int], Awaitable[int]]

_LEASE = timedelta(minutes=5)
_WORKER = "taskharbor-bench"
_ONE_BY_ONE = 500


@with_store
async def command(
    session: Session,
    jobs: Annotated[int, typer.Option("--jobs", "-n", min=1, max=1_000_000, help="Number of jobs.")] = 2000,
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Jobs per call.")] = 100,
    size: Annotated[int, typer.Option("--size", min=0, max=1_000_000, help="Payload bytes per job.")] = 100,
    mix: Annotated[
        bool,
        typer.Option("--mix", help="Run jobs of every kind with real workers and check every result."),
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="With --mix: number of workers.")
    ] = 2,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", "-c", min=1, max=1000, help="With --mix: jobs each worker runs at the same time."
        ),
    ] = 10,
) -> None:
    """Measure the speed of this store, in a temporary queue.

    It makes one call after the other: what a single worker sees, not the most the store can do.

    With --mix, real workers run plain, flaky, failing, delayed, keyed, prioritised, parent and child jobs
    while they are enqueued; times are from enqueue to end. Exit code 1 if a job was lost, ended twice or
    ended in the wrong state; 124 if no job ends for a minute.
    """
    if mix:
        from taskharbor.cli.bench_mix import Mix

        await Mix(session, size, workers, concurrency).run(jobs, batch)
        return
    bench = Bench(session, size)
    parts = [min(batch, jobs - start) for start in range(0, jobs, batch)]
    few = [1] * min(jobs, _ONE_BY_ONE)
    before = await bench.stored_bytes()
    try:
        rows = [await bench.timed("enqueue", bench.enqueue, parts)]
        await bench.print_memory(before, jobs)
        rows += [
            await bench.timed("lease", bench.lease, parts),
            await bench.timed("complete", bench.complete, parts),
            await bench.timed("enqueue, one by one", bench.enqueue, few),
            await bench.timed("lease and complete, one by one", bench.lease_and_complete, few),
        ]
    finally:
        await bench.clean_up()
    session.out.items(rows, _COLUMNS)


class Bench:
    """One run: its own queue and the jobs in it."""

    def __init__(self, session: Session, size: int) -> None:
        self._session = session
        self._driver = session.driver
        self._entropy = Entropy()
        self._queue = own_queue(self._entropy)
        self._payload = b"x" * size
        self._held: list[JobRecord] = []

    async def enqueue(self, count: int) -> int:
        now = self._session.now()
        return len(await self._driver.enqueue([self._job(self._entropy.job_id(now)) for _ in range(count)]))

    async def lease(self, count: int) -> int:
        claim = Claim(queues=(self._queue,), worker_id=_WORKER, limit=count, lease_for=_LEASE)
        got = (await self._driver.reserve(claim)).jobs
        self._held += got
        return len(got)

    async def complete(self, count: int) -> int:
        part = [self._held.pop() for _ in range(min(count, len(self._held)))]
        answers = await self._driver.settle([Ack(job.lease) for job in part])
        return sum(isinstance(answer, Settled) for answer in answers)

    async def lease_and_complete(self, count: int) -> int:
        await self.lease(count)
        return await self.complete(count)

    async def timed(self, name: str, verb: Verb, parts: list[int]) -> dict[str, Any]:
        clock, expected = self._session.clock, sum(parts)
        started, done = clock.monotonic(), 0
        with self._session.out.progress(name, expected) as bar:
            for part in parts:
                done += await verb(part)
                bar.advance(part)
        seconds = clock.monotonic() - started
        if done != expected:
            raise TaskHarborError(f"{name}: only {done} of {expected} jobs went through")
        return {
            "name": name,
            "jobs": done,
            "calls": len(parts),
            "seconds": round(seconds, 6),
            "jobs_per_s": per_second(done, seconds),
        }

    async def stored_bytes(self) -> int | None:
        """Memory used by the store's server; None if it does not report it, or not to this user."""
        measure = getattr(self._driver, "stored_bytes", None)
        try:
            return None if measure is None else int(await measure())
        except StoreRefused as error:
            self._session.out.detail(f"memory per job is not shown: {error}")
            return None

    async def print_memory(self, before: int | None, jobs: int) -> None:
        """Print the memory that a waiting job takes beyond its payload."""
        after = await self.stored_bytes()
        if before is not None and after is not None:
            each = (after - before) / jobs - len(self._payload)
            self._session.out.say(f"a waiting job takes {each:.0f} bytes of memory beyond its payload")

    async def clean_up(self) -> None:
        """Cancel and delete what an interrupted run left."""
        if self._held:
            await self._driver.settle([Cancelled(job.lease) for job in self._held])
        await forget_queue(self._driver, self._queue)

    def _job(self, job_id: str) -> NewJob:
        return NewJob(id=job_id, type=TYPE, queue=self._queue, payload=self._payload)


_COLUMNS = (
    Column("WHAT", lambda row: row["name"]),
    Column("JOBS", lambda row: row["jobs"], is_number=True),
    Column("CALLS", lambda row: row["calls"], is_number=True),
    Column("SECONDS", lambda row: f"{row['seconds']:.3f}", is_number=True),
    RATE,
)
