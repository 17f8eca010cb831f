"""Worker: the public object. It knows its handlers and middleware, and does one run at a time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from taskharbor.drivers.contract import Driver
from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.events import EventBus
from taskharbor.middleware import AttemptMiddleware, around_every_attempt, check_layer
from taskharbor.model.clock import Clock
from taskharbor.model.codec import Codec, JsonCodec
from taskharbor.model.duration import shown
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_QUEUE, Job
from taskharbor.model.worker_options import WorkerKeywords, WorkerOptions
from taskharbor.tasks import Handler, job_handler
from taskharbor.worker.attempt import JobContext
from taskharbor.worker.built_in import built_in_handlers
from taskharbor.worker.executors.contract import check_importable
from taskharbor.worker.gpus import find_gpus
from taskharbor.worker.opening import opened
from taskharbor.worker.resolver import Resolve
from taskharbor.worker.run import WorkerRun
from taskharbor.worker.signals import SAME_REQUEST_SECONDS, Signals, run_to_the_end
from taskharbor.worker.timing import Timing


class Worker:
    """Claims jobs, runs their handlers and settles them, until it is stopped.

    The keywords are the fields of `WorkerOptions`, which describes them; they go over those of `options`.

    With `resolve` it claims jobs of all types: `resolve(type)` returns the `Handler` of a type that was not
    added, and is asked once per type. A job for which it returns None, or raises, is released for 30 s;
    nothing is counted.

    Raises:
        ConfigurationError, InvalidArgument: options that cannot work.
    """

    def __init__(
        self,
        driver: Driver,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        kind: str | None = None,
        *,
        options: WorkerOptions | None = None,
        codec: Codec | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        events: EventBus | None = None,
        resolve: Resolve | None = None,
        **keywords: Unpack[WorkerKeywords],
    ) -> None:
        options = (options or WorkerOptions()).with_keywords(
            {"queues": queues, "concurrency": concurrency, "kind": kind, **keywords}
        )
        self.gpus = find_gpus(options.gpus)
        self.options = replace(
            options,
            queues=options.claimed_queues,
            concurrency=min(options.concurrency, len(self.gpus) or options.concurrency),
            name=options.name or _default_name(),
        )
        self.driver = driver
        self.events = events or EventBus()
        self._timing = Timing(clock)
        self._entropy = entropy or Entropy()
        self._codec = codec
        self._resolve = resolve
        self._handlers: dict[str, Handler] = {}
        self._layers: list[AttemptMiddleware] = []
        self._run: WorkerRun | None = None
        self._counts: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops_early = False
        self._stopping = asyncio.Event()
        """Set by a stop that comes while the store is being opened."""
        self.is_supervised = False
        self.default_queue = DEFAULT_QUEUE
        """The queue of children that their handler names no queue for."""
        self.id = ""
        """The name and a random part, new with every run."""

    # ------------------------------------------------------------------ what it can do

    def register(self, type: str, handler: Callable[[JobContext, Job], Any]) -> None:
        """Run `handler(ctx, job)` for jobs of this type. Registering again replaces.

        Raises:
            ConfigurationError: a blank type, or something that cannot be called.
        """
        self.add(job_handler(type, handler, codec=self._codec))

    def add(self, handler: Handler) -> None:
        """Run this handler for its type; what a harbor does with its tasks."""
        self._handlers[handler.type] = handler

    def use(self, middleware: AttemptMiddleware) -> None:
        """Put `async def middleware(ctx, job, call_next)` around every attempt. First in, outermost."""
        check_layer(middleware)
        self._layers.append(middleware)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of jobs that it has handlers for."""
        return tuple(sorted(self._handlers))

    # ------------------------------------------------------------------ run and stop

    async def arun(self, *, until_idle: bool = False) -> None:
        """Work until stopped; with `until_idle` until there is nothing left that could run now.

        Opens the driver if that has not been done, and then closes it at the end. A SIGTERM stops it
        like `stop()`, unless the program handles that signal itself.

        The event loop is the program's. A handler may raise SystemExit or KeyboardInterrupt in a task of its
        own (TaskGroup, gather): then asyncio ends the whole loop. Only `run`, whose loop is the worker's,
        makes it a failure of that job alone. The same goes for threads of asyncio.to_thread, which keep such
        a program alive until they end.
        """
        if asyncio._get_running_loop() is None:
            raise InvalidArgument(
                "arun() needs the event loop of asyncio, and none runs; under trio, use `run()` in a thread"
            )
        with Signals(self, only_unclaimed=True, enabled=not self._timing.is_virtual):
            await self._work(until_idle)

    def run(self, *, until_idle: bool = False) -> str:
        """Work in the foreground, signals and all, and return why it ended: stop, idle or recycle.

        SIGTERM or SIGINT: claim nothing more, finish, return; one more, at least a second later, releases the
        running jobs at once. SIGQUIT prints all stacks to stderr, SIGUSR1 stops claiming and stays, SIGHUP
        reopens log files, or stops it when stdin is a terminal.
        """
        if asyncio._get_running_loop() is not None:
            raise InvalidArgument(
                "run() would block the event loop that runs here: use `await arun()`; nothing was done"
            )
        return run_to_the_end(self._run_with_signals(until_idle))

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing more and end once the running jobs have; `now` releases them at once.

        From any thread. Before a run it ends that run at once.
        """
        loop, run = self._loop, self._run
        if loop is None or run is None:
            self._stops_early = True
            if loop is not None:
                loop.call_soon_threadsafe(self._stopping.set)
        else:
            loop.call_soon_threadsafe(lambda: run.stop(now=now))

    def quiet(self) -> None:
        """Claim nothing more, and stay. From any thread."""
        loop, run = self._loop, self._run
        if loop is not None and run is not None:
            loop.call_soon_threadsafe(run.quiet)

    @property
    def is_running(self) -> bool:
        """Whether it was started, found its store, and has not ended."""
        return self._run is not None

    @property
    def busy(self) -> int:
        """How many of its slots hold a job now. From any thread."""
        run = self._run
        return 0 if run is None else min(run.leased_jobs.count, self.options.concurrency)

    @property
    def waits_for(self) -> str:
        """What a stop would wait for now, in words."""
        running, longest = self.busy, shown(self.options.grace)
        if not running:
            return "no job runs"
        return f"waiting for {running} {'job' if running == 1 else 'jobs'}, {longest} at most"

    @property
    def heartbeat_lag(self) -> float:
        """By how many seconds the most overdue extension of a lease is late. From any thread."""
        run = self._run
        return 0.0 if run is None else run.heartbeat_lag

    @property
    def counts(self) -> dict[str, int]:
        """What this run, or the last one, saw: finished, released, leases_lost, ran_twice, …"""
        return self._counts if self._run is None else self._run.announcer.counts

    async def _run_with_signals(self, until_idle: bool) -> str:
        # A second request passed on by a supervisor may arrive sooner after the first than it reached the
        # supervisor.
        with Signals(self, same_seconds=SAME_REQUEST_SECONDS / (2 if self.is_supervised else 1)):
            return await self._work(until_idle)

    async def _work(self, until_idle: bool) -> str:
        if self._loop is not None:
            raise ConfigurationError("this worker is already running; make another one")
        self._check_handlers()
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._stops_early:
            self._stopping.set()
        try:
            if self.driver.is_open:
                return await self._run_once(until_idle)
            return await self._run_opened(until_idle)
        finally:
            self._loop, self._stops_early = None, False

    async def _run_opened(self, until_idle: bool) -> str:
        wait = self.options.store_wait
        if not await opened(self.driver, wait, self._stopping, self._timing, self._entropy):
            return "stop"
        try:
            return await self._run_once(until_idle)
        finally:
            await self.driver.close()

    async def _run_once(self, until_idle: bool) -> str:
        self.id = f"{self.options.name}-{self._entropy.bytes(4).hex()}"
        self._run = run = WorkerRun(
            self.options,
            self.driver,
            self.id,
            self.gpus,
            self._all_handlers(),
            [*around_every_attempt, *self._layers],
            self._timing,
            self._entropy,
            self.events,
            self._resolve,
            self._codec,
            self.default_queue,
        )
        if self._stops_early:
            run.stop()
        try:
            await run.run(until_idle=until_idle)
        finally:
            self._counts = run.announcer.counts
            self._run = None
        if run.error is not None:
            raise run.error
        return run.why

    def _all_handlers(self) -> dict[str, Handler]:
        """Its own, and on a store with workflows those of nodes that no task has."""
        if not self.driver.capabilities.workflows:
            return dict(self._handlers)
        built_in = built_in_handlers(self._codec or JsonCodec())
        return {handler.type: handler for handler in built_in} | self._handlers

    def _check_handlers(self) -> None:
        if not self._handlers and self._resolve is None and self.options.unknown_types == "skip":
            raise ConfigurationError(_NO_TASKS)
        for handler in self._handlers.values():
            check_importable(handler, is_virtual=self._timing.is_virtual)


_NO_TASKS = (
    "this worker knows no task, so nothing would run: import the modules that hold the tasks, for example "
    "with --include app.tasks. With unknown_types='fail' (--unknown-types fail) it starts all the same, "
    "and sends every job it meets to the dead letters"
)


def _default_name() -> str:
    host = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in socket.gethostname())
    return f"{host[:100] or 'worker'}-{os.getpid()}"
