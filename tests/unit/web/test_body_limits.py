"""The bytes of bodies under way: a sum for all, a share for each."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.web.body_limits import BodyMemory
from taskharbor.web.problems import Problem

SOON = 0.01
LONG = 30.0


async def test_bodies_fit_up_to_the_sum_and_then_wait_for_one_to_leave() -> None:
    memory = BodyMemory(100)
    await memory.take("a", 50, SOON)
    await memory.take("b", 50, SOON)
    late = asyncio.ensure_future(memory.take("c", 10, LONG))
    with pytest.raises(Problem) as caught:
        await memory.take("d", 10, SOON)
    assert caught.value.kind == "too-busy"

    memory.release("a", 50)
    await late

    assert memory.taken == 60


async def test_one_caller_has_half_of_it() -> None:
    memory = BodyMemory(100)
    await memory.take("a", 40, SOON)

    with pytest.raises(Problem):
        await memory.take("a", 20, SOON)

    await memory.take("a", 10, SOON)
    await memory.take("b", 50, SOON)


async def test_who_is_alone_has_room_for_one_body_however_large() -> None:
    memory = BodyMemory(100)
    await memory.take("a", 1000, SOON)
    with pytest.raises(Problem):
        await memory.take("b", 1, SOON)
    memory.release("a", 1000)

    await memory.take("b", 1, SOON)


async def test_callers_of_this_machine_are_one_caller_and_have_all_of_it() -> None:
    memory = BodyMemory(100)
    for _ in range(4):
        await memory.take("loopback", 25, SOON, share=False)

    with pytest.raises(Problem):
        await memory.take("loopback", 25, SOON, share=False)


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    memory = BodyMemory(100)
    await memory.take("a", 100, SOON)
    waiting = asyncio.ensure_future(memory.take("b", 10, LONG))
    await asyncio.wait((waiting,), timeout=SOON)
    waiting.cancel()
    memory.release("a", 100)

    assert memory.taken == 0
    await memory.take("c", 100, SOON)
