"""World: one simulated run, from the plan to the verdict.

    busy with faults ──60 %──► healed, still busy ──► no new jobs ──► drained, or the deadline is over

The processes run the real client, worker, heartbeat, settler and scheduler. The director below
starts and kills them, heals the world, waits until nothing is left to do, and looks at the store now
and then from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from taskharbor.model.schedule import Schedule
from taskharbor.testing.history.calls import answers, questions, snapshot
from taskharbor.testing.history.checker import check
from taskharbor.testing.history.events import HistoryEvent, history_hash
from taskharbor.testing.history.recorder import Recorder
from taskharbor.testing.history.verdict import Terms, Verdict
from taskharbor.testing.simulator.actors import (
    LIMITED,
    RATE,
    THROTTLED,
    Actor,
    Operator,
    Producer,
    SchedulerActor,
    WorkerActor,
)
from taskharbor.testing.simulator.apps import SimulatedApp, UsualApp
from taskharbor.testing.simulator.choices import Choices
from taskharbor.testing.simulator.clocks import ProcessClock, StoreClock
from taskharbor.testing.simulator.family_app import KIN, FamilyApp
from taskharbor.testing.simulator.family_watch import FamilyWatch
from taskharbor.testing.simulator.faults import FaultInjector
from taskharbor.testing.simulator.loop import SECOND, Process, SimulatedLoop
from taskharbor.testing.simulator.network import Link, Network, at_once
from taskharbor.testing.simulator.plan import FAMILIES, STEP_BACK, Plan
from taskharbor.testing.simulator.points import Points
from taskharbor.testing.simulator.rude_workers import RudeWorker
from taskharbor.testing.simulator.stores import MakeDriver, SqliteFile, memory

FAIL_QUEUE = "failures"
_IDLE_SECONDS = 30.0
_FOR_EVER = Retention(completed=None, failed=None, cancelled=None)
_SOON = Retention(completed=timedelta(seconds=1), failed=timedelta(seconds=1), cancelled=timedelta(seconds=1))
_LONG_AFTER = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run: verdict, history and faults. `families`: which of `FAMILY_RULES` were broken."""

    plan: Plan
    verdict: Verdict
    families: list[str]
    relatives: int
    """How many jobs of families were judged."""
    history: list[HistoryEvent]
    faults: list[str]
    calls: int
    seconds: float
    points: dict[str, int]
    errors: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return self.verdict.is_sound and not self.errors and not self.families

    @property
    def broken(self) -> set[str]:
        """The names of the broken promises, and of the broken rules of families."""
        return self.verdict.broken | {text.partition(":")[0] for text in self.families}

    @property
    def kept(self) -> list[str]:
        """The faults that happened."""
        kept = self.plan.kept_faults
        return [fault for number, fault in enumerate(self.faults) if kept is None or number in kept]

    @property
    def hash(self) -> str:
        return history_hash(self.history)


class World:
    """Everything that takes part in one run."""

    def __init__(
        self,
        plan: Plan,
        app: SimulatedApp | None = None,
        make: MakeDriver | None = None,
        *,
        stepwise: bool = False,
    ) -> None:
        self.plan = plan
        self.app: SimulatedApp = app or (FamilyApp() if plan.has(FAMILIES) else UsualApp())
        self.is_stepwise = stepwise  # a store whose steps wait for each other
        self.decides_by_caller = False
        self.choices = Choices(Entropy(plan.seed))
        self.loop = SimulatedLoop(self.choices.split("loop"))  # type: ignore[abstract]  # the rest is never asked for
        self.store_process = Process("store")
        self.store_clock = StoreClock(self.loop)
        self.history: list[HistoryEvent] = []
        self.ids: list[str] = []
        self.faults: list[str] = []
        self.has_faults = bool(plan.faults)
        self.is_busy = True
        self.is_over = False
        self.busy_seconds = plan.seconds * 0.8
        self.plain_queues = self.app.queues(plan) + self._special_queues()
        self.queue_names = self.plain_queues + ((KIN,) if plan.has(FAMILIES) else ())
        self.network = Network(self)
        self.points = Points(self)
        self._file = SqliteFile() if plan.store == "sqlite" and make is None else None
        self._make = make or (memory if self._file is None else self._file.driver)
        self.store: Driver = self._make(self.store_clock, self.choices.entropy("store"))
        self.watch = FamilyWatch(self._records, keeps_roots=plan.has(FAMILIES))
        self._recorders: dict[str, Recorder] = {}
        self._clocks: dict[str, ProcessClock] = {}
        self.actors: dict[str, Actor] = {}
        self._builders: dict[str, type[Actor]] = {}
        self._producing: set[str] = set()
        self._looks = 0
        self._ended_us = 0

    # ------------------------------------------------------------------ for the actors

    def recorder_of(self, name: str) -> Recorder:
        if name not in self._recorders:
            self._recorders[name] = Recorder(name, self._write, ProcessClock(self.loop))
        return self._recorders[name]

    def clock_of(self, name: str) -> ProcessClock:
        """The same machine, the same clock, also after a restart."""
        if name not in self._clocks:
            choices = self.choices.split(f"clock {name}")
            rate, offset = choices.seconds(0.95, 1.05), choices.whole(-3600 * SECOND, 3600 * SECOND)
            is_off = "skew" in self.plan.faults
            self._clocks[name] = ProcessClock(self.loop, rate if is_off else 1.0, offset if is_off else 0)
        return self._clocks[name]

    def handle(self, name: str) -> Driver:
        return self.store.another()

    def line_of(self, process: Process) -> Driver:
        return Link(self.handle(process.name), self, process)

    def deciding(self, at: datetime, stated: datetime | None) -> datetime:
        """The `now` of a call: that of the store's clock, not the caller's."""
        return stated or at if self.decides_by_caller else at

    def note_ids(self, ids: list[str]) -> None:
        self.ids += ids

    def has_ended(self, producer: Producer) -> None:
        self._producing.discard(producer.process.name)

    def allows(self, kind: str, name: str, where: str) -> bool:
        """Record one fault. False when the shrinker has removed it."""
        number = len(self.faults)
        self.faults.append(f"{self.loop.us / SECOND:10.6f}  {kind} {name} {where}")
        if self.plan.kept_faults is not None and number not in self.plan.kept_faults:
            return False
        self.mark_fault(name, kind)
        return True

    def mark_fault(self, name: str, kind: str) -> None:
        process = "" if name == self.store_process.name else name
        self.history.append(HistoryEvent(kind="ok", op="fault", process=process, t=self.loop.us, result=kind))

    # ------------------------------------------------------------------ processes

    def start(self, name: str, builder: type[Actor]) -> None:
        process = Process(name)
        context = self.loop.context_of(process)
        actor: Actor = context.run(builder, self, process)
        self.actors[name], self._builders[name] = actor, builder
        self.loop.create_task(actor.live(), context=context)

    def kill(self, name: str, restart_seconds: float | None = None) -> None:
        actor = self.actors.get(name)
        if actor is None or actor.process.is_dead:
            return
        self.loop.kill(actor.process)
        wait = self.choices.seconds(0.1, 5.0) if restart_seconds is None else restart_seconds
        self.loop.call_later(wait, self._start_again, name, context=self.loop.context_of(self.store_process))

    def _start_again(self, name: str) -> None:
        if not self.is_over:
            self.start(name, self._builders[name])

    # ------------------------------------------------------------------ the run

    def run(self) -> Outcome:
        try:
            with _quiet():
                self.loop.run(self._direct(), self._end)
        finally:
            if self._file is not None:
                self._file.close()
        terms = Terms(
            is_exact=True,
            is_drained=True,
            faults_are_marked=True,
            clock_goes_back=STEP_BACK in self.plan.faults,
            most_violations=10_000 if STEP_BACK in self.plan.faults else 100,
        )
        return Outcome(
            plan=self.plan,
            verdict=check(self.history, terms),
            families=self.watch.violations,
            relatives=self.watch.size,
            history=self.history,
            faults=self.faults,
            calls=self.network.calls,
            seconds=self._ended_us / SECOND,
            points=dict(self.points.fired),
            errors=[_line_of(error) for error in self.loop.errors],
        )

    def _end(self) -> None:
        """The run is over: no call reaches the store any more, and nothing is recorded."""
        self.is_over = True
        self._ended_us = self.loop.us
        self.has_faults = False

    def _write(self, event: HistoryEvent) -> None:
        if not self.is_over:
            self.history.append(event)

    async def _direct(self) -> None:
        clock = ProcessClock(self.loop)
        await self.store.open()
        await self._prepare()
        self._start_all()
        injector = FaultInjector(self)
        injector.begin()
        looking = self.loop.create_task(self._look_now_and_then(clock))
        await clock.sleep(self.plan.seconds * 0.6)
        await self._heal(injector)
        await self._until_drained(clock)
        looking.cancel()
        await self._last_look()
        await self._end_families()

    def _start_all(self) -> None:
        plan = self.plan
        for number in range(plan.producers):
            self._producing.add(f"producer-{number}")
            self.start(f"producer-{number}", Producer)
        for number in range(plan.workers):
            self.start(f"worker-{number}", WorkerActor)
        for number in range(plan.rude_workers):
            self.start(f"rude-worker-{number}", RudeWorker)
        for number in range(plan.schedulers):
            self.start(f"scheduler-{number}", SchedulerActor)
        if plan.features:
            self.start("operator", Operator)

    async def _heal(self, injector: FaultInjector) -> None:
        self.has_faults = self.is_busy = False
        injector.end()
        await self._open_gates()
        self.history.append(HistoryEvent(kind="ok", op="heal", t=self.loop.us))

    async def _open_gates(self) -> None:
        await self._configure(QueueSettings(queue=LIMITED, max_running=None))
        for queue in self.queue_names:
            await self._configure(QueueSettings(queue=queue, paused=False))

    async def _until_drained(self, clock: ProcessClock) -> None:
        healed_us = self.loop.us
        while self.loop.us < max(healed_us + self.plan.seconds * SECOND, self._idle_until_us()):
            await clock.sleep(max(1.0, self.plan.seconds / 1000))
            if not self._producing and not await self._has_work():
                return
            if not self.loop.us // SECOND % 20:
                await self._open_gates()  # a late call of the operator may have closed one

    def _idle_until_us(self) -> int:
        """How long the world may run without granting a job."""
        return self.network.granted_us + round((_IDLE_SECONDS + 4 * self.plan.lease_seconds) * SECOND)

    async def _has_work(self) -> bool:
        counts = await self.store.count(now=self.store_clock.now())
        return any(count.waiting or count.running for count in counts.values())

    # ------------------------------------------------------------------ from outside

    async def _prepare(self) -> None:
        plan = self.plan
        if plan.has("fail_queue"):
            for queue in self.queue_names:
                if queue != FAIL_QUEUE:
                    await self._configure(QueueSettings(queue=queue, fail_queue=FAIL_QUEUE))
        if plan.has("limits"):
            await self._configure(QueueSettings(queue=LIMITED, max_running=2))
        if plan.has("rates"):
            await self._configure(QueueSettings(queue=THROTTLED, execute_rate=RATE, enqueue_rate=RATE))
        if plan.has(FAMILIES):
            await self._configure(QueueSettings(queue=EVERY_QUEUE, retention=_FOR_EVER))
            await self._configure(QueueSettings(queue=KIN, retention=_SOON))
        if plan.has("schedules"):
            template = NewJob(
                id="", type="fast", payload=b'{"number":0}', queue=self.queue_names[0], max_stalls=3
            )
            every = timedelta(seconds=7)
            await self.store.put_schedule(
                Schedule(name="tick", template=template, every=every), now=self.store_clock.now()
            )

    def _special_queues(self) -> tuple[str, ...]:
        names = (("limits", LIMITED), ("rates", THROTTLED), ("fail_queue", FAIL_QUEUE))
        return tuple(queue for feature, queue in names if self.plan.has(feature))

    async def _configure(self, settings: QueueSettings) -> None:
        [asked] = questions("configure_queue", (settings,))
        rules = await self.store.configure_queue(settings, now=self.store_clock.now())
        self.history.append(asked)
        at = self.store_clock.now_us()
        self.history += [
            replace(event, t=self.loop.us) for event in answers("configure_queue", [asked], rules, at)
        ]

    async def _look_now_and_then(self, clock: ProcessClock) -> None:
        while True:
            await clock.sleep(self.plan.look_seconds)
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        records: list[JobRecord] = []
        query = Query(limit=1000)
        while True:
            page = await self.store.find(query, now=self.store_clock.now())
            records += page.jobs
            if page.next_cursor is None:
                break
            query = replace(query, cursor=page.next_cursor)
        self._looks += 1
        self.history += snapshot(records, self.store_clock.now_us(), -self._looks, self.loop.us)

    async def _last_look(self) -> None:
        await self._look_at_all()
        for start in range(0, len(self.ids), 1000):
            ids = self.ids[start : start + 1000]
            asked = questions("get", (ids,))
            records = await self.store.get(ids, now=self.store_clock.now())
            events = answers("get", asked, records, self.store_clock.now_us())
            self.history += [replace(event, t=self.loop.us) for event in events]
        self.history.append(HistoryEvent(kind="ok", op="drained", t=self.loop.us))

    # ------------------------------------------------------------------ families

    def _records(self, ids: Sequence[str], at: datetime) -> list[JobRecord | None]:
        """A look at the store that takes no time and is in no history."""
        found: list[JobRecord | None] = at_once(self.store.do_get(ids, at))
        return found

    async def _end_families(self) -> None:
        """Nothing waits any more; long after, nothing of any family is left."""
        at = self.store_clock.now()
        self.watch.judge_rest(at)
        if self.plan.has(FAMILIES):
            await self.store.configure_queue(QueueSettings(queue=EVERY_QUEUE, retention=_SOON), now=at)
            later = at + _LONG_AFTER
            self.watch.judge_pruning(lambda limit: at_once(self.store.do_prune(limit, later)), later)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log: what goes wrong in a simulated world is in its history."""
    log = logging.getLogger("taskharbor")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _line_of(error: dict[str, Any]) -> str:
    exception = error.get("exception")
    return f"{error.get('message')}: {exception!r}"
