"""taskharbor demo: a store, worker processes and sample jobs of every kind, on one screen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskharbor.cli.child_command import started
from taskharbor.cli.columns import counted
from taskharbor.cli.exit_codes import DONE, ERROR, TIMED_OUT, UsageError
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import UrlFlag, was_given, with_output
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.family_steps import parent_of
from taskharbor.model.state import TERMINAL
from taskharbor.settings.store import store_url
from taskharbor.worker.signals import stop_signals

if TYPE_CHECKING:
    from taskharbor.cli.demo_jobs import DemoProducer, DemoReport, ExpectedOutcomes

_APP = "taskharbor.cli.demo_app:harbor"
_WORKER = ("worker", _APP, "--lease", "3s", "--grace", "5s")
_LOOK_SECONDS = 0.25
_SERVER_LOG = "server.log"
_START_SECONDS = 20
_STOP_SECONDS = 20


@with_output
def command(
    out: Output,
    once: Annotated[bool, typer.Option("--once", help="Run a fixed number of jobs, then exit.")] = False,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=1000, help="Jobs to enqueue per second.")
    ] = 20,
    processes: Annotated[int, typer.Option("--processes", min=1, max=16, help="Worker processes.")] = 2,
    timeout: Annotated[
        timedelta,
        typer.Option(
            "--timeout",
            parser=parse_duration,
            metavar="DURATION",
            help="With --once: give up after this time.",
        ),
    ] = timedelta(seconds=50),
    url: UrlFlag = None,
) -> int:
    """Watch jobs succeed, fail, retry, snooze, crash and be cancelled. Needs nothing installed.

    Without --url it runs in a temporary folder that is deleted afterwards. It also serves the dashboard,
    whose address is the second line. Ctrl+C lets the workers finish and prints a report. Without a terminal
    it behaves like --once.
    """
    is_live = not once and out.is_fancy and not out.is_machine_readable
    with tempfile.TemporaryDirectory(prefix="taskharbor-demo-") as folder:
        address = store_url(url) if url and was_given("url") else f"sqlite:///{folder}/demo.db"
        out.secrets.append(address)
        # The demo's app names no store: it takes this one, here and in the worker processes.
        os.environ["TASKHARBOR_URL"] = address
        show = Demo(out, address, Path(folder), processes)
        return asyncio.run(show.live(rate) if is_live else show.once(timeout))


class Demo:
    """One run of the demo."""

    def __init__(self, out: Output, url: str, folder: Path, processes: int) -> None:
        self._out = out
        self._url = url
        self._folder = folder
        self._processes = processes
        self._clock = SystemClock()

    async def once(self, timeout: timedelta) -> int:
        """Enqueue a fixed number of jobs, wait for all, and check the results."""
        from taskharbor.cli.demo_jobs import DemoProducer, ExpectedOutcomes

        ledger = ExpectedOutcomes()
        async with self._store() as driver:
            ledger.stored_before = await _stored(driver)
            with self._workers() as workers:
                await self._until_at_work(driver, workers)
                producer = DemoProducer(ledger)
                # A single worker has no supervisor to replace it.
                await producer.fixed_amount(lose_a_worker=self._processes > 1)
                self._out.say(
                    f"{ledger.results.total()} requests enqueued; run by {counted(self._processes, 'worker')}"
                )
                in_time = await self._until_over(driver, producer, timeout)
                code = await self._stop(workers)
            account = await self._finish(driver, ledger, is_drained=in_time)
        if not in_time:
            self._out.say(
                f"error: not all jobs had ended after {timeout}; log of the workers:\n{self._log()}"
            )
            return TIMED_OUT
        return self._verdict(account, code)

    async def live(self, rate: float) -> int:
        """Enqueue and show jobs until Ctrl+C, then let the workers finish and check the results."""
        from taskharbor.cli.demo_jobs import ExpectedOutcomes

        ledger = ExpectedOutcomes()
        async with self._store() as driver:
            ledger.stored_before = await _stored(driver)
            with self._workers() as workers, self._slow_worker(), self._dashboard() as address:
                await self._until_at_work(driver, workers)
                await self._show(driver, ledger, rate, address)
                self._out.say("stopping: waiting for running jobs to finish")
                code = await self._stop(workers)
            account = await self._finish(driver, ledger, is_drained=False)
        return self._verdict(account, code, may_differ=self._was_changed())

    # ------------------------------------------------------------------ the two ways to look on

    async def _until_over(self, driver: Driver, producer: DemoProducer, timeout: timedelta) -> bool:
        from taskharbor.cli.demo_app import QUEUES
        from taskharbor.cli.demo_view import Watcher

        watcher = Watcher(driver, QUEUES)
        deadline = self._clock.monotonic() + timeout.total_seconds()
        last = ""
        while self._clock.monotonic() < deadline:
            await producer.cancel_what_runs(driver)
            glance = await watcher.look()
            if self._out.verbosity:
                for line in watcher.feed:
                    self._out.say(line)
                watcher.feed.clear()
            if (line := glance.line()) != last:
                self._out.say(last := line)
            if glance.over == glance.jobs:
                return True
            await self._clock.sleep(_LOOK_SECONDS)
        return False

    async def _show(self, driver: Driver, ledger: ExpectedOutcomes, rate: float, address: str) -> None:
        from rich.live import Live

        from taskharbor.cli.demo_app import QUEUES
        from taskharbor.cli.demo_jobs import DemoProducer
        from taskharbor.cli.demo_view import Watcher, screen

        producer, watcher, stopped = DemoProducer(ledger), Watcher(driver, QUEUES), asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = stop_signals()
        for number in numbers:
            loop.add_signal_handler(number, stopped.set)
        title = f"taskharbor demo on {self._out.safe(self._url)}; Ctrl+C stops it{address}"
        feeding = asyncio.ensure_future(_feed(producer, rate, self._clock, stopped))
        with Live(console=self._out.console(), auto_refresh=False, screen=False) as live:
            while not stopped.is_set() and not feeding.done():
                await producer.cancel_what_runs(driver)
                live.update(screen(await watcher.look(), list(watcher.feed), title), refresh=True)
                await self._clock.sleep(_LOOK_SECONDS)
        await feeding  # not cancelled: a job that is on its way in must be entered in the ledger
        for number in numbers:
            loop.remove_signal_handler(number)

    # ------------------------------------------------------------------ store and workers

    def _store(self) -> Driver:
        driver = connect(self._url)
        if not driver.capabilities.multiprocess:
            raise UsageError(
                "the workers of the demo are separate processes: use a store they can share, such as sqlite:///demo.db"
            )
        return driver

    @contextmanager
    def _workers(self) -> Iterator[subprocess.Popen[bytes]]:
        """The worker command in its own session: Ctrl+C reaches only the demo, which stops the workers."""
        words = [*_WORKER, "--processes", str(self._processes), "--concurrency", "8"]
        with (self._folder / "workers.log").open("wb") as log:
            workers = started(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                yield workers
            finally:
                if workers.poll() is None:
                    workers.kill()
                workers.wait()

    @contextmanager
    def _slow_worker(self) -> Iterator[None]:
        """One more worker, in which everything takes longer: the dashboard shows which one it is."""
        from taskharbor.cli.demo_app import TIMES_SLOWER

        slow = {**os.environ, TIMES_SLOWER: "8"}
        with (self._folder / "slow-worker.log").open("wb") as log:
            words = [*_WORKER, "--name", "laptop", "--concurrency", "4"]
            worker = started(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=slow)
            try:
                yield
            finally:
                _end(worker)

    @contextmanager
    def _dashboard(self) -> Iterator[str]:
        """The dashboard of the demo's store, and words that name its address; none if it cannot be served."""
        from taskharbor.cli import dashboard

        if not dashboard.can_serve():
            yield ""
            return
        with dashboard.listen() as listener, (self._folder / _SERVER_LOG).open("wb") as log:
            words = [*dashboard.server_words(_APP, listener), "--name", "demo", "--log-format", "json"]
            inherited = (listener.fileno(),)
            server = started(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=inherited)
            try:
                yield f"\ndashboard: {dashboard.address_of(listener)}"
            finally:
                _end(server)

    def _was_changed(self) -> bool:
        """Whether somebody changed jobs on the dashboard: then they do not end as the demo planned."""
        log = self._folder / _SERVER_LOG
        return log.exists() and b'"taskharbor.audit"' in log.read_bytes()

    async def _until_at_work(self, driver: Driver, workers: subprocess.Popen[bytes]) -> None:
        """Wait for the first report of a worker, so that the display starts with all of them."""
        from taskharbor.cli.demo_app import CALLS

        deadline = self._clock.monotonic() + _START_SECONDS
        while not any(CALLS in worker.report.queues for worker in await driver.workers()):
            if workers.poll() is not None or self._clock.monotonic() > deadline:
                raise TaskHarborError(f"the workers did not start; their log:\n{self._log()}")
            await self._clock.sleep(0.05)

    async def _stop(self, workers: subprocess.Popen[bytes]) -> int:
        """Ask the workers to finish. Returns their exit code; `_workers` kills those that do not stop."""
        if workers.poll() is None:
            workers.send_signal(signal.SIGTERM)
        deadline = self._clock.monotonic() + _STOP_SECONDS
        while workers.poll() is None and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.05)
        code = workers.poll()
        return ERROR if code is None else code

    def _log(self) -> str:
        text = (self._folder / "workers.log").read_text("utf-8", "replace")
        return "\n".join(text.splitlines()[-20:])

    # ------------------------------------------------------------------ the end

    async def _finish(self, driver: Driver, ledger: ExpectedOutcomes, *, is_drained: bool) -> DemoReport:
        from taskharbor.cli.demo_app import harbor
        from taskharbor.cli.demo_jobs import account

        await harbor.aclose()
        records = await ledger.records(driver)
        stored = await _stored(driver) - ledger.stored_before
        there = (job for job in records.values() if job is not None)
        jobs = sorted(there, key=lambda job: parent_of(job) is None)  # a workflow is deleted after its jobs
        # In a temporary folder this changes nothing; a store of the user's is left as it was.
        await driver.cancel([job.id for job in jobs if not job.state.is_terminal][:10_000])
        for start in range(0, len(jobs), 1000):
            await driver.delete([job.id for job in jobs[start : start + 1000]])
        return account(ledger, records, stored, is_drained=is_drained)

    def _verdict(self, account: DemoReport, workers_code: int, *, may_differ: bool = False) -> int:
        self._out.document(account.view(), _summary(account))
        if workers_code != DONE:
            self._out.say(f"error: the workers ended with code {workers_code}:\n{self._log()}")
            return ERROR
        if may_differ:
            self._out.say("you changed jobs on the dashboard, so they may have ended otherwise than planned")
        elif not account.is_balanced:
            raise TaskHarborError("some jobs did not end as expected; this is a bug, please report it")
        return DONE


async def _stored(driver: Driver) -> int:
    """Number of jobs in the demo's queues."""
    from taskharbor.cli.demo_app import QUEUES

    return sum(counts.total for counts in (await driver.count(QUEUES)).values())


async def _feed(producer: DemoProducer, rate: float, clock: SystemClock, stopped: asyncio.Event) -> None:
    """Enqueue jobs at this rate, each kind according to its weight."""
    entropy = Entropy()
    total = sum(weight for weight, _ in producer.kinds)
    while not stopped.is_set():
        place = entropy.between(0, total)
        for weight, put in producer.kinds:
            place -= weight
            if place <= 0:
                await put()
                break
        await clock.sleep(1 / rate)


def _summary(account: DemoReport) -> Iterator[str]:
    """The report as lines: each sum with its parts."""
    yield f"requests  {account.requests} = {_parts(account.results)}"
    yield f"jobs      {account.jobs} = {_parts(account.states)}"
    again = f"{account.retries} of them again after an error, {account.stalls} after a crash"
    yield f"runs      {account.starts}, {again}"
    for job_id in account.missing:
        yield f"missing   {job_id}"
    for text in account.surprises:
        yield f"unexpected  {text}"
    open_jobs = sum(count for state, count in account.states.items() if state not in TERMINAL)
    if not account.is_balanced:
        yield "NOT every job ended as expected"
    elif open_jobs:
        yield f"every job ended as expected, except {open_jobs} that had not ended yet"
    else:
        yield "every job ended as expected"


def _parts(parts: dict[str, int]) -> str:
    return " + ".join(f"{count} {name}" for name, count in sorted(parts.items())) or "0"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
