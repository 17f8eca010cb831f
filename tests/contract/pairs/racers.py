"""Four processes that make calls at the same moment, started once for all stores.

Each has a pipe for its orders: open a store, make a call as soon as all four are ready, close the store.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime
from multiprocessing.connection import Connection
from threading import Barrier
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.error_codec import failure_of
from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import Exchanged
from taskharbor.errors import TaskHarborError
from tests.contract.pairs.calls import Answer, Call

RACERS = 4
PATIENCE = 60.0
"""Seconds after which a call counts as hung."""

Change = Callable[[], None]
"""Changes the program of a racer, to plant a bug in it."""


class Trouble(Exception):
    """A call failed, or never came back."""


class Racers:
    """The four processes, as the test sees them."""

    def __init__(self, change: Change | None = None) -> None:
        # Forked from one that has imported this module: that takes most of a start.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._line = context.Barrier(RACERS)  # kept: it goes with the last reference
        self._pipes: list[Connection[Any, Any]] = []
        self._processes = []
        for _ in range(RACERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(theirs, self._line, change), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2)
            if process.exitcode is None:
                process.kill()
                process.join()

    def open(self, url: str) -> None:
        self._order([("open", url)] * RACERS)

    def close(self) -> None:
        self._order([("close", None)] * RACERS)

    def make(self, calls: Sequence[Call], now: datetime | None) -> list[Answer]:
        """Each makes its call at the same moment."""
        return self._order([("make", (call, now)) for call in calls])

    def _order(self, orders: Sequence[tuple[str, Any]]) -> list[Any]:
        for pipe, order in zip(self._pipes, orders, strict=True):
            pipe.send(order)
        answers = [self._answer_of(number) for number in range(RACERS)]
        for number, answer in enumerate(answers):  # after all: one left in a pipe would answer the next order
            if isinstance(answer, str):
                raise Trouble(f"racer {number}: {answer}")
        return answers

    def _answer_of(self, number: int) -> Any:
        pipe = self._pipes[number]
        if not pipe.poll(PATIENCE):
            raise Trouble(f"racer {number} is hung")
        return pipe.recv()


# ------------------------------------------------------------------ in a racer


def _live(pipe: Connection[Any, Any], line: Barrier, change: Change | None) -> None:
    if change is not None:
        change()
    asyncio.run(_obey(pipe, line))


async def _obey(pipe: Connection[Any, Any], line: Barrier) -> None:
    driver: Driver | None = None
    while True:
        try:
            order, given = pipe.recv()
        except EOFError:
            return
        try:
            if order == "open":
                driver = await connect(given).open()
                pipe.send(None)
                continue
            assert driver is not None
            if order == "close":
                await driver.close()
                pipe.send(None)
            else:
                pipe.send(await _made(driver, line, *given))
        except Exception:  # noqa: BLE001 - the test fails with it
            pipe.send(traceback.format_exc())


async def _made(driver: Driver, line: Barrier, call: Call, now: datetime | None) -> Answer:
    line.wait(PATIENCE)
    sent = time.monotonic()
    answer = await call.make(driver, now)
    return Answer(call, _portable(answer), sent, time.monotonic())


def _portable(answer: Any) -> Any:
    """With our errors as data: they would lose their arguments on the way through a pipe."""
    if isinstance(answer, TaskHarborError):
        return failure_of(answer)
    if isinstance(answer, list):
        return [_portable(one) for one in answer]
    if isinstance(answer, Exchanged):
        return replace(answer, settled=_portable(answer.settled), error=_portable(answer.error))
    return answer
