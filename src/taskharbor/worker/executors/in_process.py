"""CPU-bound and dangerous handlers: each in a child process, so that a crash hurts no other job.

    spawned ──ready──► idle ◄──ended──┐
                        └──start──► busy ──died, or killed──► replaced

Children are fresh interpreters, never forks of this threaded process. They lead a session of their
own, die with this process, and take their descendants with them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from taskharbor.events import ChildDied
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import Job, Progress
from taskharbor.model.outcome import Failed
from taskharbor.tasks import Handler
from taskharbor.worker.executors.contract import Call, HandlerDied, RemoteFailure, Where
from taskharbor.worker.executors.process_tree import (
    MARK,
    cause_of_death,
    has_ended,
    kill_tree,
    oom_kills,
    strays_of,
)
from taskharbor.worker.executors.wire import (
    ChildHello,
    Ended,
    Frames,
    ProgressMade,
    Ready,
    Start,
    Stop,
    ToChild,
    frame,
    from_child,
    value_of,
)
from taskharbor.worker.gpus import environment_of

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.deadlines import Deadlines
    from taskharbor.worker.leased_jobs import LeasedJob
    from taskharbor.worker.run import Run

_log = logging.getLogger("taskharbor.worker")

_CHILD_MODULE = "taskharbor.worker.executors.handler_process"
_LAST_BYTES_SECONDS = 0.1  # an ended process may have sent something we have not read yet
_START_SECONDS = 60.0  # a process that needs longer counts as one that hangs
_EXIT_SECONDS = 0.3  # a process that closed its connection usually ends by itself


class Child(asyncio.Protocol):
    """One handler process, seen from the worker."""

    def __init__(
        self,
        modules: list[str],
        memory: int,
        extra_env: Mapping[str, str],
        on_death: Callable[[Child, str], None],
    ) -> None:
        self._on_death = on_death
        self.extra_env = extra_env
        self._mark = Entropy().token()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        self._oom_before = oom_kills()
        self._killed_for = ""
        self._is_reaped = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.answer: asyncio.Future[Ended] | None = None
        self.leased: LeasedJob | None = None
        self.last_job_id: str | None = None  # after which it was ended
        self._spawn(modules, memory)

    # ------------------------------------------------------------------ start

    def _spawn(self, modules: list[str], memory: int) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = self._started(theirs.fileno())
        except BaseException:
            ours.close()
            raise
        self._ours = ours
        self._hello = ChildHello(sys.path, modules, memory)

    def _started(self, connection: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", _CHILD_MODULE, str(connection), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(connection,),
            start_new_session=True,
            env={
                **os.environ,
                MARK: self._mark,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **self.extra_env,
            },
        )

    async def connect(self) -> None:
        self._ours.setblocking(False)
        await self._loop.create_connection(lambda: self, sock=self._ours)
        self._watch_exit()
        self.send(self._hello)

    def _watch_exit(self) -> None:
        with suppress(OSError, AttributeError, NotImplementedError):
            self._pidfd = os.pidfd_open(self.process.pid)
            self._loop.add_reader(self._pidfd, self._exited)

    # ------------------------------------------------------------------ messages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, message: ToChild) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._received(from_child.decode(message))
        except Exception as error:  # noqa: BLE001 - a handler may have written to the connection
            self.kill(f"its process sent an invalid message: {error}")

    def _received(self, message: Ready | ProgressMade | Ended) -> None:
        if isinstance(message, Ready):
            self.ready.set_result(None)
        elif isinstance(message, ProgressMade) and self.leased is not None:
            self.leased.note_progress(Progress(message.fraction, message.text))
        elif isinstance(message, Ended) and self.answer is not None and not self.answer.done():
            self.answer.set_result(message)

    # ------------------------------------------------------------------ end

    @property
    def is_alive(self) -> bool:
        return not self._is_reaped and self._transport is not None and not self._transport.is_closing()

    def terminate(self, reason: str, patience_seconds: float) -> None:
        """Ask it to stop, and kill it when the patience is over."""
        self.send(Stop(reason))
        if self.process.returncode is None:
            os.kill(self.process.pid, signal.SIGTERM)  # Popen.send_signal would reap a zombie
        asked = self.answer
        self._loop.call_later(patience_seconds, self._kill_if_still_at, asked)

    def _kill_if_still_at(self, asked: asyncio.Future[Ended] | None) -> None:
        if asked is not None and self.answer is asked and not asked.done():
            self.kill("")

    def kill(self, why: str) -> None:
        """Kill it and all its descendants now."""
        if not self._is_reaped:
            self._killed_for = self._killed_for or why
            self._kill_tree()
            if self._pidfd is None:
                self._loop.call_later(_LAST_BYTES_SECONDS, self._exited)

    def has_strays(self) -> bool:
        """Whether processes run that its handlers have started."""
        return self.process.returncode is None and bool(strays_of(self.process.pid, self._mark))

    def _kill_tree(self) -> None:
        if self.process.returncode is None:  # once it is reaped, its pid may be reused
            kill_tree(self.process.pid, self._mark)

    def connection_lost(self, error: Exception | None) -> None:
        """It ended, or its handler closed every descriptor."""
        self._loop.call_later(_EXIT_SECONDS, self._reap_or_kill)
        if self.process.returncode is not None or self._pidfd is None:
            self._reap_or_kill()

    def _reap_or_kill(self) -> None:
        if not self._is_reaped and not has_ended(self.process):
            self.kill("its process closed its connection to the worker")
        elif not self._is_reaped:
            self._exited()

    def _exited(self) -> None:
        """It is a zombie now: kill its descendants first, while its pid cannot be reused."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if not self._is_reaped:
            self._kill_tree()
            if self.process.poll() is None:
                self._loop.call_later(_LAST_BYTES_SECONDS, self._exited)
            else:
                self._loop.call_later(_LAST_BYTES_SECONDS if self.answer else 0, self._reap)

    def _reap(self) -> None:
        if self._is_reaped:
            return
        self._is_reaped = True
        if self._transport is not None:
            self._transport.abort()
        cause = self._killed_for or cause_of_death(self.process.returncode, self._oom_before)
        if not self.ready.done():
            self.ready.set_exception(HandlerDied(f"{cause} while it started"))
            self.ready.exception()  # marks it as retrieved: asyncio would log it otherwise
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(HandlerDied(cause))
        self._on_death(self, cause)


class ProcessExecutor:
    """A pool of handler processes, as many as jobs need at once."""

    where: Where = "process"

    def __init__(self, run: Run, deadlines: Deadlines) -> None:
        self._worker_id = run.worker_id
        self._events = run.events
        self._timing = run.timing
        self._deadlines = deadlines
        self._memory = run.options.process_memory
        self._max_attempts = run.options.retry_policy.max_attempts
        self._patience = run.options.patience.total_seconds()
        self._has_gpus = bool(run.gpus)
        self._modules: list[str] = []
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._starting: asyncio.Task[None] | None = None
        self._is_closing = False

    def call_of(self, handler: Handler) -> Callable[[LeasedJob], Call]:
        reference = handler.reference or ""
        module = reference.partition(":")[0]
        if module and module not in self._modules:
            self._modules.append(module)

        def for_job(leased: LeasedJob) -> Call:
            async def call(ctx: JobContext, job: Job) -> Any:
                child = await self._acquire(leased)
                ends_in = job.timeout.total_seconds() if job.timeout else None
                gpu = (
                    None if leased.attempt.gpu is None else replace(leased.attempt.gpu, ordinal=0)
                )  # the only one it sees
                start = Start(
                    reference,
                    job,
                    ctx.fence,
                    ends_in,
                    gpu,
                    ctx.worker,
                    handler.recycle_on,
                    self._max_attempts,
                )
                return await self._run(leased, child, start)

            return call

        return for_job

    async def _run(self, leased: LeasedJob, child: Child, start: Start) -> Any:
        leased.attempt.work = child
        child.leased = leased
        child.answer = asyncio.get_running_loop().create_future()
        if leased.attempt.cancellation.reason is not None:
            self._rest(child)
            raise HandlerDied("asked to stop before it began")
        child.send(start)
        try:
            message = await child.answer
        except asyncio.CancelledError:
            child.kill("the worker no longer waits for it")
            raise
        finally:
            leased.attempt.work = child.leased = None
            child.answer = None
        self._keep_or_retire(child, message, leased)
        value = value_of(message)
        if isinstance(value, Failed):
            raise RemoteFailure(value)
        return value

    async def _acquire(self, leased: LeasedJob) -> Child:
        """A process that is ready. The time limit of the job begins when it is, not while it starts."""
        env = self._env_of(leased)
        for child in [child for child in reversed(self._idle) if child.extra_env == env]:
            self._idle.remove(child)
            if child.is_alive:
                return child
        ends = leased.attempt.ends
        if ends is None:
            return await self._new_child(env, leased)
        limit = ends - self._timing.monotonic()
        self._deadlines.set(leased, ends + _START_SECONDS)
        child = await self._new_child(env, leased)
        if leased.attempt.stop_requested is None:
            self._deadlines.set(leased, self._timing.monotonic() + limit)
        return child

    def _env_of(self, leased: LeasedJob) -> Mapping[str, str]:
        """A process sees the GPU of its first job and keeps to it: libraries look once, when imported."""
        return environment_of(leased.attempt.gpu) if self._has_gpus else {}

    async def _new_child(self, env: Mapping[str, str], leased: LeasedJob | None = None) -> Child:
        """A process that is ready. One that takes too long, or is not waited for any more, is killed.

        Raises:
            HandlerDied: there is none, and why.
        """
        child = self._spawned(env)
        if leased is not None:
            leased.attempt.work = child
        try:
            await child.connect()
            await self._timing.within(_START_SECONDS, _ready(child))
        except TimeoutError:
            child.kill(f"its process was not ready after {_START_SECONDS:g} s")
            await child.ready
        except BaseException:
            child.kill("it is not waited for any more")
            raise
        finally:
            if leased is not None:
                leased.attempt.work = None
        return child

    def _spawned(self, env: Mapping[str, str]) -> Child:
        try:
            child = Child(self._modules, self._memory, env, self._died)
        except (OSError, subprocess.SubprocessError) as error:
            raise HandlerDied(f"no process could be started for it: {error}") from error
        self._all.add(child)
        return child

    def _keep_or_retire(self, child: Child, message: Ended, leased: LeasedJob) -> None:
        worn = message.worn
        if not worn and leased.attempt.cancellation.is_set() and child.has_strays():
            # Ended with it, not one by one: what it keeps for the next job may lean on them.
            worn = "its handler was stopped, and left processes running"
        if worn or self._is_closing:
            child.last_job_id = leased.record.id
            child.kill(worn)
        else:
            self._rest(child)

    def _rest(self, child: Child) -> None:
        child.leased = child.answer = None
        if child.is_alive:
            self._idle.append(child)

    def _died(self, child: Child, cause: str) -> None:
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        if self._is_closing:
            return
        job_id = child.leased.record.id if child.leased is not None else child.last_job_id
        _log.warning("handler process %d has ended (job %s): %s", child.process.pid, job_id, cause)
        self._events.emit(
            ChildDied(worker_id=self._worker_id, pid=child.process.pid, cause=cause, job_id=job_id)
        )
        if job_id is not None and not any(other.extra_env == child.extra_env for other in self._idle):
            self._starting = asyncio.get_running_loop().create_task(self._spare(child.extra_env))
            self._starting.add_done_callback(self._log_failure)

    async def _spare(self, env: Mapping[str, str]) -> None:
        """Have a process ready for the next job."""
        self._rest(await self._new_child(env))

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A worker that ends has ended its spare process too: no reason to warn.
            level = logging.DEBUG if self._is_closing else logging.WARNING
            _log.log(level, "no spare handler process: %s", error)

    # ------------------------------------------------------------------ stopping

    def stop(self, leased: LeasedJob) -> None:
        child = leased.attempt.work
        if not isinstance(child, Child):
            return
        if not child.ready.done():
            child.kill("it was asked to stop")  # nothing of the job has begun
        else:
            child.terminate(leased.attempt.cancellation.reason or "shutdown", self._patience)

    def give_up(self, leased: LeasedJob) -> bool:
        child = leased.attempt.work
        if not isinstance(child, Child):
            return False
        child.kill("")
        return True

    async def close(self) -> None:
        """End every child; none of them outlives its worker."""
        self._is_closing = True
        for child in list(self._all):
            child.kill("the worker ends")
        for _ in range(50):
            if not self._all:
                break
            await self._timing.clock.sleep(0.02)


async def _ready(child: Child) -> None:
    await asyncio.shield(child.ready)
