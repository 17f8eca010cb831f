"""Where the next claim begins: a rule about time, tested with a clock that only the test moves."""

from datetime import timedelta

from taskharbor.drivers.postgres.claim_start import LEFT_END, ClaimStart
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
        self.start = ClaimStart(self.clock)

    def claims(self, found: list[JobRecord], *, takes: float = 0.0) -> bool:
        """Make one claim; did it begin at the left end?"""
        asked = self.start.arguments(CLAIM, None)
        self.clock.advance(timedelta(seconds=takes))
        self.start.learn(CLAIM, found, START, None)
        return asked[0] is None  # nothing was checked before


def test_a_full_claim_is_followed_by_half_a_second_behind_it() -> None:
    caller = Caller()
    assert caller.claims([job(1), job(2)])
    assert not caller.claims([job(3), job(4)])
    assert list(caller.start.arguments(CLAIM, None)[5]) == [4]

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


def test_a_clock_from_outside_starts_at_the_left_end() -> None:
    start = ClaimStart(SimulatedClock(START))
    start.arguments(CLAIM, START)
    start.learn(CLAIM, [job(1), job(2)], START, START)

    assert start.arguments(CLAIM, None) == LEFT_END


def test_every_rank_starts_behind_the_job_of_its_own_that_was_taken_last() -> None:
    caller = Caller()
    caller.claims([job(3, priority=5), job(2)])
    caller.claims([job(7, priority=5), job(9, priority=1)])

    lines, ranks, _, seqs = caller.start.arguments(CLAIM, None)[2:6]

    assert lines == [f"{CLAIM.queues[0]}/any"] * 3
    assert list(zip(ranks, seqs, strict=True)) == [(-5, 7), (-1, 9), (0, 2)]
