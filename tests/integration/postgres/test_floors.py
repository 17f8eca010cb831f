"""Where the next claim begins: a rule about time, tested with a clock that only the test moves."""

from datetime import timedelta

from taskharbor.drivers.postgres.floors import NO_FLOORS, Floors
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.testing import SimulatedClock
from taskharbor.testing.conformance.kit import START, claim

CLAIM = claim(limit=2)


def job(seq: int, priority: int = 0) -> JobRecord:
    return JobRecord(
        id=str(seq),
        seq=seq,
        type="kit.job",
        queue=CLAIM.queues[0],
        state=JobState.RUNNING,
        payload=b"",
        created_at=START,
        updated_at=START,
        priority=priority,
    )


class Caller:
    """Somebody who claims, with looks that take as long as the test says."""

    def __init__(self) -> None:
        self.clock = SimulatedClock(START)
        self.floors = Floors(self.clock)

    def claims(self, found: list[JobRecord], *, takes: float = 0.0) -> bool:
        """Make one claim; did it begin at the left end?"""
        asked = self.floors.arguments(CLAIM, None)
        self.clock.advance(timedelta(seconds=takes))
        self.floors.learn(CLAIM, found, START, None)
        return asked is NO_FLOORS


def test_a_full_claim_is_followed_by_half_a_second_behind_it() -> None:
    caller = Caller()
    assert caller.claims([job(1), job(2)])
    assert not caller.claims([job(3), job(4)])
    assert list(caller.floors.arguments(CLAIM, None)[4]) == [4]

    caller.clock.advance(timedelta(seconds=0.5))

    assert caller.claims([job(5), job(6)])


def test_who_found_less_than_it_wanted_looks_everywhere_the_next_time() -> None:
    caller = Caller()
    caller.claims([job(1), job(2)])
    assert not caller.claims([job(3)])
    assert caller.claims([])
    assert caller.claims([])


def test_a_slow_look_everywhere_is_made_for_a_twentieth_of_the_time_only() -> None:
    caller = Caller()
    assert caller.claims([job(1)], takes=0.1)
    assert not caller.claims([])
    assert not caller.claims([job(2)])
    caller.clock.advance(timedelta(seconds=1.9))
    assert not caller.claims([])
    caller.clock.advance(timedelta(seconds=0.1))
    assert caller.claims([], takes=0.001)

    assert caller.claims([])  # it is fast again


def test_a_clock_from_outside_has_no_floor() -> None:
    floors = Floors(SimulatedClock(START))
    floors.arguments(CLAIM, START)
    floors.learn(CLAIM, [job(1), job(2)], START, START)

    assert floors.arguments(CLAIM, None) is NO_FLOORS
