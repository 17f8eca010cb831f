"""The bytes of bodies under way: a sum for all, a share for each."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.web.problems import Problem
from taskharbor.web.room import Room

SOON = 0.01
LONG = 30.0


async def test_bodies_fit_up_to_the_sum_and_then_wait_for_one_to_leave() -> None:
    room = Room(100)
    await room.take("a", 50, SOON)
    await room.take("b", 50, SOON)
    late = asyncio.ensure_future(room.take("c", 10, LONG))
    with pytest.raises(Problem) as caught:
        await room.take("d", 10, SOON)
    assert caught.value.kind == "too-busy"

    room.give_back("a", 50)
    await late

    assert room.taken == 60


async def test_one_caller_has_half_of_it() -> None:
    room = Room(100)
    await room.take("a", 40, SOON)

    with pytest.raises(Problem):
        await room.take("a", 20, SOON)

    await room.take("a", 10, SOON)
    await room.take("b", 50, SOON)


async def test_who_is_alone_has_room_for_one_body_however_large() -> None:
    room = Room(100)
    await room.take("a", 1000, SOON)
    with pytest.raises(Problem):
        await room.take("b", 1, SOON)
    room.give_back("a", 1000)

    await room.take("b", 1, SOON)


async def test_callers_of_this_machine_are_one_caller_and_have_all_of_it() -> None:
    room = Room(100)
    for _ in range(4):
        await room.take("loopback", 25, SOON, share=False)

    with pytest.raises(Problem):
        await room.take("loopback", 25, SOON, share=False)


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    room = Room(100)
    await room.take("a", 100, SOON)
    waiting = asyncio.ensure_future(room.take("b", 10, LONG))
    await asyncio.wait((waiting,), timeout=SOON)
    waiting.cancel()
    room.give_back("a", 100)

    assert room.taken == 0
    await room.take("c", 100, SOON)
