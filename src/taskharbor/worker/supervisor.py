"""The supervisor: keeps N worker processes alive, each a fresh interpreter with the app in it.

    starting ──► running ──crashed──► waiting (longer each time) ──► starting
                    ├──recycled──────────────────────────────────► starting, at once
                    └──told to stop, or nothing left to do──► over

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
    StopWishes,
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
"""The exit code of a worker that has done its share and wants a successor."""
MISCONFIGURED = 2
"""The exit code of a worker that could never start; trying again would not help."""

_STEADY_SECONDS = 10.0  # who lived longer than that is restarted at once
_LONGEST_WAIT_SECONDS = 30.0
_KILL_AFTER_SECONDS = 5.0  # beyond the grace time
_LAST_WORDS_SECONDS = 1.0
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
    """Listens to what the worker processes tell about themselves, each through a pipe of its own."""

    def came(self, pid: int) -> None: ...

    def reported(self, pid: int, data: bytes) -> None: ...

    def left(self, pid: int, how: str) -> None:
        """It is gone, and all it told has been heard; `how` is done, recycled or crashed."""
        ...


def run_supervisor(config: SupervisorConfig, reports: Reports | None = None) -> int:
    """Run the workers in the foreground until told to stop; answers the exit code of the command.

    0 after a clean end, 2 when a worker could not start because of its settings or its app. The app is
    loaded here first, so that a broken one is told once, and no process is started for it. With `reports`
    the app gets one more option: `report_to`, the descriptor to write reports to, each behind its size in
    four bytes, the highest first.
    """
    sys.path[:0] = [folder for folder in config.path if folder not in sys.path]
    try:
        load_worker(config.app, config.options)
    except Exception as error:  # noqa: BLE001 - an app may raise anything while it is imported
        said = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        _log.error("cannot start %s: %s", config.app, said)
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
        self._wishes = StopWishes()
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
        """See to it that somebody works in this place, until told to stop."""
        crashes = 0
        while not self._stopping.is_set():
            started = self._clock.monotonic()
            code = await self._one_life(place)
            if self._is_over(code):
                return
            if code == RECYCLED or self._clock.monotonic() - started >= _STEADY_SECONDS:
                crashes = 0
            else:
                crashes += 1
                await self._wait(crashes)

    async def _one_life(self, place: int) -> int:
        worker = self._workers[place] = _WorkerProcess(self._config, reports=self._reports is not None)
        _log.info("worker process %d has started", worker.pid)
        hearing = asyncio.ensure_future(self._hear(worker))
        try:
            code = await worker.until_exit(self._stopping, self._config.grace_seconds + _KILL_AFTER_SECONDS)
        finally:
            del self._workers[place]
        await self._heard(worker, hearing, code)
        if code == RECYCLED:
            _log.info("worker process %d has done its share", worker.pid)
        elif code != 0:
            who = f"worker process {worker.pid}"
            _log.warning("%s", cause_of_death(code, worker.oom_before, who=who, when=""))
        return code

    async def _hear(self, worker: _WorkerProcess) -> None:
        if self._reports is not None:
            self._reports.came(worker.pid)
            await worker.pass_reports(self._reports)

    async def _heard(self, worker: _WorkerProcess, hearing: asyncio.Future[None], code: int) -> None:
        """Hear its last words; a descendant that outlived it may hold the pipe, and is not waited for."""
        await asyncio.wait((hearing,), timeout=_LAST_WORDS_SECONDS)
        hearing.cancel()
        if self._reports is not None:
            self._reports.left(worker.pid, {0: "done", RECYCLED: "recycled"}.get(code, "crashed"))

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
        wish = self._wishes.heard()
        if wish:
            count, seconds = len(self._workers), self._config.grace_seconds
            words = f": {count} worker {'process' if count == 1 else 'processes'}, {seconds:g} s at most"
            _log.info("told to stop%s", " again" if wish > 1 else words)
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
        if not self._wishes.count:  # a closing terminal tends to say so twice, and that is no second wish
            self._asked_to_stop()

    def _reopen(self) -> None:
        reopen_logs()
        self._pass_on(SIGHUP)


class _WorkerProcess:
    """One worker process. It leads its own session, so that a terminal's Ctrl-C reaches it only once."""

    def __init__(self, config: SupervisorConfig, *, reports: bool) -> None:
        self._mark = Entropy().token()
        self._ear, mouth = os.pipe() if reports else (-1, -1)
        if reports:
            config = replace(config, options={**config.options, "report_to": mouth})
        self.oom_before = oom_kills()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taskharbor.worker.worker_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(mouth,) if reports else (),
            env={**os.environ, MARK: self._mark},
        )
        if reports:
            os.close(mouth)
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
        """Hand on what it tells, until it says no more."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        pipe = os.fdopen(self._ear, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > _LARGEST_REPORT:
                    return
                reports.reported(self.pid, await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return  # it is gone, perhaps in the middle of a word
        finally:
            transport.close()

    async def until_exit(self, stopping: asyncio.Event, patience_seconds: float) -> int:
        """The exit status, once it has ended; killed when it takes too long to stop.

        Its family goes while it is a zombie, before its number can be given to anybody else.
        """
        exiting = asyncio.ensure_future(ended(self._process))
        told = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((exiting, told), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((exiting,), timeout=patience_seconds)
            kill_tree(self._process.pid, self._mark)
            await exiting
            return self._process.wait()
        finally:
            told.cancel()
