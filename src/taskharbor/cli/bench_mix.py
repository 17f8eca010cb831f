"""taskharbor bench --mix: every kind of job, real workers, and a check of every result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from taskharbor.cli.bench_jobs import KINDS, TYPE, MixJobs, forget_queue, kinds_of, own_queue
from taskharbor.cli.bench_report import RATE, MixReport
from taskharbor.cli.columns import counted
from taskharbor.cli.exit_codes import UsageError
from taskharbor.cli.output import Bar
from taskharbor.cli.session import Session
from taskharbor.cli.tables import Column
from taskharbor.drivers.messages import Counts, Settled
from taskharbor.errors import TaskHarborError
from taskharbor.events import AttemptsAnswered
from taskharbor.model.entropy import Entropy
from taskharbor.model.queue import DEFAULT_RETENTION, EVERY_QUEUE
from taskharbor.worker import Worker

_LOOK_SECONDS = 0.25
_STUCK_SECONDS = 60
_AT_ONCE = 1000
_PROBLEMS_SHOWN = 10
_KEPT = timedelta(hours=1)


class Mix:
    """One run."""

    def __init__(self, session: Session, size: int, workers: int, concurrency: int) -> None:
        self._session = session
        self._driver = session.driver
        self._queue = own_queue(Entropy())
        self._work = MixJobs(session.driver, self._queue, size)
        self._ends: Counter[str] = Counter()
        self._done = 0
        self._workers = [self._worker(concurrency) for _ in range(workers)]
        self._running: list[asyncio.Future[None]] = []

    async def run(self, jobs: int, batch: int) -> None:
        """Enqueue the jobs while workers run them, wait for all to end, and check the results."""
        await self._check_store()
        try:
            async with self._at_work():
                with self._session.out.progress("mix", jobs) as bar:
                    await self._put_in(list(kinds_of(jobs)), batch, bar)
                    await self._until_over(bar)
            account = await self._account()
        finally:
            with self._session.out.progress("cleaning up", None):
                await forget_queue(self._driver, self._queue)
        self._session.out.items(account.rows(), _COLUMNS)
        self._verdict(account, jobs)

    async def _check_store(self) -> None:
        """Refuse a store whose harbor-wide settings would distort the result."""
        for info in await self._driver.queues():
            if info.queue != EVERY_QUEUE:
                continue
            rules, kept = info.rules, info.rules.retention or DEFAULT_RETENTION
            if rules.paused:
                raise UsageError("the whole harbor is paused; run taskharbor queues resume --all")
            if rules.fail_queue is not None:
                raise UsageError(
                    f"every failed job of this store makes a job in {rules.fail_queue}, and --mix "
                    "makes jobs fail; use a store without that setting"
                )
            if any(time is not None and time < _KEPT for time in (kept.completed, kept.failed)):
                raise UsageError(
                    "this store deletes jobs within an hour of their end, so --mix cannot count them; "
                    "use a store that keeps them"
                )

    # ------------------------------------------------------------------ workers

    def _worker(self, concurrency: int) -> Worker:
        worker = Worker(self._driver.another(), (self._queue,), concurrency, name="taskharbor-bench")
        worker.register(TYPE, self._work.handle)
        worker.events.listen(self._note_ends, AttemptsAnswered)
        return worker

    def _note_ends(self, answered: AttemptsAnswered) -> None:
        for answer in answered.answers:
            if isinstance(answer, Settled) and answer.state.is_terminal:
                self._ends[answer.id] += 1

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        """Run the workers until the block ends; they finish running jobs."""
        self._running = [asyncio.ensure_future(worker.arun()) for worker in self._workers]
        try:
            yield
        finally:
            for worker in self._workers:
                worker.stop()
            await asyncio.gather(*self._running, return_exceptions=True)
        for one in self._running:
            one.result()

    def _check_workers(self) -> None:
        for one in self._running:
            if one.done():
                one.result()
                raise TaskHarborError("a worker was stopped before all jobs were over")

    # ------------------------------------------------------------------ putting in and waiting

    async def _put_in(self, kinds: Sequence[str], batch: int, bar: Bar) -> None:
        looked = self._session.clock.monotonic()
        for start in range(0, len(kinds), batch):
            await self._work.put_in(kinds[start : start + batch])
            if self._session.clock.monotonic() - looked >= _LOOK_SECONDS:
                await self._look(bar)
                looked = self._session.clock.monotonic()

    async def _until_over(self, bar: Bar) -> None:
        """Return when no job waits or runs: only a running job could still enqueue another."""
        clock = self._session.clock
        changed, done = clock.monotonic(), -1
        while True:
            counts = await self._look(bar)
            if counts.waiting + counts.running == 0:
                return
            if self._done != done:
                changed, done = clock.monotonic(), self._done
            elif clock.monotonic() - changed > _STUCK_SECONDS:
                raise TimeoutError(f"no job has ended for {_STUCK_SECONDS} s: {_counts_text(counts)}")
            await clock.sleep(_LOOK_SECONDS)

    async def _look(self, bar: Bar) -> Counts:
        self._check_workers()
        counts = await self._counts()
        done = counts.completed + counts.failed + counts.cancelled + self._work.merged.total()
        bar.advance(done - self._done)
        bar.show(_counts_text(counts))
        self._done = done
        return counts

    async def _counts(self) -> Counts:
        return (await self._driver.count((self._queue,))).get(self._queue, Counts())

    # ------------------------------------------------------------------ the end

    async def _account(self) -> MixReport:
        expected = self._work.expected
        account, ids = MixReport(expected, self._ends, KINDS), list(expected)
        for kind, count in self._work.merged.items():
            account.merge(kind, count)
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            for asked, job in zip(part, await self._driver.get(part, payloads=False), strict=True):
                account.add(asked, job)
        account.close((await self._counts()).total)
        return account

    def _verdict(self, account: MixReport, jobs: int) -> None:
        if not account.problems:
            joined = self._work.merged.total()
            note = f"; {joined} of {jobs} requests joined a waiting job of their key" if joined else ""
            self._session.out.say(f"every job ended as expected{note}")
            return
        for problem in account.problems[:_PROBLEMS_SHOWN]:
            self._session.out.say(problem)
        if (more := len(account.problems) - _PROBLEMS_SHOWN) > 0:
            self._session.out.say(f"and {more} more")
        raise TaskHarborError(f"not every job ended as expected: {counted(len(account.problems), 'problem')}")


def _counts_text(counts: Counts) -> str:
    """Jobs per state, without those that are done: the bar shows them."""
    states = ("failed", "ready", "scheduled", "blocked", "running")
    return ", ".join(f"{count} {state}" for state in states if (count := getattr(counts, state))) or "mix"


def _span_column(title: str, name: str) -> Column:
    return Column(title, lambda row: _span(row[name]), is_number=True, raw=lambda row: row[name])


def _span(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds >= 0.01 else f"{seconds * 1000:.1f}ms"
    return f"{seconds:.1f}s" if seconds < 100 else f"{seconds:.0f}s"


_COLUMNS = (
    Column("KIND", lambda row: row["name"]),
    Column("JOBS", lambda row: row["jobs"], is_number=True),
    Column("DONE", lambda row: row["completed"], is_number=True),
    Column("FAILED", lambda row: row["failed"], is_number=True),
    Column("RETRIES", lambda row: row["retries"], is_number=True),
    _span_column("P50", "p50_s"),
    _span_column("P95", "p95_s"),
    _span_column("P99", "p99_s"),
    _span_column("MAX", "max_s"),
    RATE,
)
