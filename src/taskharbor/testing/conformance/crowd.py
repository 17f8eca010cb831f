"""Real concurrency for the races: threads with loops and handles of their own, and whole processes."""

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
"""Seconds after which something hangs; every crowd is done long before."""

Answer = TypeVar("Answer")


class Member:
    """One thread of a crowd: its own handle, its number, and a line where all start together."""

    def __init__(self, driver: Driver, number: int, line: Barrier) -> None:
        self.driver = driver
        self.number = number
        self._line = line

    def meet(self) -> None:
        """Wait until every member is here. It blocks this thread's loop, which is its own."""
        self._line.wait(PATIENCE)


async def crowd(driver: Driver, size: int, act: Callable[[Member], Awaitable[Answer]]) -> list[Answer]:
    """Run `act` in `size` threads at once, each with its own event loop and another handle."""
    line = Barrier(size)

    async def live(number: int) -> Answer:
        async with driver.another() as handle:
            member = Member(handle, number, line)
            member.meet()
            return await act(member)

    def thread(number: int) -> Answer:
        try:
            return asyncio.run(live(number))
        except BaseException:
            line.abort()  # nobody waits for one that will not come
            raise

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(size) as threads:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*(loop.run_in_executor(threads, thread, n) for n in range(size)))


async def processes(
    request: pytest.FixtureRequest,
    driver: Driver,
    act: Callable[..., Answer],
    arguments: Sequence[tuple[Any, ...]],
) -> list[Answer]:
    """Run `act(url, *arguments)`, a function of a module, in a fresh process for each of the arguments."""
    requires(driver, "multiprocess")
    url = url_from(request, "driver_url")
    loop = asyncio.get_running_loop()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(arguments), mp_context=spawn) as pool:
        async with asyncio.timeout(PATIENCE):
            calls = [loop.run_in_executor(pool, act, url, *given) for given in arguments]
            return await asyncio.gather(*calls)


def url_from(request: pytest.FixtureRequest, fixture: str) -> str:
    """The URL that an optional fixture gives; without the fixture, or with None, the case is skipped."""
    try:
        url = request.getfixturevalue(fixture)
    except pytest.FixtureLookupError:
        url = None
    if url is None:
        pytest.skip(f"no fixture {fixture}: the kit cannot open this store a second time")
    return str(url)
