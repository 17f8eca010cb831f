"""The supervisor: keeps N worker processes alive, each a fresh interpreter with the app in it.

    starting ──► running ──crashed──► waiting (longer each time) ──► starting
                    ├──recycled──────────────────────────────────► starting, at once
                    └──asked to stop, or nothing left to do──► over

It claims nothing and holds no lease. Signals are passed on; when it dies, however that happens,
its workers die with it, and their jobs come back when their leases run out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from signal import SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, Signals
from typing import Any, Protocol

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.worker.executors.process_tree import MARK, cause_of_death, ended, kill_tree, oom_kills
from taskharbor.worker.health import HealthServer
from taskharbor.worker.signals import (
    StopRequests,
    dump_stacks,
    hangs_up,
    reopen_logs,
    run_to_the_end,
    stdin_is_terminal,
    stop_signals,
)
from taskharbor.worker.worker_loading import load_worker

_log = logging.getLogger("taskharbor.supervisor")

RECYCLED = 83
"""The exit code of a worker that has reached max_jobs or max_memory and is to be replaced."""
MISCONFIGURED = 2
"""The exit code of a worker that could never start; trying again would not help."""

_STEADY_SECONDS = 10.0  # a worker that ran longer than that is restarted at once
_LONGEST_WAIT_SECONDS = 30.0
_KILL_AFTER_SECONDS = 5.0  # beyond the grace time
_LAST_REPORTS_SECONDS = 1.0
_LARGEST_REPORT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """What to run, and how many of it.

    `app` is `module:name` of something with a `worker(**options)` method, such as a Harbor, of a
    Worker, or of a function that makes one. `options` go to that method as they are; durations
    among them (lease, grace, heartbeat, poll, patience) may be seconds. `path` is put in front of the import
    path. With `until_idle` it ends when the workers find nothing left to do.
    """

    app: str
    processes: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    until_idle: bool = False
    grace_seconds: float = 30.0
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if ":" not in self.app:
            raise ConfigurationError(f"app={self.app!r} must look like module:name")
        if not 1 <= self.processes <= 1000:
            raise ConfigurationError(f"processes={self.processes} must lie between 1 and 1000")


class Reports(Protocol):
    """Receives the reports of the worker processes, each through a pipe of its own."""

    def started(self, pid: int) -> None: ...

    def reported(self, pid: int, data: bytes) -> None: ...

    def ended(self, pid: int, how: str) -> None:
        """It has ended and all its reports were received; `how` is done, recycled or crashed."""
        ...


def run_supervisor(config: SupervisorConfig, reports: Reports | None = None) -> int:
    """Run the workers in the foreground until asked to stop; returns the exit code of the command.

    0 after a clean end, 2 when a worker could not start because of its settings or its app. The app is
    loaded here first, so that a broken one is reported once, and no process is started for it. With `reports`
    the app gets one more option: `report_to`, the descriptor to write reports to, each behind its size in
    four bytes, the highest first.
    """
    sys.path[:0] = [folder for folder in config.path if folder not in sys.path]
    try:
        load_worker(config.app, config.options)
    except Exception as error:  # noqa: BLE001 - an app may raise anything while it is imported
        text = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        _log.error("cannot start %s: %s", config.app, text)
        _log.debug("where that was raised", exc_info=error)
        return MISCONFIGURED
    return run_to_the_end(Supervisor(config, reports).run())


class Supervisor:
    """Starts, watches, restarts and stops worker processes."""

    def __init__(self, config: SupervisorConfig, reports: Reports | None = None) -> None:
        self._config = config
        self._reports = reports
        self._clock = SystemClock()
        self._entropy = Entropy()
        self._workers: dict[int, _WorkerProcess] = {}
        self._stopping = asyncio.Event()
        self._requests = StopRequests()
        self._exit_code = 0

    async def run(self) -> int:
        async with AsyncExitStack() as stack:
            self._take_signals(stack)
            if self._config.health_port is not None:
                health = HealthServer(
                    self._config.health_host, self._config.health_port, lambda: True, self._is_ready
                )
                await stack.enter_async_context(health)
            await asyncio.gather(*(self._keep(place) for place in range(self._config.processes)))
        return self._exit_code

    # ------------------------------------------------------------------ one place

    async def _keep(self, place: int) -> None:
        """Keep one worker process running, until asked to stop."""
        crashes = 0
        while not self._stopping.is_set():
            started = self._clock.monotonic()
            code = await self._run_process(place)
            if self._is_over(code):
                return
            if code == RECYCLED or self._clock.monotonic() - started >= _STEADY_SECONDS:
                crashes = 0
            else:
                crashes += 1
                await self._wait(crashes)

    async def _run_process(self, place: int) -> int:
        worker = self._workers[place] = _WorkerProcess(self._config, reports=self._reports is not None)
        _log.info("worker process %d has started", worker.pid)
        receiving = asyncio.ensure_future(self._receive(worker))
        try:
            code = await worker.until_exit(self._stopping, self._config.grace_seconds + _KILL_AFTER_SECONDS)
        finally:
            del self._workers[place]
        await self._received(worker, receiving, code)
        if code == RECYCLED:
            _log.info("worker process %d has reached its limit of jobs or memory", worker.pid)
        elif code != 0:
            who = f"worker process {worker.pid}"
            _log.warning("%s", cause_of_death(code, worker.oom_before, who=who, when=""))
        return code

    async def _receive(self, worker: _WorkerProcess) -> None:
        if self._reports is not None:
            self._reports.started(worker.pid)
            await worker.pass_reports(self._reports)

    async def _received(self, worker: _WorkerProcess, receiving: asyncio.Future[None], code: int) -> None:
        """Receive its last reports; do not wait for a descendant that still holds the pipe."""
        await asyncio.wait((receiving,), timeout=_LAST_REPORTS_SECONDS)
        receiving.cancel()
        if self._reports is not None:
            self._reports.ended(worker.pid, {0: "done", RECYCLED: "recycled"}.get(code, "crashed"))

    def _is_over(self, code: int) -> bool:
        if code == MISCONFIGURED:
            self._exit_code = MISCONFIGURED
            self._stop()
        return self._stopping.is_set() or (code == 0 and self._config.until_idle)

    async def _wait(self, crashes: int) -> None:
        longest = min(0.5 * 2 ** (crashes - 1), _LONGEST_WAIT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._entropy.between(longest / 2, longest)):
                await self._stopping.wait()

    def _is_ready(self) -> bool:
        return not self._stopping.is_set() and len(self._workers) == self._config.processes

    # ------------------------------------------------------------------ signals

    def _take_signals(self, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        actions: dict[Signals, Callable[[], None]] = {
            **dict.fromkeys(stop_signals(), self._asked_to_stop),
            SIGUSR1: lambda: self._pass_on(SIGUSR1),
            SIGQUIT: self._dump,
        }
        if hangs_up():
            actions[SIGHUP] = self._hung_up
        elif not stdin_is_terminal():
            actions[SIGHUP] = self._reopen
        for number, action in actions.items():
            loop.add_signal_handler(number, action)
            stack.callback(loop.remove_signal_handler, number)

    def _asked_to_stop(self) -> None:
        request = self._requests.received()
        if request:
            count, seconds = len(self._workers), self._config.grace_seconds
            words = f": {count} worker {'process' if count == 1 else 'processes'}, {seconds:g} s at most"
            _log.info("stopping%s", " now" if request > 1 else words)
            self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._pass_on(SIGTERM)

    def _pass_on(self, number: Signals) -> None:
        for worker in self._workers.values():
            worker.send(number)

    def _dump(self) -> None:
        dump_stacks()
        self._pass_on(SIGQUIT)

    def _hung_up(self) -> None:
        if not self._requests.count:  # a closing terminal tends to send it twice
            self._asked_to_stop()

    def _reopen(self) -> None:
        reopen_logs()
        self._pass_on(SIGHUP)


class _WorkerProcess:
    """One worker process. It leads its own session, so that a terminal's Ctrl-C reaches it only once."""

    def __init__(self, config: SupervisorConfig, *, reports: bool) -> None:
        self._mark = Entropy().token()
        self._reader, writer = os.pipe() if reports else (-1, -1)
        if reports:
            config = replace(config, options={**config.options, "report_to": writer})
        self.oom_before = oom_kills()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taskharbor.worker.worker_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(writer,) if reports else (),
            env={**os.environ, MARK: self._mark},
        )
        if reports:
            os.close(writer)
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(msgspec.json.encode(config))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)  # Popen's own way to send one would reap it

    async def pass_reports(self, reports: Reports) -> None:
        """Pass on its reports until it closes the pipe."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        pipe = os.fdopen(self._reader, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > _LARGEST_REPORT:
                    return
                reports.reported(self.pid, await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return  # it has ended, perhaps in the middle of a report
        finally:
            transport.close()

    async def until_exit(self, stopping: asyncio.Event, patience_seconds: float) -> int:
        """The exit status, once it has ended; killed when it takes too long to stop.

        Its descendants are killed while it is a zombie, before its pid can be reused.
        """
        exiting = asyncio.ensure_future(ended(self._process))
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((exiting, stopped), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((exiting,), timeout=patience_seconds)
            kill_tree(self._process.pid, self._mark)
            await exiting
            return self._process.wait()
        finally:
            stopped.cancel()
