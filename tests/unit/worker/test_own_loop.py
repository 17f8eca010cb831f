"""The event loop of a worker that has the process to itself: what may end it, and what may not."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from taskharbor.model.clock import pause
from taskharbor.worker.signals import run_to_the_end


async def leave(error):
    await pause()
    raise error("leaving")


async def caught(error):
    """The result of an await of a task that raises this, with the interrupt taken as a worker takes it."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        await loop.create_task(leave(error))
    except error as seen:
        return str(seen)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_a_task_raises_reaches_who_awaits_it_and_the_loop_goes_on(error):
    assert run_to_the_end(caught(error)) == "leaving"


def test_a_task_that_nobody_awaits_ends_nothing():
    async def main():
        forgotten = asyncio.get_running_loop().create_task(leave(SystemExit))
        while not forgotten.done():
            await pause()
        return type(forgotten.exception())

    assert run_to_the_end(main()) is SystemExit


def test_what_the_run_itself_raises_ends_it():
    with pytest.raises(SystemExit, match="leaving"):
        run_to_the_end(leave(SystemExit))


def test_an_interrupt_that_nobody_has_taken_ends_it():
    async def main():
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # this very run may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_to_the_end(main())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_task_that_leaves_at_the_very_end_is_left_behind():
    async def main():
        async def last():
            try:
                await asyncio.Event().wait()
            finally:
                raise SystemExit("too late")

        asyncio.get_running_loop().late = asyncio.create_task(last())  # type: ignore[attr-defined]
        await pause()
        return "done"

    assert run_to_the_end(main()) == "done"


def test_blocking_calls_run_in_threads_that_keep_nobody_alive():
    async def main():
        return await asyncio.to_thread(threading.current_thread)

    assert run_to_the_end(main()).daemon
