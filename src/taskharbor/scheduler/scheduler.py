"""Scheduler: hold the leader role, and run the duties while it leads.

    follow ──the role is free──► lead ──the role is lost, or its time nearly over──► follow

Everything is correct without a scheduler (workers reclaim and promote by themselves) but schedules,
speculation and pruning; and everything is safe with many: the role is only there so that they do not
all do the same work.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_recorder import LogRecorder
from taskharbor.errors import ConfigurationError, DriverUnavailable, TaskHarborError
from taskharbor.events import DutyRan, EventBus
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.scheduler.duty import Duty, Now
from taskharbor.scheduler.fire_cron import FireCron
from taskharbor.scheduler.housekeeping import FOUND_BY, promote, prune, sweep
from taskharbor.scheduler.logbook import MergeLog, NoteLevels
from taskharbor.scheduler.speculate import SpeculateOnStragglers
from taskharbor.scheduler.unclaimed import WarnUnclaimed

ROLE = "scheduler"
SWEEP_EVERY = timedelta(seconds=2)
"""How often lost leases are looked for, besides the claims of workers that look for them too."""
_log = logging.getLogger("taskharbor.scheduler")


class Scheduler:
    """The duties of one store. Start as many as you like; one of them leads.

    `sweep_every` is how often it looks for leases that have run out.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        name: str = "scheduler",
        duties: Sequence[Duty] | None = None,
        ttl: timedelta = timedelta(seconds=15),
        sweep_every: timedelta = SWEEP_EVERY,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        events: EventBus | None = None,
    ) -> None:
        self._driver = driver
        self._clock: Clock = clock or SystemClock()
        self._entropy = entropy or Entropy()
        self._now = Now(driver, self._clock)
        self._ttl = ttl
        self._events = events or EventBus()
        if sweep_every <= timedelta(0):
            raise ConfigurationError(f"sweep_every={sweep_every} must be above zero")
        self._sweep_seconds = sweep_every.total_seconds()
        self._stopping = False
        self._recorder = LogRecorder(FOUND_BY, self._clock)
        self._recorder.listen(self._events, runs_jobs=False)
        self.holder = f"{name}-{self._entropy.bytes(4).hex()}"
        self.duties = list(duties) if duties is not None else self._usual_duties()
        self.term: int | None = None
        self._trusted_until = 0.0
        self._ask_again_at = 0.0
        self._is_away = False
        self._next_run: dict[str, float] = {}

    @property
    def is_leading(self) -> bool:
        return self.term is not None and self._clock.monotonic() < self._trusted_until

    def stop(self) -> None:
        """Let arun() return after the duty that runs now; the role is given up at once."""
        self._stopping = True

    async def arun(self) -> None:
        """Lead when no other scheduler does, until stopped."""
        try:
            while not self._stopping:
                await self.run_once()
                await self._clock.sleep(self._pause())
        finally:
            await self._step_down()

    async def run_once(self) -> int:
        """Keep or seek the role; as leader, run every duty that is due. Returns how much was done."""
        self._is_away = False
        try:
            await self._keep_role()
        except TaskHarborError as error:
            self._failed("hold_role", error, "scheduler %s cannot keep its role: %s", self.holder)
            return 0
        done = 0
        for duty in self.duties:
            if self.is_leading and not self._stopping and self._is_due(duty):
                done += await self._run(duty)
        return done

    # ------------------------------------------------------------------ the role

    async def _keep_role(self) -> None:
        asked_at = self._clock.monotonic()
        if self.is_leading and self._trusted_until - asked_at > self._ttl.total_seconds() / 2:
            return
        if not self.is_leading and asked_at < self._ask_again_at:
            return
        lease = await self._driver.hold_role(ROLE, self.holder, self._ttl, now=self._now.given)
        self._driver.outage.answered()
        if lease.is_mine:
            if self.term != lease.term:
                _log.info("scheduler %s leads, term %d", self.holder, lease.term)
            self.term = lease.term
            # From before the question was sent, and a quarter early: never trusted too long.
            self._trusted_until = asked_at + self._ttl.total_seconds() * 0.75
            return
        # There may be many followers, and asking is a write on some stores: each asks a few times per term.
        self._ask_again_at = asked_at + self._ttl.total_seconds() * self._entropy.between(0.15, 0.25)
        if self.term is not None:
            _log.info("scheduler %s no longer leads; %s does", self.holder, lease.holder)
            self.term = None

    async def _step_down(self) -> None:
        if self.term is None:
            return
        self.term = None
        try:
            await self._driver.release_role(ROLE, self.holder, now=self._now.given)
        except TaskHarborError as error:
            _log.info("scheduler %s could not give up its role: %s; it lapses", self.holder, error)

    # ------------------------------------------------------------------ the duties

    def _usual_duties(self) -> list[Duty]:
        driver, now = self._driver, self._now
        return [
            sweep(driver, now, every_seconds=self._sweep_seconds, events=self._events),
            promote(driver, now, events=self._events),
            FireCron(driver, now, self._entropy, events=self._events),
            SpeculateOnStragglers(driver, now, events=self._events),
            prune(driver, now),
            WarnUnclaimed(driver, now),
            NoteLevels(driver, now, self._recorder),
            MergeLog(driver, now),
        ]

    def _is_due(self, duty: Duty) -> bool:
        return self._clock.monotonic() >= self._next_run.get(duty.name, 0.0)

    async def _run(self, duty: Duty) -> int:
        started = self._clock.monotonic()
        self._next_run[duty.name] = started + duty.every_seconds * self._entropy.between(0.9, 1.1)
        done, trouble = 0, None
        try:
            done = await duty.run_once()
        except TaskHarborError as error:
            trouble = str(error)
            self._failed(duty.name, error, "duty %s failed and will be tried again: %s", duty.name)
        except Exception as error:  # noqa: BLE001 - a duty that breaks must not end the others
            trouble = str(error) or type(error).__name__
            _log.exception("duty %s broke and will be tried again", duty.name)
        self._events.emit(
            DutyRan(duty=duty.name, count=done, seconds=self._clock.monotonic() - started, error=trouble)
        )
        return done

    def _failed(self, what: str, error: TaskHarborError, words: str, name: str) -> None:
        if isinstance(error, DriverUnavailable):
            self._is_away = True
            self._driver.outage.failed(what, error)
        else:
            _log.warning(words, name, error)

    def _pause(self) -> float:
        """Until the next duty is due, at most a second: stop() and a free role are noticed soon."""
        if not self.is_leading or self._is_away:
            return self._entropy.between(0.8, 1.2)
        soonest = min((self._next_run.get(duty.name, 0.0) for duty in self.duties), default=0.0)
        return min(max(soonest - self._clock.monotonic(), 0.05), 1.0)
