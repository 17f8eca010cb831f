"""One run of a worker: its state, its parts, and the order in which they stop.

                 claimed                    outcome               settlement
    fetcher ──────────────► slots, attempt ─────────► settling ──────────────► fetcher ──► store
                                 ▲ stop
                           cancellation ◄── heartbeat_loop, lease_keeper · deadlines · shutdown

    working ──stop──► draining ──grace over, or stop again──► releasing ──► over

A part knows the parts below it by name. What it has to report upwards goes through one small protocol, `Run`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_recorder import LogRecorder, release_of
from taskharbor.errors import ConfigurationError, Forbidden
from taskharbor.events import EventBus
from taskharbor.middleware import AttemptMiddleware
from taskharbor.model.codec import Codec, JsonCodec
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_QUEUE, JobRecord
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.model.workflow import BUILT_IN
from taskharbor.tasks import Handler
from taskharbor.worker.announcer import Announcer
from taskharbor.worker.attempt import Runner
from taskharbor.worker.attempt_tools import AttemptTools
from taskharbor.worker.cancellation import HandlerStopper
from taskharbor.worker.deadlines import Deadlines
from taskharbor.worker.executors.contract import Executor, Where, check_importable, where_to_run
from taskharbor.worker.executors.in_loop import LoopExecutor
from taskharbor.worker.executors.in_process import ProcessExecutor
from taskharbor.worker.executors.in_thread import ThreadExecutor
from taskharbor.worker.fetcher import Fetcher, follow_wakeups
from taskharbor.worker.gpus import Gpu, GpuPool
from taskharbor.worker.heartbeat_loop import HeartbeatTask, HeartbeatThread
from taskharbor.worker.leased_jobs import (
    AttemptState,
    HeldLimit,
    LeasedJob,
    LeasedJobs,
    LeaseState,
    SettlementState,
)
from taskharbor.worker.loop_monitor import LoopMonitor
from taskharbor.worker.memory_use import resident_memory
from taskharbor.worker.presence import MAX_SAMPLES, Durations
from taskharbor.worker.resolver import Resolve, Resolver
from taskharbor.worker.settling import Settler
from taskharbor.worker.slots import Slots
from taskharbor.worker.timing import Timing

_log = logging.getLogger("taskharbor.worker")

LAST_PATIENCE_SECONDS = 0.5  # for handlers that are asked to stop because the worker ends
LAST_CALLS_SECONDS = 3.0  # for the last settlements on a slow store


class Run(Protocol):
    """What the parts see of the run they belong to."""

    options: WorkerOptions
    driver: Driver
    worker_id: str
    types: tuple[str, ...]
    built_in_types: tuple[str, ...]
    """Claimed as well: nodes of workflows that no task has."""
    resolver: Resolver | None
    takes_all_types: bool
    """Whether it claims jobs of types that it does not list in `types`."""
    gpus: tuple[Gpu, ...]
    timing: Timing
    entropy: Entropy
    events: EventBus
    announcer: Announcer
    leased_jobs: LeasedJobs
    held_limit: HeldLimit
    durations: Durations
    """How long the latest attempts took, by type; for the next report."""
    recorder: LogRecorder | None
    """Counts for the logbook; None without one."""

    @property
    def is_quiet(self) -> bool:
        """Whether it claims nothing more."""

    # From the fetcher.

    def claimed(self, records: list[JobRecord], sent: float) -> None:
        """Jobs were claimed by a call that was sent at this instant."""

    def idle(self) -> None:
        """Nothing is held, and nothing that could run now was found."""

    def forbidden(self, error: Forbidden) -> None:
        """The server does not let this worker claim or settle."""

    # From the settler.

    def settle_soon(self) -> None:
        """There is a settlement to send, the first since the last call, or enough of them."""

    def look_again(self) -> None:
        """A slot is free without a settlement."""

    def due_in(self, seconds: float) -> None:
        """A retry becomes due after so many seconds."""

    def nothing_held(self) -> None:
        """Nothing is held any more, or `max_jobs` jobs are done."""

    # From the deadlines and the wake-ups.

    def deadline_passed(self, leased: LeasedJob) -> None: ...

    def work_arrived(self) -> None:
        """There may be work."""

    def cancel_reported(self, job_id: str) -> None:
        """This job may have been cancelled."""

    # From the heartbeat, in its own thread.

    def leases_free(self) -> None:
        """An extension is over: settlements that waited for it can be sent."""

    def ticked(self) -> bool:
        """The heartbeat looks at the clock; whether jobs run."""


class WorkerRun:
    """One run of a worker, from its first claim to its last settlement. Implements `Run`."""

    def __init__(
        self,
        options: WorkerOptions,
        driver: Driver,
        worker_id: str,
        gpus: tuple[Gpu, ...],
        handlers: dict[str, Handler],
        layers: Sequence[AttemptMiddleware],
        timing: Timing,
        entropy: Entropy,
        events: EventBus,
        resolve: Resolve | None = None,
        codec: Codec | None = None,
        default_queue: str = DEFAULT_QUEUE,
    ) -> None:
        self.options = options
        self.driver = driver
        self.worker_id = worker_id
        self.types = tuple(sorted(name for name in handlers if name not in BUILT_IN))
        self.built_in_types = tuple(name for name in BUILT_IN if name in handlers)
        self.resolver = None if resolve is None else Resolver(resolve, self._add, worker_id)
        self.takes_all_types = resolve is not None or options.unknown_types == "fail"
        self.gpus = gpus
        self.timing = timing
        self.entropy = entropy
        self.events = events
        self.announcer = Announcer(options, worker_id, events, driver.outage)
        self.leased_jobs = LeasedJobs()
        self.held_limit = HeldLimit(options.concurrency, 0 if gpus else options.prefetch)
        self.durations: Durations = deque(maxlen=MAX_SAMPLES)
        self.recorder = self._new_recorder()
        self.why = ""
        self.error: ConfigurationError | None = None
        """Why it cannot go on, where that is known."""
        self._loop = asyncio.get_running_loop()
        self._has_news = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_hurried = False
        self._stops_when_idle = False
        self._stop_recording: Callable[[], None] = lambda: None
        self._renew_seconds = options.renew_every.total_seconds()
        self._trust_seconds = options.trust_seconds

        self._gpus = GpuPool(gpus)
        self._deadlines = Deadlines(self)
        self._layers = layers
        self._executors: dict[Where, Executor] = {"loop": LoopExecutor()}
        self._by_type: dict[str, Executor] = {}
        self._runners: dict[str, Runner] = {}
        self._policies: dict[str, RetryPolicy] = {}
        for handler in handlers.values():
            self._add(handler)
        self._settler = Settler(self, self._policies, self._gpus)
        tools = AttemptTools(self, codec or JsonCodec(), default_queue)
        self._slots = Slots(self, self._runners, self._deadlines, self._settler, self.resolver, tools)
        self._stopper = HandlerStopper(self, self._by_type, self._deadlines, self._slots, self._settler)
        self._fetcher = Fetcher(self, self._slots, self._settler)
        self._loop_monitor = LoopMonitor(timing, self._loop, worker_id, events)
        self._heartbeat: HeartbeatThread | HeartbeatTask = (
            HeartbeatTask(self, self._stopper) if timing.is_virtual else HeartbeatThread(self, self._stopper)
        )

    def _new_recorder(self) -> LogRecorder | None:
        if not (self.options.logbook and self.driver.capabilities.logbook):
            return None
        return LogRecorder(
            self.worker_id,
            self.timing.clock,
            release=release_of(self.options.labels),
            queues=self.options.claimed_queues,
            types=() if self.takes_all_types else self.types,
        )

    def _add(self, handler: Handler) -> None:
        """Run this handler for its type, from now on."""
        check_importable(handler, is_virtual=self.timing.is_virtual)
        self._by_type[handler.type] = executor = self._executor(where_to_run(handler))
        self._runners[handler.type] = Runner(handler, executor, self._layers, self.options.retry_policy)
        if handler.retry is not None:
            self._policies[handler.type] = handler.retry

    def _executor(self, where: Where) -> Executor:
        """The executor of a place, made when it is needed; in virtual time everything runs in the loop."""
        if where not in self._executors and self.timing.is_virtual:
            self._executors[where] = self._executors["loop"]
        elif where not in self._executors:
            is_thread = where == "thread"
            self._executors[where] = ThreadExecutor() if is_thread else ProcessExecutor(self, self._deadlines)
        return self._executors[where]

    # ------------------------------------------------------------------ from outside

    def stop(self, why: str = "stop", *, now: bool = False) -> None:
        """Claim nothing more and end after the running jobs; `now`: release them at once."""
        self.why = self.why or why
        self._is_hurried = self._is_hurried or now
        self._fetcher.may_claim = False
        self._is_stopping.set()
        self._has_news.set()

    def quiet(self) -> None:
        """Claim nothing more, and stay."""
        self._fetcher.may_claim = False

    @property
    def is_quiet(self) -> bool:
        return not self._fetcher.may_claim

    @property
    def heartbeat_lag(self) -> float:
        """By how many seconds the most overdue extension of a lease is late."""
        oldest = min((leased.lease.extended for leased in self.leased_jobs), default=None)
        if oldest is None:
            return 0.0
        late = self.timing.monotonic() - oldest - self._renew_seconds
        return max(late, 0.0)

    # ------------------------------------------------------------------ from start to end

    async def run(self, *, until_idle: bool) -> None:
        self._stops_when_idle = until_idle
        self.announcer.worker_started(self.types, resolves=self.resolver is not None)
        if self.recorder is not None:
            self._stop_recording = self.recorder.listen(self.events)
        self._heartbeat.start()
        tasks = [self._loop.create_task(self._fetcher.run())]
        if self.driver.capabilities.wakeups:
            tasks.append(self._loop.create_task(follow_wakeups(self)))
        try:
            await self._is_stopping.wait()
            await self._drain()
        except asyncio.CancelledError:
            self.stop("cancelled", now=True)
            await self._drain()
            raise
        finally:
            await self._close(*tasks)

    async def _drain(self) -> None:
        self._slots.release_waiting()
        await self._settled_within(self.options.grace.total_seconds(), lambda: self._is_hurried)
        for leased in self.leased_jobs.running():
            self._stopper.stop(leased, "shutdown", LAST_PATIENCE_SECONDS)
        await self._settled_within(LAST_PATIENCE_SECONDS, lambda: not self.leased_jobs.running())
        for leased in self.leased_jobs.running():
            self._stopper.give_up(leased)
        if not await self._settled_within(LAST_CALLS_SECONDS, lambda: False):
            _log.warning(
                "%d jobs could not be released; they become ready when their leases end",
                self.leased_jobs.count,
            )

    async def _settled_within(self, seconds: float, is_enough: Callable[[], bool]) -> bool:
        """Wait until nothing is held any more; False if that took too long."""
        over = self.timing.monotonic() + seconds
        while self.leased_jobs.count and not is_enough():
            left = over - self.timing.monotonic()
            if left <= 0:
                return False
            self._has_news.clear()
            await self.timing.until(self._has_news, left)
        return not self.leased_jobs.count

    async def _close(self, fetching: asyncio.Task[None], *listening: asyncio.Task[None]) -> None:
        self._fetcher.end()
        with suppress(TimeoutError):
            await self.timing.within(LAST_CALLS_SECONDS, _ended(fetching))
        fetching.cancel()
        for task in listening:
            task.cancel()
            await _ended(task)
        self._deadlines.close()
        await self._heartbeat.stop()
        for executor in self._executors.values():
            await executor.close()
        await self._slots.close()
        self._stop_recording()
        self.announcer.worker_stopped(self.why)

    # ------------------------------------------------------------------ reports of the parts, see `Run`

    def claimed(self, records: list[JobRecord], sent: float) -> None:
        self.announcer.claimed(records)
        trusted_until = sent + self._trust_seconds
        batch = [
            LeasedJob(record, LeaseState(sent, trusted_until), AttemptState(), SettlementState())
            for record in records
        ]
        self.leased_jobs.add(batch)
        if self.gpus:
            for leased in batch:
                self._gpus.assign(leased)
        if self.is_quiet:  # since the claim was sent
            self._slots.release(batch)
            return
        if trusted_until - self.timing.monotonic() < self._renew_seconds:
            self._heartbeat.poke(batch)  # the claim took so long that the next extension would come too late
        self._slots.put(batch)

    def idle(self) -> None:
        if self._stops_when_idle:
            self.stop("idle")

    def forbidden(self, error: Forbidden) -> None:
        if self.error is None:
            queues = ", ".join(self.options.claimed_queues)
            self.error = ConfigurationError(
                f"{error}. This worker serves {queues}. Name the queues of its token with --queues, "
                "or give it a token of the role worker for all of these"
            )
            self.stop("forbidden", now=True)

    def settle_soon(self) -> None:
        self._slots.give_way()
        self._fetcher.ring()

    def look_again(self) -> None:
        self._fetcher.ring()

    def due_in(self, seconds: float) -> None:
        self._fetcher.expect_after(seconds)

    def nothing_held(self) -> None:
        self._has_news.set()
        if self.announcer.ran == self.options.max_jobs > 0:
            self.stop("recycle")

    def deadline_passed(self, leased: LeasedJob) -> None:
        self._stopper.deadline_passed(leased)

    def work_arrived(self) -> None:
        self._fetcher.wake()

    def cancel_reported(self, job_id: str) -> None:
        """A wake-up may be wrong: extending the lease shows whether a cancel was requested."""
        leased = self.leased_jobs.get(job_id)
        if leased is not None:
            self._heartbeat.poke([leased])

    def leases_free(self) -> None:
        if self.timing.is_virtual:
            self._fetcher.ring()
        else:
            with suppress(RuntimeError):  # the worker has just ended
                self._loop.call_soon_threadsafe(self._fetcher.ring)

    def ticked(self) -> bool:
        is_busy = bool(len(self.leased_jobs))
        if not self.timing.is_virtual:
            self._loop_monitor.look(is_busy)
            self._check_memory()
        return is_busy

    def _check_memory(self) -> None:
        if 0 < self.options.max_memory < resident_memory() and not self._is_stopping.is_set():
            with suppress(RuntimeError):  # the worker has just ended
                self._loop.call_soon_threadsafe(self.stop, "recycle")


async def _ended(task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError, Exception):
        await task
