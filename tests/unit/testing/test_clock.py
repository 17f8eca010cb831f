"""The simulated clock."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.errors import InvalidArgument
from taskharbor.testing.clock import START, SimulatedClock, turn_loop


async def test_time_does_not_pass_until_it_is_moved():
    clock = SimulatedClock()
    sleeping = asyncio.create_task(clock.sleep(10))

    await turn_loop()
    assert (clock.now(), clock.monotonic(), sleeping.done()) == (START, 0.0, False)
    clock.advance(9.999)
    await turn_loop()
    assert not sleeping.done()
    clock.advance("1ms")
    await turn_loop()

    assert sleeping.done()
    assert clock.monotonic() == 10.0
    assert clock.now() == START + timedelta(seconds=10)


async def test_no_time_at_all_passes_at_once():
    await SimulatedClock().sleep(0)
    await SimulatedClock().sleep(-1)


async def test_time_passes_from_one_waking_to_the_next():
    clock = SimulatedClock()
    woke: list[float] = []

    async def every_second():
        while True:
            await clock.sleep(1)
            woke.append(clock.monotonic())

    task = asyncio.create_task(every_second())
    await clock.pass_time("3.5s")
    task.cancel()

    assert woke == [1.0, 2.0, 3.0]
    assert clock.monotonic() == 3.5


async def test_a_jump_wakes_everybody_whose_time_has_come():
    clock = SimulatedClock()
    tasks = [asyncio.create_task(clock.sleep(seconds)) for seconds in (3, 1, 2, 9)]
    await turn_loop()
    assert clock.next_wake_at == START + timedelta(seconds=1)

    clock.advance(5)
    await turn_loop()

    assert [task.done() for task in tasks] == [True, True, True, False]
    tasks[3].cancel()
    await turn_loop()
    assert clock.next_wake_at is None


async def test_sleepers_of_other_threads_are_woken_too():
    clock = SimulatedClock()
    asleep, awake = threading.Event(), threading.Event()

    def in_another_thread():
        async def sleep():
            asyncio.get_running_loop().call_soon(asleep.set)
            await clock.sleep(60)

        asyncio.run(sleep())
        awake.set()

    thread = threading.Thread(target=in_another_thread)
    thread.start()
    await asyncio.to_thread(asleep.wait, 10)
    clock.advance(60)

    assert await asyncio.to_thread(awake.wait, 10)
    thread.join()


def test_it_never_goes_back():
    clock = SimulatedClock(datetime(2031, 1, 1, tzinfo=UTC))

    with pytest.raises(InvalidArgument, match="never goes back"):
        clock.advance(-1)
    assert clock.advance_to(START) == datetime(2031, 1, 1, tzinfo=UTC)


def test_it_starts_at_an_aware_instant():
    with pytest.raises(InvalidArgument, match="no time zone"):
        SimulatedClock(datetime(2030, 1, 1))  # noqa: DTZ001
