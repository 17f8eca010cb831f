"""Slots: a few long-lived tasks that take claimed jobs from a list and await their handlers directly.

No job gets a task of its own. A slot that is woken wakes the next slot first and then runs its job: a
handler that waits for something does not delay the next job. A handler that never waits is followed by the
next job in the same slot, without a switch between tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from taskharbor.events import JobStarted
from taskharbor.model.clock import pause
from taskharbor.model.job import FailureKind
from taskharbor.model.outcome import Failed, Outcome, Released
from taskharbor.worker.attempt import Runner, refusal, run_attempt
from taskharbor.worker.attempt_tools import AttemptTools
from taskharbor.worker.deadlines import Deadlines
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.resolver import RELEASED_FOR, Resolver
from taskharbor.worker.settling import Settler
from taskharbor.worker.thread_slots import ThreadSlots

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

TURN_SECONDS = 0.002
"""How long slots may run before the rest of the event loop gets a turn."""
_GIVEN_AWAY = float("-inf")


class Slots:
    """At most `concurrency` handlers at once."""

    def __init__(
        self,
        run: Run,
        runners: dict[str, Runner],
        deadlines: Deadlines,
        settler: Settler,
        resolver: Resolver | None,
        tools: AttemptTools,
    ) -> None:
        self._size = run.options.concurrency
        self._runners = runners
        self._timing = run.timing
        self._deadlines = deadlines
        self._settler = settler
        self._resolver = resolver
        self._releases_unknown = resolver is not None and run.options.unknown_types == "skip"
        self._events = run.events
        self._announcer = run.announcer
        self._max_result = run.driver.max_payload
        self._tools = tools
        self._line: deque[LeasedJob] = deque()  # threads take jobs from it, too: see thread_slots.py
        self._threads = ThreadSlots(run, runners, self._line, deadlines, settler, tools, self._wake_next)
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._live = 0
        self._is_waking = False
        self._turn = 0
        self._turn_began = 0.0
        self._context: Context | None = None

    # ------------------------------------------------------------------ jobs in

    def put(self, batch: list[LeasedJob]) -> None:
        self._begin_turn()
        self._line.extend(batch)
        self._wake_next()

    def give_way(self) -> None:
        """End this turn early: the fetcher has something to send."""
        self._turn_began = _GIVEN_AWAY

    @property
    def waiting(self) -> int:
        """How many jobs have not started."""
        return len(self._line)

    @property
    def first_waiting(self) -> LeasedJob | None:
        try:
            return self._line[0]
        except IndexError:
            return None

    def release_waiting(self) -> None:
        """Release the jobs that have not started."""
        waiting = []
        with suppress(IndexError):
            while True:  # one by one: a job that a thread takes meanwhile is not released
                waiting.append(self._line.popleft())
        self.release(waiting)

    def release(self, batch: list[LeasedJob]) -> None:
        """Hand back jobs that have not started."""
        for leased in batch:
            leased.attempt.is_over = True
            self._settler.ended(leased, Released())

    def replace(self, leased: LeasedJob) -> None:
        """The slot of this job is stuck in its handler: abandon it and continue with another."""
        leased.attempt.ended = self._timing.monotonic()
        leased.attempt.is_over = True
        self._live -= 1
        self._wake_next()

    async def close(self) -> None:
        """End the idle slots, and cancel the stuck ones without waiting for them."""
        self._threads.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await pause()

    # ------------------------------------------------------------------ slots

    def _wake_next(self) -> None:
        if not self._line or self._is_waking:
            return
        if self._idle:
            self._is_waking = True
            self._idle.pop().set_result(None)
        elif self._live < self._size:
            self._is_waking = True
            self._open_slot()

    def _open_slot(self) -> None:
        self._live += 1
        if self._context is None:
            self._context = copy_context()
        task = asyncio.get_running_loop().create_task(self._work(), context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of ours always runs in a task
        clean, line = copy_context(), self._line
        self._is_waking = False
        while True:
            try:
                leased = line.popleft()
            except IndexError:
                await self._wait_for_work()
                continue
            runner = self._runner(leased)
            is_blocking = runner is not None and runner.is_blocking
            if line and not self._is_waking and not is_blocking:
                self._wake_next()
            if is_blocking:
                if not await self._threads.run(leased):
                    return
                ended = self._turn_began  # others had their turn while the thread was at work
            elif not self._begun(leased, runner, task):
                self._settler.ended(leased, self._refusal(leased))
                ended = leased.attempt.ended
            else:
                assert runner is not None  # noqa: S101 - it would not have begun
                outcome = await run_attempt(leased, runner, self._timing, self._max_result, self._tools)
                if not self._ended(leased):
                    return
                self._settler.ended(leased, outcome)
                ended = leased.attempt.ended
            if task.cancelling() or copy_context() != clean:
                # The handler left something behind in this task: the next job gets a fresh one.
                self._live -= 1
                self._wake_next()
                return
            if ended - self._turn_began >= TURN_SECONDS:
                await self._give_turn()

    def _runner(self, leased: LeasedJob) -> Runner | None:
        """What runs the job; None if it has no handler here."""
        type_name = leased.record.type
        runner = self._runners.get(type_name)
        if runner is None and self._resolver is not None:
            self._resolver.look_up(type_name)
            runner = self._runners.get(type_name)
        return runner

    def _begun(self, leased: LeasedJob, runner: Runner | None, task: asyncio.Task[None]) -> bool:
        """Start the job; False if it must not start, and is over."""
        record, attempt = leased.record, leased.attempt
        now = self._timing.monotonic()
        if (
            runner is None
            or attempt.cancellation.reason is not None
            or leased.lease.trusted_until <= now
            or record.cancel_requested
        ):
            attempt.is_over = True
            return False
        attempt.started = now
        attempt.task = task
        if record.timeout:
            self._deadlines.set(leased, now + record.timeout.total_seconds())
        if JobStarted in self._events.heard:
            self._announcer.started(leased)
        return True

    def _refusal(self, leased: LeasedJob) -> Outcome:
        """Why a job did not start: cancelled, its lease cannot be trusted, or it has no handler here."""
        record = leased.record
        if record.type in self._runners or record.cancel_requested or leased.attempt.cancellation.is_set():
            return refusal(leased)
        if self._releases_unknown:
            return Released(RELEASED_FOR)
        return Failed(f"no handler is registered for {leased.record.type!r}", FailureKind.NO_HANDLER)

    def _ended(self, leased: LeasedJob) -> bool:
        """Its handler has ended; whether this slot still belongs to the job and can take the next."""
        attempt = leased.attempt
        attempt.ended = self._timing.monotonic()
        attempt.task = None
        if attempt.has_deadline:
            self._deadlines.remove(leased)
        if attempt.is_over:
            return False
        attempt.is_over = True
        return True

    async def _wait_for_work(self) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        try:
            await woken
        finally:
            self._is_waking = False

    async def _give_turn(self) -> None:
        """Wait until all other tasks had a turn; the first slot that is back begins the next one."""
        while True:
            turn = self._turn
            await pause()
            if turn == self._turn:
                self._begin_turn()
            if self._turn_began != _GIVEN_AWAY:
                return

    def _begin_turn(self) -> None:
        self._turn += 1
        self._turn_began = self._timing.monotonic()
