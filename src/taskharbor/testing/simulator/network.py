"""The way between a process and the store, and everything that can go wrong on it.

    caller ──request──► store ──reply──► caller
       lost, late, slow, twice      lost, slow

A call that has left arrives whatever becomes of its caller. Every arrival and every answer is
written down at the instant at which the store carried it out, so the history is exact.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.relay import Relay
from taskharbor.errors import DriverMisbehaved, DriverUnavailable, TaskHarborError
from taskharbor.testing.history.calls import answers, questions, refusals
from taskharbor.testing.history.events import HistoryEvent
from taskharbor.testing.simulator.loop import SECOND, Process

if TYPE_CHECKING:
    from taskharbor.testing.simulator.world import World

_FASTEST_US, _SLOWEST_US = 200, 4_000  # one leg on a good day
_CALL_TIMEOUT = 5 * SECOND
_REACH_US = 20_000  # how far an arrival may be moved on a good day
_LONG_REACH_US = 2 * SECOND
MAY_BE_REPEATED = frozenset({"enqueue", "settle", "extend_leases", "cancel", "reclaim", "get"})


class Fate(msgspec.Struct):
    """What happens to one call."""

    arrives_us: int = 0  # on the loop's clock
    reply_us: int = 0  # how long the reply takes
    is_request_lost: bool = False
    is_reply_lost: bool = False
    gives_up_us: int = 0  # how long until the caller sees the lost connection
    is_repeated: bool = False
    is_spoiled: bool = False


class Link(Relay):
    """A process's handle on the store, over a network."""

    def __init__(self, inner: Driver, world: World, process: Process) -> None:
        super().__init__(inner)
        self.world = world
        self.process = process
        self._hide_wakeups()

    async def do_open(self) -> None:
        await super().do_open()
        self._hide_wakeups()

    def _hide_wakeups(self) -> None:
        if self.world.plan.has("polling"):
            self.capabilities = replace(self.capabilities, wakeups=False)

    def another(self) -> Driver:
        return Link(self.world.handle(self.process.name), self.world, self.process)

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        return await self.world.network.call(self, verb, args, now)


class Network:
    """All lines of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self._choices = world.choices.split("network")
        self._store_context = world.loop.context_of(world.store_process)
        self._instants: list[int] = []  # pending on the store's clock: ends of leases, due times
        self._ends: dict[str, int] = {}  # of the lease of a job
        self.is_out = False
        self.calls = 0
        self.granted_us = 0  # when a job was last handed out; ticks of schedules never end
        self.sent: dict[str, int] = {}

    # ------------------------------------------------------------------ out

    async def call(self, line: Link, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        if self._world.is_over:
            raise DriverUnavailable("the world is over", done=False)
        process = line.process
        recorder = self._world.recorder_of(process.name)
        asked = recorder.asked(questions(verb, args))
        await self._world.points.pass_by(f"{verb}.sent", process)
        fate = self._fate(process, verb, args)
        reply: asyncio.Future[Any] = self._loop.create_future()
        if fate.is_request_lost:
            for event in refusals(asked, DriverUnavailable("lost"), None):
                recorder.note(event)
            self._break(reply, fate.gives_up_us, done=self._choices.pick((False, None)))
        else:
            self._send(fate.arrives_us, line, verb, args, asked, fate, reply, now)
            if fate.gives_up_us:
                self._break(reply, fate.gives_up_us, done=None)
        return await reply

    def _send(self, at_us: int, *what: Any) -> None:
        self._loop.call_at_us(at_us, self._arrive, *what, context=self._store_context)

    def _break(self, reply: asyncio.Future[Any], us: int, *, done: bool | None) -> None:
        error = DriverUnavailable("the connection broke", done=done)
        self._loop.call_at_us(self._loop.us + us, _fail, reply, error)

    # ------------------------------------------------------------------ in the store

    def _arrive(
        self,
        line: Link,
        verb: str,
        args: tuple[Any, ...],
        asked: list[HistoryEvent],
        fate: Fate,
        reply: asyncio.Future[Any] | None,
        now: datetime | None,
    ) -> None:
        if self._world.is_over:
            return
        at = self._world.store_clock.now()
        self._world.watch.asked(verb, args, at)
        given = self._world.deciding(at, now)
        work = getattr(line.inner, f"do_{verb}")(*args, given)
        if self._world.is_stepwise:
            self._loop.create_task(self._carry_out(work, line, verb, args, asked, fate, reply))
            return
        try:
            self._check_open()
            answer: Any = at_once(work)
        except TaskHarborError as error:
            work.close()
            answer = error
        except Exception as error:  # noqa: BLE001 - a store that breaks is a finding, not the end of the run
            answer = self._broke(error)
        self._done(line, verb, args, asked, fate, reply, answer)

    async def _carry_out(
        self, work: Any, line: Link, verb: str, args: Any, asked: Any, fate: Fate, reply: Any
    ) -> None:
        try:
            self._check_open()
            answer: Any = await work
        except TaskHarborError as error:
            work.close()
            answer = error
        self._done(line, verb, args, asked, fate, reply, answer)

    def _broke(self, error: Exception) -> TaskHarborError:
        self._loop.call_exception_handler({"message": "the store broke", "exception": error})
        return DriverMisbehaved(f"the store broke: {error!r}")

    def _check_open(self) -> None:
        if self.is_out:
            raise DriverUnavailable("the store is out of order", done=False)

    def _done(
        self,
        line: Link,
        verb: str,
        args: tuple[Any, ...],
        asked: list[HistoryEvent],
        fate: Fate,
        reply: asyncio.Future[Any] | None,
        answer: Any,
    ) -> None:
        self.calls += 1
        self.sent[verb] = self.sent.get(verb, 0) + 1
        if fate.is_spoiled:
            self._world.mark_fault(line.process.name, "late arrival")
        self._note(line.process, verb, asked, answer, is_lost=fate.is_reply_lost or reply is None)
        if not isinstance(answer, TaskHarborError):
            self._world.watch.saw(verb, args, answer, self._world.store_clock.now())
        self._world.points.reached(f"{verb}.stored", line.process)
        if reply is not None and not fate.is_reply_lost:
            settle = _fail if isinstance(answer, TaskHarborError) else _answer
            self._loop.call_at_us(self._loop.us + fate.reply_us, settle, reply, answer)
        elif reply is not None and not fate.gives_up_us:
            self._break(reply, fate.reply_us + SECOND, done=None)
        if fate.is_repeated:
            again = Fate(reply_us=0)
            self._send(
                self._loop.us + self._choices.whole(0, SECOND), line, verb, args, asked, again, None, None
            )

    def _note(
        self, process: Process, verb: str, asked: list[HistoryEvent], answer: Any, *, is_lost: bool
    ) -> None:
        recorder = self._world.recorder_of(process.name)
        at = self._world.store_clock.now_us()
        if isinstance(answer, TaskHarborError):
            events = refusals(asked, answer, at)
        else:
            events = answers(verb, asked, answer, at)
        for event in events:
            recorder.note(event, is_lost=is_lost)
            self._remember(event)

    def _remember(self, event: HistoryEvent) -> None:
        """The instants at which something will come to its end: arrivals are moved onto them."""
        if event.kind != "ok":
            return
        if event.op == "grant" and not _is_tick(event):
            self.granted_us = self._loop.us
        if event.until is not None and event.op in ("grant", "extend"):
            self._ends[event.job] = event.until
            insort(self._instants, event.until)
        elif event.op == "retry" and event.span and event.at is not None:
            insort(self._instants, event.at + event.span)
        elif event.facts is not None and event.facts.delay and event.at is not None:
            insort(self._instants, event.at + event.facts.delay)

    # ------------------------------------------------------------------ fate

    def _fate(self, process: Process, verb: str, args: tuple[Any, ...]) -> Fate:
        choices, world = self._choices, self._world
        fate = Fate(
            arrives_us=self._loop.us + choices.whole(_FASTEST_US, _SLOWEST_US),
            reply_us=choices.whole(_FASTEST_US, _SLOWEST_US),
        )
        if choices.chance(world.plan.snap):
            self._snap(fate, _REACH_US, ())
        if world.has_faults and choices.chance(world.plan.fault_rate):
            self._spoil(fate, process, verb, args)
        return fate

    def _spoil(self, fate: Fate, process: Process, verb: str, args: tuple[Any, ...]) -> None:
        choices, world = self._choices, self._world
        kinds = [kind for kind in _LEG_FAULTS if kind in world.plan.faults]
        if not kinds:
            return
        kind = choices.pick(kinds)
        if kind == "duplicate" and verb not in MAY_BE_REPEATED:
            kind = "delay"
        gives_up = choices.whole(10_000, _CALL_TIMEOUT)
        wait = choices.whole(0, round(world.plan.lease_seconds * 1.5 * SECOND))
        if not world.allows(kind, process.name, verb):
            return
        fate.is_spoiled = True
        if kind == "lost_request":
            fate.is_request_lost, fate.gives_up_us = True, gives_up
        elif kind == "lost_reply":
            fate.is_reply_lost, fate.gives_up_us = True, gives_up
        elif kind == "late":
            fate.is_reply_lost, fate.gives_up_us = True, min(gives_up, SECOND // 10)
            fate.arrives_us += wait
            self._snap(fate, _LONG_REACH_US, _jobs_of(verb, args))
        elif kind == "duplicate":
            fate.is_repeated = True
        else:
            fate.arrives_us += wait
            self._snap(fate, _LONG_REACH_US, _jobs_of(verb, args))
            if fate.arrives_us - self._loop.us > _CALL_TIMEOUT:
                fate.is_reply_lost, fate.gives_up_us = True, _CALL_TIMEOUT

    def _snap(self, fate: Fate, reach_us: int, jobs: tuple[str, ...]) -> None:
        """Move the arrival onto a pending instant, or a microsecond before or after it."""
        clock = self._world.store_clock
        arrives = clock.at_us(fate.arrives_us)
        soonest = clock.at_us(self._loop.us)
        mine = [end for job in jobs if (end := self._ends.get(job, 0)) > soonest]
        where = bisect_left(self._instants, arrives - reach_us)
        near = mine or [at for at in self._instants[where : where + 5] if at - arrives <= reach_us]
        if where > 500:
            del self._instants[: where - 1]
        near = [at for at in near if at > soonest + 1]
        if near:
            fate.arrives_us = clock.loop_us(self._choices.pick(near)) + self._choices.pick((-1, 0, 0, 1))


def _is_tick(event: HistoryEvent) -> bool:
    return event.facts is not None and event.facts.idempotency_key.startswith("schedule/")


_LEG_FAULTS = ("delay", "duplicate", "late", "lost_reply", "lost_request")


def _jobs_of(verb: str, args: tuple[Any, ...]) -> tuple[str, ...]:
    if verb in ("settle", "exchange"):
        return tuple(settlement.lease.job_id for settlement in args[0])
    return tuple(lease.job_id for lease in args[0]) if verb == "extend_leases" else ()


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a store that never waits for anything."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the store waits for something; simulate it step by step")


def _answer(reply: asyncio.Future[Any], answer: Any) -> None:
    if not reply.done():
        reply.set_result(answer)


def _fail(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
