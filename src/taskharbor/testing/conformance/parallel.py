"""Real concurrency for the races: threads, each with its own event loop and handle, and processes."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.testing.conformance.kit import requires

PATIENCE = 60.0
"""Seconds after which a race counts as hung; a good one takes far less."""

Answer = TypeVar("Answer")


class Racer:
    """One thread of a race: its own handle, its number, and the start line that all share."""

    def __init__(self, driver: Driver, number: int, line: Barrier) -> None:
        self.driver = driver
        self.number = number
        self._line = line

    def meet(self) -> None:
        """Wait until every racer is at the start. Blocks this thread's own event loop."""
        self._line.wait(PATIENCE)


async def in_threads(driver: Driver, size: int, act: Callable[[Racer], Awaitable[Answer]]) -> list[Answer]:
    """Run `act` in `size` threads at once, each with its own event loop and another handle."""
    line = Barrier(size)

    async def live(number: int) -> Answer:
        async with driver.another() as handle:
            racer = Racer(handle, number, line)
            racer.meet()
            return await act(racer)

    def thread(number: int) -> Answer:
        try:
            return asyncio.run(live(number))
        except BaseException:
            line.abort()  # the others must not wait for it
            raise

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(size) as threads:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*(loop.run_in_executor(threads, thread, n) for n in range(size)))


async def in_processes(
    request: pytest.FixtureRequest,
    driver: Driver,
    act: Callable[..., Answer],
    arguments: Sequence[tuple[Any, ...]],
) -> list[Answer]:
    """Run `act(url, *arguments)` in a new process for each of the arguments. `act` must be importable."""
    requires(driver, "multiprocess")
    url = url_from(request, "driver_url")
    loop = asyncio.get_running_loop()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(arguments), mp_context=spawn) as pool:
        async with asyncio.timeout(PATIENCE):
            calls = [loop.run_in_executor(pool, act, url, *given) for given in arguments]
            return await asyncio.gather(*calls)


def url_from(request: pytest.FixtureRequest, fixture: str) -> str:
    """The URL from an optional fixture. Skips the case when the fixture is missing or None."""
    try:
        url = request.getfixturevalue(fixture)
    except pytest.FixtureLookupError:
        url = None
    if url is None:
        pytest.skip(f"no fixture {fixture}: the kit cannot open this store a second time")
    return str(url)
