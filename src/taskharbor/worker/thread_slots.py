"""Plain functions: a slot lends its place to a thread, which runs job after job without the event loop.

    slot ──first job──► thread: handler, handler, handler … ──no job left for it──► slot
                           └── outcomes ──► event loop, many at once ──► settling

To pass each job from the event loop to a thread and back costs several times as much as a short job. A thread
that has ended a job therefore takes the next one from the same list as the slots do, as long as that is a
job for a thread, too. Handlers that a middleware surrounds go the longer way (executors/in_thread.py): the
middleware runs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from inspect import isawaitable
from typing import TYPE_CHECKING

from taskharbor.events import JobStarted
from taskharbor.model.outcome import Outcome
from taskharbor.worker.attempt import Runner, awaited_outcome, refusal, run_in_thread
from taskharbor.worker.attempt_tools import AttemptTools
from taskharbor.worker.daemon_threads import DaemonPool
from taskharbor.worker.deadlines import Deadlines
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.outcomes import DONE, failure_of
from taskharbor.worker.settling import Settler

if TYPE_CHECKING:
    from taskharbor.worker.run import Run


class ThreadSlots:
    """The threads of the slots of one worker."""

    def __init__(
        self,
        run: Run,
        runners: dict[str, Runner],
        line: deque[LeasedJob],
        deadlines: Deadlines,
        settler: Settler,
        tools: AttemptTools,
        wake_next: Callable[[], None],
    ) -> None:
        self._wake_next = wake_next
        self._runners = runners
        self._line = line
        self._deadlines = deadlines
        self._settler = settler
        self._tools = tools
        self._timing = run.timing
        self._events = run.events
        self._announcer = run.announcer
        self._max_result = run.driver.max_payload
        self._loop = asyncio.get_running_loop()
        self._reports: deque[tuple[_Chain, LeasedJob | None, Outcome | None]] = deque()
        self._is_called = False
        self._pool = DaemonPool("taskharbor")

    async def run(self, first: LeasedJob) -> bool:
        """Run this job and those behind it that are for threads; whether the slot can continue then."""
        chain = _Chain(self, first, copy_context())
        try:
            self._pool.start(chain)
        except RuntimeError as error:
            return self._ended(first, failure_of(error))
        goes_on = await chain.future
        if chain.rest is None:
            return goes_on
        leased, value = chain.rest  # a plain function that returned something to await
        outcome = await awaited_outcome(value, leased, self._runner(leased), self._timing, self._max_result)
        leased.attempt.ended = self._timing.monotonic()
        return self._ended(leased, outcome)

    def close(self) -> None:
        self._pool.close()

    # ------------------------------------------------------------------ in a thread

    def next(self) -> LeasedJob | None:
        """The next job, if it is for a thread."""
        try:
            leased = self._line.popleft()
        except IndexError:
            return None
        runner = self._runners.get(leased.record.type)
        if runner is not None and runner.is_blocking:
            return leased
        self._line.appendleft(leased)
        return None

    def run_one(self, chain: _Chain, leased: LeasedJob) -> None:
        record, attempt = leased.record, leased.attempt
        # First `started`, then the look at `cancellation`: who asks it to stop does both the other way round.
        attempt.started = now = self._timing.monotonic()
        if attempt.cancellation.reason or leased.lease.trusted_until <= now or record.cancel_requested:
            attempt.started = None
            self._report(chain, leased, refusal(leased))
            return
        if record.timeout:
            attempt.ends = now + record.timeout.total_seconds()
        if record.timeout or JobStarted in self._events.heard:
            self._report(chain, leased, None)
        outcome = chain.context.copy().run(
            run_in_thread, leased, self._runner(leased), self._timing, self._max_result, self._tools
        )
        if attempt.is_over:
            chain.is_replaced = True  # it was given up meanwhile
            return
        attempt.ended = self._timing.monotonic()
        if outcome is not DONE and isawaitable(outcome):
            chain.rest = leased, outcome
        else:
            self._report(chain, leased, outcome)

    def begun(self, chain: _Chain) -> None:
        """The next slot may start. A thread whose jobs are short has ended them all before it does."""
        self._report(chain, None, DONE)

    def over(self, chain: _Chain) -> None:
        self._report(chain, None, None)

    def _report(self, chain: _Chain, leased: LeasedJob | None, outcome: Outcome | None) -> None:
        """Have the event loop look at it; one call serves for all reports until it does."""
        self._reports.append((chain, leased, outcome))
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the worker has ended and needs no report
                self._loop.call_soon_threadsafe(self._look)

    def _runner(self, leased: LeasedJob) -> Runner:
        return self._runners[leased.record.type]

    # ------------------------------------------------------------------ in the event loop

    def _look(self) -> None:
        self._is_called = False  # before the look: a report after it must call again
        while self._reports:
            chain, leased, outcome = self._reports.popleft()
            if leased is None and outcome is not None:
                self._wake_next()
            elif leased is None:
                if not chain.future.done():
                    chain.future.set_result(not chain.is_replaced)
            elif outcome is None:
                self._started(leased)
            elif not self._ended(leased, outcome):
                chain.is_replaced = True

    def _started(self, leased: LeasedJob) -> None:
        if leased.attempt.ends is not None and not leased.attempt.is_over:
            self._deadlines.set(leased, leased.attempt.ends)
        if JobStarted in self._events.heard:
            self._announcer.started(leased)

    def _ended(self, leased: LeasedJob, outcome: Outcome) -> bool:
        """False if the job was given up before, and its slot to another."""
        attempt = leased.attempt
        if attempt.has_deadline:
            self._deadlines.remove(leased)
        if attempt.is_over:
            return False
        attempt.is_over = True
        self._settler.ended(leased, outcome)
        return True


class _Chain:
    """Jobs that one thread runs one after the other."""

    __slots__ = ("context", "first", "future", "is_replaced", "rest", "slots")

    def __init__(self, slots: ThreadSlots, first: LeasedJob, context: Context) -> None:
        self.slots = slots
        self.first = first
        self.context = context
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_replaced = False
        self.rest: tuple[LeasedJob, Awaitable[object]] | None = None

    def __call__(self) -> Callable[[], None]:
        leased: LeasedJob | None = self.first
        self.slots.begun(self)
        while leased is not None:
            self.slots.run_one(self, leased)
            is_last = self.rest is not None or self.is_replaced
            leased = None if is_last else self.slots.next()
        return self._over

    def _over(self) -> None:
        self.slots.over(self)
