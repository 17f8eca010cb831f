"""Who has a place at the server, and who goes when there is none."""

from __future__ import annotations

import asyncio
import logging

import pytest

from taskharbor.web.connection_limits import LEAST_READ, ConnectionLimits


class Caller:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.waiting = 0
        self.is_gone = False

    def unsent(self) -> int:
        return self.waiting

    def give_up(self) -> None:
        self.is_gone = True


def several(count: int, address: str = "10.0.0.1") -> list[Caller]:
    return [Caller(address) for _ in range(count)]


async def test_when_full_the_one_that_keeps_us_waiting_longest_makes_room() -> None:
    limits, (first, second, third, late) = ConnectionLimits(3, 0), several(4)
    for now, caller in enumerate((first, second, third)):
        assert limits.enter(caller, now) is None
    limits.is_busy(first)  # its request is being handled
    limits.is_busy(second)
    limits.waits(second, 7)  # it was answered, and is quiet since then

    assert limits.enter(late, 9) is None

    assert [caller.is_gone for caller in (first, second, third, late)] == [False, False, True, False]
    assert len(limits) == 3
    assert limits.dropped == {"made_room": 1}


async def test_when_all_are_busy_one_more_is_refused() -> None:
    limits, callers, late = ConnectionLimits(3, 0), several(3), Caller()
    for caller in callers:
        limits.enter(caller, 0)
        limits.is_busy(caller)

    assert limits.enter(late, 1) == "full"

    limits.leave(callers[0])
    assert limits.enter(late, 2) is None
    assert not any(caller.is_gone for caller in callers)


async def test_one_address_has_half_of_the_places_and_this_machine_all() -> None:
    limits = ConnectionLimits(4)
    first, second, third = several(3)
    for caller in (first, second):
        assert limits.enter(caller, 0) is None
        limits.is_busy(caller)

    assert limits.enter(third, 1) == "share"
    assert limits.enter(Caller("10.0.0.2"), 1) is None

    local = ConnectionLimits(4)
    for caller in several(4, "127.0.0.1"):
        assert local.enter(caller, 0) is None


async def test_an_address_with_its_share_gives_up_one_of_its_own() -> None:
    limits = ConnectionLimits(10, 2)
    other, (first, second, third) = Caller("10.0.0.2"), several(3)
    for now, caller in enumerate((other, first, second)):
        limits.enter(caller, now)

    assert limits.enter(third, 9) is None

    assert [caller.is_gone for caller in (other, first, second)] == [False, True, False]


async def test_a_caller_who_reads_nothing_is_let_go_and_one_who_reads_slowly_stays() -> None:
    limits = ConnectionLimits(10, 0, write_seconds=0.08)
    deaf, slow, quick = several(3)
    for caller in (deaf, slow, quick):
        limits.enter(caller, 0)
        limits.is_busy(caller)
    deaf.waiting, slow.waiting = 1, 100 * LEAST_READ

    async with asyncio.timeout(20):
        while not deaf.is_gone:
            slow.waiting -= LEAST_READ
            await asyncio.sleep(0.02)  # noqa: TID251 - the loop's own timers are what is tested

    assert not slow.is_gone
    assert not quick.is_gone
    assert limits.dropped == {"unread": 1}


async def test_a_flood_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(2, 0)
    with caplog.at_level(logging.WARNING, "taskharbor.server"):
        for now in range(1000):
            limits.enter(Caller("10.0.0.9"), now)

    [line] = caplog.messages
    assert "made room" in line or "make room" in line
    assert "10.0.0.9" in line
    assert limits.dropped == {"made_room": 998}


async def test_those_who_leave_are_forgotten() -> None:
    limits, callers = ConnectionLimits(10), several(5)
    for caller in callers:
        limits.enter(caller, 0)
        limits.leave(caller)
        limits.waits(caller, 1)
        limits.leave(caller)

    assert len(limits) == 0
    assert not limits._held
    assert not limits._waiting
