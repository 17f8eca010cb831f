"""An event loop without a machine under it: virtual time, and many processes in one thread.

Each simulated process has a queue of its own, first in, first out, as a real event loop has; which
process goes next is drawn from the seed. When no process has anything to do, time jumps to the next
timer. A frozen process keeps its queue and does nothing; a killed one never runs again, and nothing
of it is cleaned up, exactly as after `kill -9`.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
from asyncio import AbstractEventLoop, Task
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from taskharbor.testing.simulator.choices import Choices

SECOND = 1_000_000
_FAREWELLS = 5
_FAREWELL_US = 20 * SECOND

_here: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


class Turn:
    """Something that one process will do: what asyncio calls a handle, without anything else of it."""

    __slots__ = ("_is_cancelled", "args", "callback", "context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self._is_cancelled = False

    def cancel(self) -> None:
        """The handle stays in the heap and is skipped; its callback and arguments are released at once."""
        self._is_cancelled = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self._is_cancelled


class Process:
    """One simulated process: a name, and what is ready to run in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Turn] = deque()
        self.is_dead = False
        self.is_lined_up = False
        self.frozen_until = 0  # in µs of the loop
        self.slow_us = 0  # what each step costs

    def __repr__(self) -> str:
        return f"<process {self.name}>"


class SimulatedTask(Task[Any]):
    """A task that knows its process."""

    process: Process | None = None


class SimulatedLoop(AbstractEventLoop):
    """Runs a world of processes. Everything follows from the choices."""

    def __init__(self, choices: Choices) -> None:
        self.us = 0
        self.errors: list[dict[str, Any]] = []
        self.steps = 0
        self._choices = choices
        self._timers: list[tuple[int, int, Turn, Process]] = []
        self._numbers = 0
        self._active: list[Process] = []  # with something to do, and not frozen
        self._graveyard: list[Any] = []  # what dead processes held: freeing it would run its clean-up
        self._dead: list[Process] = []
        self._is_closed = False
        self._world = Process("world")

    # ------------------------------------------------------------------ processes

    def context_of(self, process: Process) -> Context:
        """A context in which everything that is started belongs to this process."""
        context = copy_context()
        context.run(_here.set, process)
        return context

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> Task[Any]:
        return self.create_task(work, context=self.context_of(process))

    def freeze(self, process: Process, us: int) -> None:
        """Nothing of this process happens for so long."""
        process.frozen_until = max(process.frozen_until, self.us + us)
        if process.is_lined_up:
            self._active.remove(process)
            process.is_lined_up = False
        self._numbers += 1
        thaw = Turn(self._thaw, (process,), self.context_of(self._world))
        heapq.heappush(self._timers, (process.frozen_until, self._numbers, thaw, self._world))

    def kill(self, process: Process) -> None:
        process.is_dead = True
        self._dead.append(process)
        if process.is_lined_up:
            self._active.remove(process)
            process.is_lined_up = False
        self._graveyard += [task for task in asyncio.all_tasks(self) if _process_of(task) is process]

    def current(self) -> Process:
        return _here.get() or self._world

    def _thaw(self, process: Process) -> None:
        if self.us >= process.frozen_until and process.ready:
            self._line_up(process)

    def _line_up(self, process: Process) -> None:
        if not process.is_lined_up and not process.is_dead and self.us >= process.frozen_until:
            process.is_lined_up = True
            self._active.append(process)

    # ------------------------------------------------------------------ what asyncio asks for

    def time(self) -> float:
        return self.us / SECOND

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        process = (_here.get() if context is None else context.get(_here)) or self._world
        turn = Turn(callback, args, context)
        self._enter(process, turn)
        return turn

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        # Every wait lets time pass: a wait of a nanosecond must not become an endless loop.
        wait_us = max(math.ceil(delay * SECOND - 1e-3), 1 if delay > 0 else 0)
        return self.call_at_us(self.us + wait_us, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at_us(math.ceil(when * SECOND - 1e-3), callback, *args, context=context)

    def call_at_us(self, when_us: int, callback: Any, *args: Any, context: Context | None = None) -> Turn:
        process = (_here.get() if context is None else context.get(_here)) or self._world
        timer = Turn(callback, args, context)
        self._numbers += 1
        heapq.heappush(self._timers, (max(when_us, self.us), self._numbers, timer, process))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> Task[Any]:
        task = SimulatedTask(coro, loop=self, name=name, context=context)
        task.process = (_here.get() if context is None else context.get(_here)) or self._world
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    # ------------------------------------------------------------------ the run

    def run(self, main: Coroutine[Any, Any, Any], over: Callable[[], None]) -> Any:
        """Run until `main` returns; then call `over`, and let whatever is still under way end itself."""
        was_collecting = gc.isenabled()
        gc.disable()  # a collection would run the clean-up of killed processes, at a moment of its own
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._step()
            return task.result()
        finally:
            over()
            self._end_all()
            asyncio._set_running_loop(before)
            if was_collecting:
                gc.enable()

    def _step(self) -> None:
        active = self._active
        if not active:
            self._advance()
            return
        process = active[self._choices.below(len(active))] if len(active) > 1 else active[0]
        turn = process.ready.popleft()
        if not process.ready:
            active.remove(process)
            process.is_lined_up = False
        self.steps += 1
        if turn.callback is not None:
            self._take(turn)
        if process.slow_us and process.ready:
            self.freeze(process, process.slow_us)

    def _take(self, turn: Turn) -> None:
        try:
            turn.context.run(turn.callback, *turn.args)
        except Exception as error:  # noqa: BLE001 - reported like in a real loop; the other tasks go on
            self.call_exception_handler({"message": f"{turn.callback} raised", "exception": error})

    def _advance(self) -> None:
        timers = self._timers
        if not timers:
            raise AssertionError("everybody waits for something that will never happen")
        when, _, turn, process = heapq.heappop(timers)
        self.us = max(self.us, when)
        self._enter_timer(process, turn)
        while timers and timers[0][0] <= self.us:
            _, _, turn, process = heapq.heappop(timers)
            self._enter_timer(process, turn)

    def _enter_timer(self, process: Process, turn: Turn) -> None:
        if turn.callback is not None:
            self._enter(process, turn)

    def _enter(self, process: Process, turn: Turn) -> None:
        if self._is_closed:
            return
        process.ready.append(turn)
        if not process.is_lined_up:
            self._line_up(process)

    def _end_all(self) -> None:
        """Cancel what is left, the dead included, so that nothing is thrown away half done."""
        for process in self._dead:
            process.is_dead = False
            process.frozen_until = 0
            if process.ready:
                self._line_up(process)
        for _ in range(_FAREWELLS):
            left = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
            for task in left:
                task.cancel()
            until = self.us + _FAREWELL_US
            while left and (self._active or (self._timers and self._timers[0][0] <= until)):
                self._step()
        self._is_closed = True
        self._graveyard.clear()


def _process_of(task: Task[Any]) -> Process | None:
    return task.process if isinstance(task, SimulatedTask) else None
