"""The fetcher: the one caller of the store on the way in and out.

It sends what has ended together with a claim for the slots that this frees, and puts the claimed jobs in
line. Between two calls it waits for a bell: a job ended, a wake-up came (`follow_wakeups`), the poll is due.

    ring ──► settlements? free slots? ──► exchange, settle or reserve ──► jobs in line
      ▲                                        │ failed: wait, with jitter, longer each time
      └── job ended · wake-up · poll ──────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from taskharbor.drivers.messages import Claim, Exchanged, WakeupKind
from taskharbor.errors import DriverUnavailable, Forbidden, InvalidArgument, StoreRefused
from taskharbor.model.clock import pause
from taskharbor.model.idle import idle_backoff
from taskharbor.model.job import JobRecord
from taskharbor.worker.claimed_lanes import ClaimedLanes, holds_back
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.settling import Settler, settlements_of
from taskharbor.worker.slots import Slots
from taskharbor.worker.timing import Alarm

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

T = TypeVar("T")

_log = logging.getLogger("taskharbor.worker")

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0
GATHER_SECONDS = 0.005  # the longest that an ended job waits for those that are about to run
GATHER_STEP_SECONDS = 0.001
OVERDUE_SECONDS = 0.1  # claimed ahead of a free slot, and not started for so long: others may run it
POLL_SECONDS = 0.2
MOST_ROUND_TRIPS = 6  # of one call to a store that settles something
POLL_BESIDE_WAKEUPS_SECONDS = 0.5  # wake-ups report new work; the poll finds what has become due


class Fetcher:
    """Free slots and finished jobs → one call to the store at a time."""

    def __init__(self, run: Run, slots: Slots, settler: Settler) -> None:
        self._run = run
        self._slots = slots
        self._settler = settler
        self._options = options = run.options
        self._driver = run.driver
        self._leased_jobs = run.leased_jobs
        self._held_limit = run.held_limit
        self._timing = run.timing
        self._entropy = run.entropy
        lanes = options.claimed_lanes
        self._claim = Claim(
            queues=options.claimed_queues,
            worker_id=run.worker_id,
            lease_for=options.lease,
            lanes=lanes,
            types=None if run.takes_all_types else (*run.types, *run.built_in_types),
            rate=options.rate,
        )
        self._lanes = ClaimedLanes(lanes) if holds_back(lanes) else None  # None: all of them, always
        self._renew_seconds = options.renew_every.total_seconds()
        self._answer_seconds = options.answer_seconds
        self._poll_seconds = self._chosen_poll()
        self._bell = asyncio.Event()
        self._alarm = Alarm(run.timing, self._poll)
        self._overdue_alarm = Alarm(run.timing, self._return_overdue)
        self._first_waiting: LeasedJob | None = None
        self._unclear: list[LeasedJob] = []
        self._quiet_until = 0.0
        self._failures = 0
        self._turns = 0
        self._empty_polls = 0
        self._settles_slowly = False
        self._quickest = 0.0  # recent call that settled something: about a round trip
        self.may_claim = True
        self.expects_work = True  # a claim could bring something
        self.is_over = False

    # ------------------------------------------------------------------ signals

    def ring(self) -> None:
        """Something has changed; look again."""
        if not self._bell.is_set():
            self._bell.set()

    def wake(self) -> None:
        """There may be work."""
        if self._lanes is not None:
            self._lanes.woken(self._timing.monotonic())
        self._empty_polls = 0
        self.expects_work = True
        self._bell.set()

    def expect_after(self, seconds: float) -> None:
        """There will be work: a retry of ours becomes due."""
        if seconds < self._poll_seconds:
            self._alarm.set(self._timing.monotonic() + seconds)

    def end(self) -> None:
        self.may_claim = False
        self.is_over = True
        self._alarm.clear()
        self._overdue_alarm.clear()
        self._bell.set()

    def _poll(self) -> None:
        if self._lanes is not None:
            self._lanes.polled(self._timing.monotonic())
        self._empty_polls += 1
        self.expects_work = True
        self._bell.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until `end` is called and nothing is left to settle. A failing store never ends it.

        A claim that was under way at the end may still bring jobs; they are released at once.
        """
        while self._has_something_to_do():
            self._bell.clear()
            if not self._must_be_quiet():
                await self._gather()
                await self.turn()
            self._arm()
            if self._has_something_to_do():
                await self._bell.wait()

    async def _gather(self) -> None:
        """Let the jobs in line start before the ended ones are sent, for at most 5 ms.

        They run in this same event loop. Without this pause the first finished job is sent alone and the
        others need a second call, every turn. If enough jobs have ended already (`has_load`), they are sent
        at once: the others run during that call. Jobs that end in threads are waited for as well, while at
        least half of the jobs held have not started: no slot is idle meanwhile.
        """
        before, until = 0, self._timing.monotonic() + GATHER_SECONDS
        while (waiting := self._slots.waiting) and not self._settler.has_load:
            if self._timing.monotonic() >= until:
                break
            if waiting != before:
                await pause()
            elif self._settler and 2 * waiting >= self._held_limit.now:
                await self._timing.clock.sleep(GATHER_STEP_SECONDS)
            else:
                break
            before = waiting

    def _has_something_to_do(self) -> bool:
        return not self.is_over or bool(self._settler) or bool(self._unclear)

    async def turn(self) -> None:
        """One call to the store, if there is something to settle or to claim."""
        batch = self._settler.take()
        limit = self._room(batch)
        wants_jobs = limit > 0 and self.may_claim and (self.expects_work or bool(batch))
        settling, began = len(batch), self._timing.monotonic()
        try:
            await self._explain()
            if wants_jobs and not (batch and self._settles_slowly):
                await self._exchange(batch, limit)
            elif batch:
                await self._settle(batch)
                self.expects_work = self.expects_work or wants_jobs  # on its own, in the next turn
        except Exception as error:  # noqa: BLE001 - no fault of a store ends the loop
            self._failed(batch, error, "exchange" if wants_jobs else "settle")
        else:
            self._failures = 0
            if self._driver.outage.is_away and (settling or wants_jobs):
                self._driver.outage.answered()
            if settling:
                now = self._timing.monotonic()
                self._note_pace(now - began)
                self._held_limit.ended(settling, now - began, now)

    def _note_pace(self, seconds: float) -> None:
        """Claim apart from settlements once settling takes a good part of a lease.

        Jobs claimed in a slow call have lost that part of their lease. They would be released by the next
        call, which is as slow and claims the next ones, for ever. A store may need several round trips for
        a retry, a failure or a limit, so on a slow connection the call after a quick one may be slow.
        """
        self._quickest = min(seconds, self._quickest * 1.1) if self._quickest else seconds
        longest = max(seconds, self._quickest * MOST_ROUND_TRIPS)
        self._settles_slowly = longest > self._renew_seconds

    async def _exchange(self, batch: list[LeasedJob], limit: int) -> None:
        claim = self._next_claim(limit)
        self.expects_work = False
        sent = self._timing.monotonic()
        now = self._timing.stated()
        is_quiescent = self._leased_jobs.count == len(batch)
        if batch:
            try:
                call = self._driver.exchange(settlements_of(batch), claim, now=now)
                answer = await self._answered(call)
            except InvalidArgument:
                await self._settler.one_by_one(batch, self._unclear)
                return
        else:
            claimed = await self._answered(self._driver.reserve(claim, now=now))
            answer = Exchanged([], claimed.jobs, given_up=claimed.given_up, ended=claimed.ended)
        self._unclear += self._settler.answered(batch, answer.settled)
        batch.clear()
        if answer.given_up:
            self._run.announcer.given_up(answer.given_up)
        if answer.ended:
            self._run.announcer.ended(answer.ended)
        if answer.error is not None:
            raise answer.error
        self._received(answer.claimed, claim, sent, is_quiescent)

    def _received(self, claimed: list[JobRecord], claim: Claim, sent: float, is_quiescent: bool) -> None:
        asks_again = self._lanes is not None and self._lanes.answered(
            claim.lanes, claimed, claim.limit, self._timing.monotonic()
        )
        if claimed:
            self._empty_polls = 0
            self.expects_work = self.expects_work or len(claimed) == claim.limit
            self._run.claimed(claimed, sent)
            if self._held_limit.is_automatic:
                self._look_after_held(claimed, claim.limit)
        elif (
            is_quiescent
            and not self.expects_work
            and not self._unclear
            and claim.lanes == self._claim.lanes  # it has seen everything that this worker can run
        ):
            self._run.idle()
        self.expects_work = self.expects_work or asks_again

    def _look_after_held(self, claimed: list[JobRecord], asked: int) -> None:
        """Claim ahead only from what is plenty, and never twice beside a job that may kill its worker."""
        if len(claimed) < asked or any(job.stalls for job in claimed):
            self._held_limit.reset()
        if self._slots.waiting:
            self._overdue_alarm.set(self._timing.monotonic() + OVERDUE_SECONDS)

    def _return_overdue(self) -> None:
        """Release what was claimed ahead if none of it could start: the jobs before it are long ones."""
        first = self._slots.first_waiting
        if first is not None and first is self._first_waiting:
            self._held_limit.reset()
            self._slots.release_waiting()
        elif first is not None:
            self._overdue_alarm.set(self._timing.monotonic() + OVERDUE_SECONDS)
        self._first_waiting = first

    async def _settle(self, batch: list[LeasedJob]) -> None:
        now = self._timing.stated()
        try:
            answers = await self._answered(self._driver.settle(settlements_of(batch), now=now))
        except InvalidArgument:
            await self._settler.one_by_one(batch, self._unclear)
        else:
            self._unclear += self._settler.answered(batch, answers)
            batch.clear()

    async def _explain(self) -> None:
        if self._unclear:
            await self._answered(self._settler.explain(self._unclear))
            self._unclear = []

    def _answered(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return self._timing.answered(self._answer_seconds, call)

    # ------------------------------------------------------------------ trouble

    def _failed(self, batch: list[LeasedJob], error: Exception, verb: str) -> None:
        """Keep what was not answered, and wait: twice as long each time, with jitter."""
        self._settler.failed(batch, error)
        self.expects_work = True
        self._failures += 1
        longest = min(FIRST_BACKOFF_SECONDS * 2 ** min(self._failures - 1, 16), LONGEST_BACKOFF_SECONDS)
        wait = self._entropy.between(longest / 2, longest)
        self._quiet_until = self._timing.monotonic() + wait
        self._alarm.clear()
        if isinstance(error, Forbidden):
            self._run.forbidden(error)  # ends the worker: trying again would change nothing
        elif not isinstance(error, DriverUnavailable | StoreRefused):  # these get one line in the log
            _log.error("%s failed; trying again in %.1f s", verb, wait, exc_info=error)
        self._run.announcer.trouble(verb, error, self._failures)

    def _must_be_quiet(self) -> bool:
        """Clocks count microseconds: on a simulated clock a smaller rest would never pass."""
        return self._timing.monotonic() < self._quiet_until - 1e-6

    # ------------------------------------------------------------------ what to ask for

    def _room(self, batch: list[LeasedJob]) -> int:
        """How many jobs to ask for: up to what may be held, within what is left of `max_jobs`."""
        leased = self._leased_jobs.count
        free = self._held_limit.now - leased + len(batch)
        if not self._options.max_jobs:
            return free
        return min(free, self._options.max_jobs - self._run.announcer.ran - leased)

    def _next_claim(self, limit: int) -> Claim:
        """The claim, with the queues rotated by one each time so that none of them starves."""
        claim, queues = self._claim, self._claim.queues
        if not self._options.strict and len(queues) > 1:
            first = self._turns % len(queues)
            queues = queues[first:] + queues[:first]
        self._turns += 1
        return Claim(
            queues=queues,
            worker_id=claim.worker_id,
            limit=limit,
            lease_for=claim.lease_for,
            lanes=claim.lanes if self._lanes is None else self._lanes.now(self._timing.monotonic()),
            types=claim.types,
            rate=claim.rate,
        )

    def _arm(self) -> None:
        """Set the next turn: at once if something is left to do, else after the poll interval."""
        if self._must_be_quiet():
            self._alarm.set(self._quiet_until)
        elif self._unclear or (self.may_claim and self.expects_work and self._room([]) > 0):
            self._bell.set()
        elif self.may_claim:
            self._alarm.set(self._timing.monotonic() + self._next_poll())
            asks_all_at = None if self._lanes is None else self._lanes.asks_all_at
            if asks_all_at is not None and self._room([]) > 0:
                self._alarm.set(asks_all_at)

    def _next_poll(self) -> float:
        """Seconds until the next poll: `poll` with jitter; with `max_poll` longer after every empty one."""
        usual = self._poll_seconds * self._entropy.between(0.8, 1.2)
        if self._options.max_poll is None or not self._empty_polls:
            return usual
        wait = idle_backoff(
            self._empty_polls, self._entropy, cap=self._options.max_poll, at_least=timedelta(seconds=usual)
        )
        return wait.total_seconds()

    def _chosen_poll(self) -> float:
        if self._options.poll is not None:
            return self._options.poll.total_seconds()
        return POLL_BESIDE_WAKEUPS_SECONDS if self._driver.capabilities.wakeups else POLL_SECONDS


async def follow_wakeups(run: Run) -> None:
    """Report the wake-ups of the store to the run, for ever; a broken connection is made again after a while.

    Without wake-ups everything is still found, only later: by the poll and by the heartbeat.
    """
    failures = 0
    while True:
        try:
            await _read_wakeups(run)
            failures = 0
        except Exception as error:  # noqa: BLE001 - wake-ups are a bonus; without them it is only slower
            failures += 1
            run.announcer.trouble("wakeups", error, failures)
        longest = min(0.5 * 2 ** min(failures, 8), 5.0)
        await run.timing.clock.sleep(run.entropy.between(0.2, longest))


async def _read_wakeups(run: Run) -> None:
    wakeups = run.driver.wakeups(run.options.claimed_queues, run.worker_id)
    try:
        async for wakeup in wakeups:
            if wakeup.kind is WakeupKind.WORK:
                run.work_arrived()
            elif wakeup.job_id is not None:
                run.cancel_reported(wakeup.job_id)
    finally:
        with suppress(Exception):  # or its error would replace our own cancellation
            await wakeups.aclose()
