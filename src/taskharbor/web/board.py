"""Board: one look at the store, shared by everybody who asks.

    feed, /api/board, /api/queues, /api/stats, /scale, metrics ──► Board ──► queues, workers, schedules

It looks only when it is asked, at most once a second, and then waits at least twenty times as long as the
look took: counting may be slow, and looking must not take more than 5 % of the store's time. In between,
everybody gets the last look, and its age. It also remembers what one look alone cannot show: how fast queues
move, and which workers were lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from taskharbor.client.needs import UNSERVED_FOR, LostWorker, NewCause, Rates
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_pages import each_entry
from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.drivers.unclaimed import Want, unclaimed
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.log_cells import Numbers, unpacked
from taskharbor.model.log_series import MINUTE, floor
from taskharbor.model.logbook import NUMBERS
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES, QueueRules
from taskharbor.model.schedule import StoredSchedule
from taskharbor.web.queue_rates import WAITS_FOR, QueueRates, ended_rates

_log = logging.getLogger("taskharbor.server")

LEAST_SECONDS = 1.0
"""At least so long from one look to the next."""
SHARE = 20.0
"""And so many times as long as a look takes."""
DEFAULT_TARGET = timedelta(seconds=60)
LOST_FOR = timedelta(hours=1)
_MOST_LOST = 1000
LOG_SECONDS = 5.0
_WANTS_SECONDS = 10.0
_MOST_UNSERVED = 10
"""Queues whose first page is searched for jobs that no worker takes, in one look."""


class BoardLook(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found."""

    number: int
    at: datetime
    taken: float
    """The clock's seconds when it ended."""
    look_s: float
    store_s: float
    """How long the store takes for the shortest question, averaged over the last looks."""
    queues: Mapping[str, QueueInfo]
    """By name; without the harbor's own settings."""
    harbor: QueueRules
    harbor_throttled_until: datetime | None = None
    workers: Sequence[WorkerInfo]
    schedules: Sequence[StoredSchedule]
    wants: Sequence[Want]
    rates: Mapping[str, Rates]
    lost: Sequence[LostWorker]
    causes: Sequence[NewCause] = ()
    slower: Mapping[str, float] = {}
    """Per worker: how many times as long its jobs take as on the others."""

    def infos(self) -> list[QueueInfo]:
        """As `Driver.queues` lists them: the harbor's own settings among them."""
        until = self.harbor_throttled_until
        harbor = QueueInfo(queue=EVERY_QUEUE, rules=self.harbor, counts=Counts(), throttled_until=until)
        return [harbor, *self.queues.values()]


class Board:
    """The last look, and when the next may be taken."""

    def __init__(
        self,
        driver: Callable[[], Awaitable[Driver]],
        clock: Clock,
        now: Callable[[], datetime | None],
        targets: Mapping[str, timedelta] | None = None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._now = now
        self._targets = targets or {}
        self.least_seconds, self.share = LEAST_SECONDS, SHARE
        self.last: BoardLook | None = None
        self.rates = QueueRates()
        self.find_causes: Callable[[], Awaitable[Sequence[NewCause]]] = _no_causes
        """The causes that are new and have dead letters; set by what counts them."""
        self.find_slow: Callable[[Driver], Awaitable[Mapping[str, float]]] = _nobody_slow
        """How many times as long jobs take on a worker; set by what compares them."""
        self._lost: dict[str, LostWorker] = {}
        self._wants: tuple[float, list[Want]] = (float("-inf"), [])
        self._log_read = float("-inf")
        self._looking: asyncio.Task[BoardLook] | None = None
        self._failed: tuple[float, TaskHarborError] | None = None
        self.away_since: datetime | None = None
        """Since when the store has not answered; None while it does."""

    def age_s(self, look: BoardLook) -> float:
        return round(max(self._clock.monotonic() - look.taken, 0.0), 3)

    def time_of(self, look: BoardLook) -> datetime:
        """The store's time now, as far as it is known: that of the look, plus its age."""
        return look.at + timedelta(seconds=self.age_s(look))

    def target_s(self, queue: str) -> float:
        return self._targets.get(queue, DEFAULT_TARGET).total_seconds()

    async def look(self) -> BoardLook:
        """A look that is fresh enough. Two callers share one.

        Raises:
            DriverUnavailable: the store cannot be reached. `last` still has what was seen before.
        """
        if self._looking is None:
            if self.last is not None and self._clock.monotonic() < self._next_at(self.last):
                return self.last
            if self._failed is not None and self._clock.monotonic() < self._failed[0] + self.least_seconds:
                raise self._failed[1]
            self._looking = asyncio.ensure_future(self._take())
            self._looking.add_done_callback(self._taken)
        return await asyncio.shield(self._looking)

    async def glance(self) -> BoardLook | None:
        """The last look, however old it is; the next one begins, and only the first caller waits for it.

        None while no look has succeeded.
        """
        looking = asyncio.ensure_future(self.look())
        looking.add_done_callback(_heard)
        if self.last is None:
            await asyncio.wait([looking])
        return self.last

    def settings_changed(self, queue: str, rules: QueueRules) -> None:
        """Somebody changed settings through this server: show it now, whenever the next look may be."""
        look = self.last
        if look is None:
            return
        if queue == EVERY_QUEUE:
            self.last = replace(look, harbor=rules, number=look.number + 1)
        else:
            known = look.queues.get(queue) or QueueInfo(queue=queue, rules=rules, counts=Counts())
            queues = {**look.queues, queue: replace(known, rules=rules)}
            self.last = replace(look, queues=queues, number=look.number + 1)

    # ------------------------------------------------------------------ looking

    def _next_at(self, look: BoardLook) -> float:
        return look.taken + max(self.least_seconds, self.share * look.look_s)

    def _taken(self, task: asyncio.Task[BoardLook]) -> None:
        self._looking = None
        if not task.cancelled() and task.exception() is None:
            self._failed = self.away_since = None

    async def _take(self) -> BoardLook:
        try:
            look = self.last = await self._ask()
        except TaskHarborError as error:
            self._failed = (self._clock.monotonic(), error)
            last = self.last
            self.away_since = self.away_since or (self._clock.now() if last is None else self.time_of(last))
            raise
        return look

    async def _ask(self) -> BoardLook:
        begun = self._clock.monotonic()
        driver, now = await self._driver(), self._now()
        asked = self._clock.monotonic()  # opening it does not count
        info = await driver.info()
        store_s = self._clock.monotonic() - asked
        found = {info.queue: info for info in await driver.queues(now=now)}
        workers = await driver.workers(now=now)
        schedules = await driver.schedules(now=now)
        at = now or info.at  # ages are differences of the store's own instants
        harbor = found.pop(EVERY_QUEUE, None)
        wants = await self._find_wants(driver, found, workers, at)
        await self._read_log(driver, at)
        self._remember_lost(workers, at)
        taken = self._clock.monotonic()
        self.rates.note(taken, found)
        return BoardLook(
            number=0 if self.last is None else self.last.number + 1,
            at=at,
            taken=taken,
            look_s=taken - begun,
            store_s=store_s if self.last is None else 0.8 * self.last.store_s + 0.2 * store_s,
            queues=dict(sorted(found.items())),
            harbor=NO_RULES if harbor is None else harbor.rules,
            harbor_throttled_until=None if harbor is None else harbor.throttled_until,
            workers=workers,
            schedules=schedules,
            wants=wants,
            rates={name: self.rates.of(name) for name in found},
            lost=tuple(self._lost.values()),
            causes=await self.find_causes(),
            slower=await self.find_slow(driver),
        )

    async def _read_log(self, driver: Driver, at: datetime) -> None:
        """What workers wrote about the last minutes; they write every five seconds."""
        if driver.capabilities.logbook and self._clock.monotonic() >= self._log_read + LOG_SECONDS:
            self._log_read = self._clock.monotonic()
            since = floor(at, MINUTE) - WAITS_FOR
            cells = each_entry(driver, NUMBERS, since, at + MINUTE, now=self._now())
            rows = [(cell.at, unpacked(cell.data, Numbers)) async for cell in cells]
            self.rates.ended = ended_rates(rows, at)

    async def _find_wants(
        self, driver: Driver, queues: Mapping[str, QueueInfo], workers: Sequence[WorkerInfo], at: datetime
    ) -> list[Want]:
        """What ready jobs need and no worker offers; searched now and then, the longest waits first."""
        known_at, known = self._wants
        if self._clock.monotonic() < known_at + _WANTS_SECONDS:
            return known
        before = at - UNSERVED_FOR
        late = [one for one in queues.values() if _is_late(one, before)] if workers else []
        late.sort(key=lambda one: one.oldest_ready_at or at)
        found: list[Want] = []
        for info in late[:_MOST_UNSERVED]:
            found += await unclaimed(driver, info.queue, workers, before=before, page=50, now=self._now())
        self._wants = (self._clock.monotonic(), found)
        return found

    def _remember_lost(self, workers: Sequence[WorkerInfo], at: datetime) -> None:
        """Workers of the last look whose reports ran out since. One that says goodbye is gone earlier."""
        alive = {worker.report.worker_id for worker in workers}
        for worker in () if self.last is None else self.last.workers:
            report = worker.report
            if report.worker_id not in alive and worker.expires_at <= at and _saw_it_lapse(worker, self.last):
                self._lost[report.worker_id] = LostWorker(
                    id=report.worker_id,
                    name=report.name,
                    host=report.host,
                    queues=report.queues,
                    seen_at=worker.seen_at,
                    running=report.running,
                    release=report.release,
                )
        kept = [
            (name, one)
            for name, one in self._lost.items()
            if name not in alive and at - one.seen_at < LOST_FOR
        ]
        self._lost = dict(kept[-_MOST_LOST:])


def _saw_it_lapse(worker: WorkerInfo, last: BoardLook | None) -> bool:
    """Whether its report was already overdue when it was last seen.

    A live worker reports long before its report runs out. If the last look is older than that, it may have
    reported its end in between, and no look saw it.
    """
    if last is None:
        return False
    lasts = worker.expires_at - worker.seen_at
    return last.at - worker.seen_at >= lasts / 2


def _is_late(info: QueueInfo, before: datetime) -> bool:
    oldest = info.oldest_ready_at
    return not info.rules.paused and bool(info.counts.ready) and oldest is not None and oldest <= before


def _heard(looking: asyncio.Future[BoardLook]) -> None:
    """A look that fails behind an answer is reported by `away_since`."""
    if not looking.cancelled():
        looking.exception()


async def _no_causes() -> Sequence[NewCause]:
    return ()


async def _nobody_slow(_driver: Driver) -> Mapping[str, float]:
    return {}
