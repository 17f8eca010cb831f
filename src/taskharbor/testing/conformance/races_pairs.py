"""Every pair of verbs on one job at once: two handles do the one, two the other.

By the clock of the store: the answers must fit what the store has in the end, whichever call was first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import combinations_with_replacement, pairwise

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Extended, Settled
from taskharbor.errors import JobNotFound
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack, Release, Retry, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import HOUR, claim, new_job
from taskharbor.testing.conformance.parallel import Racer, in_threads

RACERS = 4
TRIES = 3


class Seen:
    """The answers that one racer got about the job of a round."""

    def __init__(self) -> None:
        self.runs: list[tuple[datetime, datetime, str]] = []  # from claim to settlement, and the id
        self.cancelled: set[str] = set()
        self.unknown: list[str] = []

    async def run(self, driver: Driver, queue: str, end: Callable[[JobRecord], Settlement]) -> None:
        for job in (await driver.reserve(claim(queues=(queue,), lease_for=HOUR))).jobs:
            [extended] = await driver.extend_leases([job.lease], HOUR)
            assert isinstance(extended, Extended), extended
            [answer] = await driver.settle([end(job)])
            assert isinstance(answer, Settled), answer
            assert job.started_at is not None
            self.runs.append((job.started_at, answer.at, job.id))


async def acks(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    await seen.run(driver, queue, lambda job: Ack(job.lease))


async def retries(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    await seen.run(driver, queue, lambda job: Retry(job.lease, reason="again"))


async def releases(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    await seen.run(driver, queue, lambda job: Release(job.lease))


async def cancels(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    [answer] = await driver.cancel([job_id])
    if answer.result is CancelResult.NOT_FOUND:
        seen.unknown.append("cancel")
    elif answer.result is not CancelResult.ALREADY_OVER:
        seen.cancelled.add(answer.id)


async def enqueues(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    await driver.enqueue([new_job(queue=queue, key=b"key")])


async def requeues(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    [answer] = await driver.requeue([job_id])
    if isinstance(answer, JobNotFound):
        seen.unknown.append("requeue")


async def sweeps(driver: Driver, queue: str, job_id: str, seen: Seen) -> None:
    assert await driver.reclaim() == [], "a lease that holds was reclaimed"


Verb = Callable[[Driver, str, str, Seen], Awaitable[None]]
VERBS: tuple[Verb, ...] = (acks, retries, releases, cancels, enqueues, requeues, sweeps)
PAIRS = list(combinations_with_replacement(VERBS, 2))


async def test_every_pair_of_verbs_on_one_job(driver: Driver) -> None:
    """P23: no cancel is lost, no job of a key runs twice at once, and an existing job is always found."""
    jobs = [new_job(queue=f"pair-{number}", key=b"key") for number in range(len(PAIRS))]
    await driver.enqueue(jobs)

    async def act(racer: Racer) -> list[Seen]:
        answers = []
        for pair, job in zip(PAIRS, jobs, strict=True):
            seen = Seen()
            answers.append(seen)
            racer.meet()
            for _ in range(TRIES):
                await pair[racer.number % 2](racer.driver, job.queue, job.id, seen)
        return answers

    answers = await in_threads(driver, RACERS, act)

    for place, ((one, other), job) in enumerate(zip(PAIRS, jobs, strict=True)):
        what = f"{one.__name__} and {other.__name__}"
        seen = [of_racer[place] for of_racer in answers]
        assert [name for each in seen for name in each.unknown] == [], what
        runs = sorted(run for each in seen for run in each.runs)
        for before, after in pairwise(runs):
            assert before[1] <= after[0], f"{what}: two of a key ran at once"
        if requeues not in (one, other):
            cancelled = sorted(set().union(*(each.cancelled for each in seen)))
            ends = await driver.get(cancelled) if cancelled else []
            assert all(end is not None and end.state is JobState.CANCELLED for end in ends), what
        assert await driver.get([job.id]) != [None], what
