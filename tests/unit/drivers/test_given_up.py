"""The jobs that a handle gave up, until somebody takes them."""

from __future__ import annotations

from taskharbor.drivers.given_up import MOST_KEPT, GivenUps
from taskharbor.drivers.messages import GivenUp


def jobs(*numbers: int, queue: str = "mail") -> list[GivenUp]:
    return [GivenUp(str(number), queue, "send", 3) for number in numbers]


def test_what_nobody_takes_does_not_grow_for_ever():
    book = GivenUps()
    book.hear(jobs(*range(MOST_KEPT + 5)))

    taken = book.take()

    assert [job.id for job in (taken[0], taken[-1])] == ["5", str(MOST_KEPT + 4)]
    assert len(taken) == MOST_KEPT


def test_each_is_taken_once_and_by_those_who_may_have_it():
    book = GivenUps()
    book.hear([*jobs(1), *jobs(2, queue="other"), *jobs(3)])

    assert book.take({"other"}.__contains__) == jobs(2, queue="other")
    assert book.take() == jobs(1, 3)
    assert not book
    assert book.take() == []


def test_what_is_too_much_for_one_waits_for_the_next_in_order():
    book = GivenUps()
    book.hear(jobs(1, 2, 3))

    assert book.take(most=2) == jobs(1, 2)
    assert book
    assert book.take(most=2) == jobs(3)
