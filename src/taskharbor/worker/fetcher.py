"""The fetcher: the one caller of the store on the way in and out.

It sends what has ended together with a claim for the slots that this frees, and puts what comes
back in line. Between two calls it waits for a bell: a job ended, a hint came, the poll is due.

    ring ──► settlements? free slots? ──► exchange, settle or reserve ──► jobs in line
      ▲                                        │ failed: wait, with jitter, longer each time
      └── job ended · wake-up · poll ──────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Exchanged, Reclaimed
from taskharbor.errors import DriverUnavailable, Forbidden, InvalidArgument, StoreRefused
from taskharbor.model.entropy import Entropy
from taskharbor.model.idle import idle_backoff
from taskharbor.model.job import JobRecord
from taskharbor.worker.claimed_lanes import ClaimedLanes
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.leased_jobs import LeasedJob, LeasedJobs
from taskharbor.worker.settler import Settler, settlements_of
from taskharbor.worker.timing import Alarm, Timing, pause

T = TypeVar("T")

_log = logging.getLogger("taskharbor.worker")

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0
GATHER_SECONDS = 0.005  # the longest that an ended job waits for those that are about to run
POLL_SECONDS = 0.2
MOST_ROUND_TRIPS = 6  # of one call to a store that settles something
POLL_BESIDE_WAKEUPS_SECONDS = 0.5  # hints say when work arrives; the poll finds what has become due


class Fetcher:
    """Free slots and finished jobs → one call to the store at a time."""

    def __init__(
        self,
        config: WorkerConfig,
        driver: Driver,
        worker_id: str,
        types: tuple[str, ...] | None,
        leased_jobs: LeasedJobs,
        settler: Settler,
        timing: Timing,
        entropy: Entropy,
        waiting: Callable[[], int],
        on_claimed: Callable[[list[JobRecord], float], None],
        on_given_up: Callable[[tuple[Reclaimed, ...]], None],
        on_trouble: Callable[[str, BaseException, int], None],
        on_forbidden: Callable[[Forbidden], None],
        on_idle: Callable[[], None],
        finished: Callable[[], int],
    ) -> None:
        self._config = config
        self._driver = driver
        self._leased_jobs = leased_jobs
        self._settler = settler
        self._timing = timing
        self._entropy = entropy
        self._waiting = waiting
        self._on_claimed = on_claimed
        self._on_given_up = on_given_up
        self._on_trouble = on_trouble
        self._on_forbidden = on_forbidden
        self._on_idle = on_idle
        self._finished = finished
        self._claim = Claim(
            queues=config.queues,
            worker_id=worker_id,
            lease_for=config.lease,
            lanes=config.claimed_lanes,
            types=types,
            rate=config.rate,
        )
        self._lanes = ClaimedLanes(config.claimed_lanes)
        self._poll_seconds = self._chosen_poll()
        self._bell = asyncio.Event()
        self._alarm = Alarm(timing, self._poll)
        self._unclear: list[LeasedJob] = []
        self._quiet_until = 0.0
        self._failures = 0
        self._turns = 0
        self._empty_polls = 0
        self._settles_slowly = False
        self._quickest = 0.0  # call that settled something, of late: about a round trip
        self.may_claim = True
        self.expects_work = True  # a claim could bring something
        self.is_over = False

    # ------------------------------------------------------------------ signals

    def ring(self) -> None:
        """Something has changed; look again."""
        if not self._bell.is_set():
            self._bell.set()

    def hint(self) -> None:
        """There may be work."""
        self._lanes.told_of_work(self._timing.monotonic())
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
        self._bell.set()

    def _poll(self) -> None:
        self._lanes.polled(self._timing.monotonic())
        self._empty_polls += 1
        self.expects_work = True
        self._bell.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until `end` is called and nothing is left to settle. A failing store never ends it.

        A claim that was under way at the end may still bring jobs, to be handed back at once.
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
        """Let the jobs in line start before what has ended leaves, as long as that takes hardly any time.

        They run in this same event loop. Otherwise the first that ends would leave alone, those behind it
        while it is under way, and so on for ever: two calls for what one can carry. With a load the rest
        need not be waited for: they run while it is under way.
        """
        before, until = 0, self._timing.monotonic() + GATHER_SECONDS
        while (waiting := self._waiting()) and waiting != before and not self._settler.has_load:
            if self._timing.monotonic() >= until:
                break
            before = waiting
            await pause()

    def _has_something_to_do(self) -> bool:
        return not self.is_over or bool(self._settler) or bool(self._unclear)

    async def turn(self) -> None:
        """One call to the store, if there is anything to say."""
        batch = self._settler.take()
        limit = self._room(batch)
        wants_jobs = limit > 0 and self.may_claim and (self.expects_work or bool(batch))
        is_settling, began = bool(batch), self._timing.monotonic()
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
            if is_settling or wants_jobs:
                self._driver.outage.answered()
            if is_settling:
                self._note_pace(self._timing.monotonic() - began)

    def _note_pace(self, seconds: float) -> None:
        """Where settling takes a good part of a lease, jobs that come with it have lost that part of theirs.

        They would be handed back by the next call, which takes as long and brings the next ones, for ever:
        then what ended goes first, and the claim follows alone. A store may need several round trips for a
        retry, a failure or a limit, so on a slow line the call after a quick one may be such a slow one.
        """
        self._quickest = min(seconds, self._quickest * 1.1) if self._quickest else seconds
        longest = max(seconds, self._quickest * MOST_ROUND_TRIPS)
        self._settles_slowly = longest > self._config.renew_every.total_seconds()

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
            answer = Exchanged([], claimed.jobs, given_up=claimed.given_up)
        self._unclear += self._settler.answered(batch, answer.settled)
        batch.clear()
        if answer.given_up:
            self._on_given_up(answer.given_up)
        if answer.error is not None:
            raise answer.error
        self._received(answer.claimed, claim, sent, is_quiescent)

    def _received(self, claimed: list[JobRecord], claim: Claim, sent: float, is_quiescent: bool) -> None:
        asks_again = self._lanes.answered(claim.lanes, claimed, claim.limit, self._timing.monotonic())
        if claimed:
            self._empty_polls = 0
            self.expects_work = self.expects_work or len(claimed) == claim.limit
            self._on_claimed(claimed, sent)
        elif (
            is_quiescent and not self.expects_work and not self._unclear and self._lanes.saw_all(claim.lanes)
        ):
            self._on_idle()
        self.expects_work = self.expects_work or asks_again

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
        return self._timing.answered(self._config.answer_seconds, call)

    # ------------------------------------------------------------------ trouble

    def _failed(self, batch: list[LeasedJob], error: Exception, verb: str) -> None:
        """Keep what was not answered, and wait: twice as long each time, never all workers at once."""
        self._settler.failed(batch, error)
        self.expects_work = True
        self._failures += 1
        longest = min(FIRST_BACKOFF_SECONDS * 2 ** min(self._failures - 1, 16), LONGEST_BACKOFF_SECONDS)
        wait = self._entropy.between(longest / 2, longest)
        self._quiet_until = self._timing.monotonic() + wait
        self._alarm.clear()
        if isinstance(error, Forbidden):
            self._on_forbidden(error)  # which ends the worker: trying again would change nothing
        elif not isinstance(error, DriverUnavailable | StoreRefused):  # which are told in a line
            _log.error("%s failed; trying again in %.1f s", verb, wait, exc_info=error)
        self._on_trouble(verb, error, self._failures)

    def _must_be_quiet(self) -> bool:
        """Clocks count microseconds: what is left below one would never pass on a clock that stands still."""
        return self._timing.monotonic() < self._quiet_until - 1e-6

    # ------------------------------------------------------------------ what to ask for

    def _room(self, batch: list[LeasedJob]) -> int:
        """Slots that are free, or that this very call frees; never more jobs than it may still do."""
        leased = self._leased_jobs.count
        free = self._config.concurrency + self._config.prefetch - leased + len(batch)
        if not self._config.max_jobs:
            return free
        return min(free, self._config.max_jobs - self._finished() - leased)

    def _next_claim(self, limit: int) -> Claim:
        """The claim, with the queues rotated by one each time so that none of them starves."""
        queues = self._config.queues
        if not self._config.strict and len(queues) > 1:
            first = self._turns % len(queues)
            queues = queues[first:] + queues[:first]
        self._turns += 1
        claim = self._claim
        return Claim(
            queues=queues,
            worker_id=claim.worker_id,
            limit=limit,
            lease_for=claim.lease_for,
            lanes=self._lanes.now(self._timing.monotonic()),
            types=claim.types,
            rate=claim.rate,
        )

    def _arm(self) -> None:
        """Be called again: at once for what is left to do, else after the poll."""
        if self._must_be_quiet():
            self._alarm.set(self._quiet_until)
        elif self._unclear or (self.may_claim and self.expects_work and self._room([]) > 0):
            self._bell.set()
        elif self.may_claim:
            self._alarm.set(self._timing.monotonic() + self._next_poll())
            if self._lanes.asks_all_at is not None and self._room([]) > 0:
                self._alarm.set(self._lanes.asks_all_at)

    def _next_poll(self) -> float:
        """Until the next poll: always about the same, or longer and longer while nothing is found."""
        usual = self._poll_seconds * self._entropy.between(0.8, 1.2)
        if self._config.max_poll is None or not self._empty_polls:
            return usual
        wait = idle_backoff(
            self._empty_polls, self._entropy, cap=self._config.max_poll, at_least=timedelta(seconds=usual)
        )
        return wait.total_seconds()

    def _chosen_poll(self) -> float:
        if self._config.poll is not None:
            return self._config.poll.total_seconds()
        return POLL_BESIDE_WAKEUPS_SECONDS if self._driver.capabilities.wakeups else POLL_SECONDS
