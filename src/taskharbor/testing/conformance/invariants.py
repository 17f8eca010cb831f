"""Invariants: what must hold for all records after every case."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts
from taskharbor.errors import DriverClosed
from taskharbor.model.bonds import NO_BONDS, Family, fails_parent
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import START, find_all

# After every instant that a case uses: no case can leave a job that was promoted later than this.
LONG_AFTER = START + timedelta(days=365 * 40)


@pytest.fixture(autouse=True)
async def invariants_hold(driver: Driver) -> AsyncIterator[None]:
    """After every case that leaves its driver open: records, keys, order and counts are consistent."""
    yield
    try:
        jobs = await find_all(driver, now=LONG_AFTER)
    except DriverClosed:
        return
    for job in jobs:
        check_record(job)
    check_keys(jobs)
    check_order(jobs)
    check_families(jobs)
    counts = await driver.count(now=LONG_AFTER)
    assert {queue: numbers for queue, numbers in counts.items() if numbers.total} == counted(jobs)


def check_record(job: JobRecord) -> None:
    """The fields of one record agree with each other."""
    is_running = job.state is JobState.RUNNING
    assert (job.lease_expires_at is not None) == is_running, job
    assert (job.worker_id is not None) == is_running, job
    assert (job.finished_at is not None) == job.state.is_terminal, job
    assert (job.update is not None) == (job.state is JobState.BLOCKED and job.key is not None), job
    assert (job.started_at is not None) == (job.starts > 0), job
    assert (job.fence > 0) == (job.starts > 0), job
    assert job.result is None or job.state is JobState.COMPLETED or job.family is not None, job
    assert job.state is not JobState.FAILED or None not in (
        job.failed_at,
        job.failure_kind,
        job.last_error,
    ), job
    assert job.stalls <= job.starts, job
    assert job.version >= 1, job
    assert len(job.history) <= 10, job
    assert job.token is None, "a listing never shows a token"
    assert job.settled_token is None, "a listing never shows the token of the last settlement"


def check_keys(jobs: Iterable[JobRecord]) -> None:
    """At most one waiting and one running job per key, and no job blocked without one that runs."""
    waiting: Counter[tuple[str, bytes]] = Counter()
    running: Counter[tuple[str, bytes]] = Counter()
    blocked = set()
    for job in jobs:
        if job.key is None:
            continue
        where = (job.queue, job.key)
        waiting[where] += job.state.is_waiting
        running[where] += job.state is JobState.RUNNING
        if job.state is JobState.BLOCKED:
            blocked.add(where)
    assert max(waiting.values(), default=0) <= 1, waiting
    assert max(running.values(), default=0) <= 1, running
    assert blocked <= {where for where, count in running.items() if count}, "blocked behind nothing"


def check_order(jobs: list[JobRecord]) -> None:
    """The listing is in enqueue order, and no id is in it twice."""
    places = [job.seq for job in jobs]
    assert places == sorted(set(places))
    assert len({job.id for job in jobs}) == len(jobs)


def check_families(jobs: Iterable[JobRecord]) -> None:
    """Counts are those of the children that there are; a job that is over has no open child."""
    by_id = {job.id: job for job in jobs}
    children: dict[str, list[JobRecord]] = {}
    for job in by_id.values():
        if job.bonds is not None and job.bonds.parent is not None:
            children.setdefault(job.bonds.parent, []).append(job)
    assert children.keys() <= by_id.keys(), "a child outlived its parent"
    for job in by_id.values():
        if job.family is not None:
            check_family(job, job.family, children.get(job.id, []))


def check_family(job: JobRecord, family: Family, children: list[JobRecord]) -> None:
    failed = [child for child in children if child.state is JobState.FAILED]
    excused = [child for child in failed if child.bonds is not None and child.bonds.optional]
    assert family.open == sum(not child.state.is_terminal for child in children), job
    assert not (job.state.is_terminal and family.open), job
    assert family.total >= len(children), job
    if not job.state.is_terminal:  # of one that is over, children may have been deleted
        assert (family.failed, family.excused) == (len(failed) - len(excused), len(excused)), job
        assert family.cancelled == sum(child.state is JobState.CANCELLED for child in children), job
    if job.state is JobState.COMPLETED:
        assert not fails_parent(job.bonds or NO_BONDS, family), job


def counted(jobs: Iterable[JobRecord]) -> dict[str, Counts]:
    """The numbers that `count` should give for these records."""
    by_queue: dict[str, Counter[str]] = {}
    for job in jobs:
        by_queue.setdefault(job.queue, Counter())[job.state.value] += 1
    return {queue: Counts(**numbers) for queue, numbers in by_queue.items()}
