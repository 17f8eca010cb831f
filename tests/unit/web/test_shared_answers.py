"""Equal questions within a second get one answer, until something changes."""

import asyncio
from datetime import timedelta

import pytest

from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.reply import Reply
from taskharbor.web.shared_answers import MOST, SharedAnswers


class Asked:
    """A question that is counted."""

    def __init__(self) -> None:
        self.times = 0
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> Reply:
        self.times += 1
        self.began.set()
        await self.go.wait()
        return Reply(b"%d" % self.times)


async def test_those_who_ask_at_the_same_time_share_one_answer() -> None:
    answers, asked = SharedAnswers(SimulatedClock()), Asked()
    both = [asyncio.ensure_future(answers.get("q", asked)) for _ in range(2)]
    await asked.began.wait()
    both[0].cancel()  # one who leaves takes nothing from the other
    asked.go.set()

    assert (await both[1]).body == b"1"
    assert asked.times == 1


async def test_an_answer_is_old_after_a_second_or_a_change() -> None:
    clock, asked = SimulatedClock(), Asked()
    answers = SharedAnswers(clock)
    asked.go.set()
    await answers.get("q", asked)
    clock.advance(timedelta(seconds=0.9))
    await answers.get("q", asked)
    assert asked.times == 1

    clock.advance(timedelta(seconds=0.1))
    await answers.get("q", asked)
    assert asked.times == 2
    answers.clear()
    await answers.get("q", asked)
    assert asked.times == 3


async def test_an_answer_that_took_long_is_kept_longer() -> None:
    clock, asked = SimulatedClock(), Asked()
    answers = SharedAnswers(clock, share=20)
    first = asyncio.ensure_future(answers.get("q", asked))
    await asked.began.wait()
    clock.advance(timedelta(seconds=0.5))
    asked.go.set()
    await first
    clock.advance(timedelta(seconds=9.9))
    await answers.get("q", asked)
    assert asked.times == 1

    clock.advance(timedelta(seconds=0.1))
    await answers.get("q", asked)
    assert asked.times == 2


async def test_an_error_is_not_kept() -> None:
    answers, asked = SharedAnswers(SimulatedClock()), Asked()
    asked.go.set()

    async def fail() -> Reply:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await answers.get("q", fail)
    assert (await answers.get("q", asked)).body == b"1"


async def test_only_so_many_answers_are_kept() -> None:
    answers, asked = SharedAnswers(SimulatedClock()), Asked()
    asked.go.set()
    for number in range(MOST + 5):
        await answers.get(number, asked)

    await answers.get(0, asked)

    assert asked.times == MOST + 6
