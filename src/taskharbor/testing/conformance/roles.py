"""Roles: one holder at a time, and a term that only ever rises."""

from __future__ import annotations

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument, InvalidLeaseDuration
from taskharbor.testing.conformance.kit import LEASE, MICROSECOND, SECOND, START, requires

ROLE = "leader"


async def test_a_free_role_goes_to_the_first_who_asks(driver: Driver) -> None:
    """C65: for as long as was asked."""
    mine = await driver.hold_role(ROLE, "a", LEASE, now=START)

    assert (mine.role, mine.holder, mine.is_mine, mine.expires_at) == (ROLE, "a", True, START + LEASE)


async def test_a_held_role_answers_who_has_it(driver: Driver) -> None:
    """C65: and until when; asking changes nothing."""
    mine = await driver.hold_role(ROLE, "a", LEASE, now=START)

    late = START + LEASE - MICROSECOND
    for theirs in [await driver.hold_role(ROLE, "b", 10 * LEASE, now=late) for _ in range(3)]:
        assert (theirs.holder, theirs.is_mine, theirs.term) == ("a", False, mine.term)
        assert theirs.expires_at == START + LEASE


async def test_holding_on_keeps_the_term(driver: Driver) -> None:
    """BM19: without a gap it is the same term, counted from each call, shorter or longer."""
    first = await driver.hold_role(ROLE, "a", LEASE, now=START)

    again = await driver.hold_role(ROLE, "a", LEASE, now=START + LEASE - MICROSECOND)
    shorter = await driver.hold_role(ROLE, "a", SECOND, now=START + LEASE)

    assert (again.term, shorter.term) == (first.term, first.term)
    assert again.expires_at == START + 2 * LEASE - MICROSECOND
    assert shorter.expires_at == START + LEASE + SECOND


async def test_a_lapsed_role_can_be_taken_at_that_instant_with_a_higher_term(driver: Driver) -> None:
    """E05 BM19: at the end it is free, one microsecond earlier it is not."""
    first = await driver.hold_role(ROLE, "a", LEASE, now=START)

    taken = await driver.hold_role(ROLE, "b", LEASE, now=START + LEASE)
    late = await driver.hold_role(ROLE, "a", LEASE, now=START + LEASE)

    assert (taken.is_mine, taken.term > first.term) == (True, True)
    assert (late.is_mine, late.holder, late.term) == (False, "b", taken.term)


async def test_the_same_holder_after_a_gap_has_a_new_term(driver: Driver) -> None:
    """BM19: while it did not hold it, another may have."""
    first = await driver.hold_role(ROLE, "a", LEASE, now=START)

    again = await driver.hold_role(ROLE, "a", LEASE, now=START + LEASE)

    assert (again.is_mine, again.term > first.term) == (True, True)


async def test_a_released_role_is_free_at_once(driver: Driver) -> None:
    """C65: and any next holder has a higher term."""
    first = await driver.hold_role(ROLE, "a", LEASE, now=START)

    assert await driver.release_role(ROLE, "a", now=START)
    assert not await driver.release_role(ROLE, "a", now=START)
    second = await driver.hold_role(ROLE, "b", LEASE, now=START)
    assert await driver.release_role(ROLE, "b", now=START)
    third = await driver.hold_role(ROLE, "a", LEASE, now=START)

    assert first.term < second.term < third.term


async def test_only_the_holder_can_release(driver: Driver) -> None:
    """D03: a stranger changes nothing."""
    await driver.hold_role(ROLE, "a", LEASE, now=START)

    assert not await driver.release_role(ROLE, "b", now=START)
    assert not await driver.release_role("other-role", "a", now=START)

    assert (await driver.hold_role(ROLE, "b", LEASE, now=START)).holder == "a"


async def test_roles_do_not_know_each_other(driver: Driver) -> None:
    """V09: each has its own holder."""
    await driver.hold_role(ROLE, "a", LEASE, now=START)

    assert (await driver.hold_role("sweeper", "b", LEASE, now=START)).is_mine
    assert (await driver.hold_role(ROLE, "a", LEASE, now=START)).is_mine


async def test_there_are_never_two_holders_and_terms_never_repeat(driver: Driver) -> None:
    """C65: three candidates over many lapses, releases and renewals."""
    holders = ["a", "b", "c"]
    terms: list[tuple[int, str]] = []
    for step in range(60):
        now = START + step * LEASE / 4
        answers = [await driver.hold_role(ROLE, name, LEASE, now=now) for name in holders[step % 3 :]]
        assert len({(answer.holder, answer.term) for answer in answers}) == 1
        terms.append((answers[0].term, answers[0].holder))
        if step % 7 == 0:
            await driver.release_role(ROLE, answers[0].holder, now=now)

    assert terms == sorted(terms, key=lambda term: term[0])
    assert len({term for term, _ in terms}) == len(set(terms)), "a term belongs to one holder"
    assert len(set(terms)) > 5


async def test_terms_go_on_after_a_restart(driver: Driver) -> None:
    """BM19 U11: also when the role was free in between."""
    requires(driver, "durable")
    first = await driver.hold_role(ROLE, "a", LEASE, now=START)
    await driver.release_role(ROLE, "a", now=START)
    again = driver.another()
    await driver.close()

    async with again:
        assert (await again.hold_role(ROLE, "b", LEASE, now=START)).term > first.term


async def test_a_role_needs_a_name_a_holder_and_a_time(driver: Driver) -> None:
    """N15: refused before the store is asked."""
    with pytest.raises(InvalidArgument):
        await driver.hold_role("a b", "a", LEASE, now=START)
    with pytest.raises(InvalidArgument):
        await driver.hold_role(ROLE, "", LEASE, now=START)
    with pytest.raises(InvalidLeaseDuration):
        await driver.hold_role(ROLE, "a", 0 * LEASE, now=START)
