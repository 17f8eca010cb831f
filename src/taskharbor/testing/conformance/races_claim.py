"""Races of claims: many claim, few win, and no job is granted twice or lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain
from threading import Lock

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, EnqueueResult, ReclaimResult
from taskharbor.errors import RateLimited
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    START,
    enqueue_one,
    find_all,
    found_ids,
    get_one,
    new_job,
    new_jobs,
    reserve,
)
from taskharbor.testing.conformance.parallel import Racer, in_threads

THREADS = 6
ROUNDS = 12


class HeldClaim:
    """How many leases are out as their owners see it: up after a claim, down before the settlement."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: Counter[object] = Counter()
        self.most: Counter[object] = Counter()

    def take(self, what: object) -> None:
        with self._lock:
            self._now[what] += 1
            self.most[what] = max(self.most[what], self._now[what])

    def give_back(self, what: object) -> None:
        with self._lock:
            self._now[what] -= 1


async def hold_a_while(driver: Driver, held: HeldClaim, jobs: list[JobRecord]) -> int:
    """Work through one claim: every job is held across a call to the store, then acked."""
    for job in jobs:
        held.take(job.key)
    for job in jobs:
        await driver.extend_leases([job.lease], LEASE, now=START)
        held.give_back(job.key)
        await driver.settle([Ack(job.lease)], now=START)
    return len(jobs)


async def test_of_many_claims_for_one_job_one_wins(driver: Driver) -> None:
    """P01: round after round, from threads that start together."""
    await driver.enqueue([new_job(queue=f"round-{number}") for number in range(ROUNDS)], now=START)

    async def race(racer: Racer) -> list[str | None]:
        won: list[str | None] = []
        for number in range(ROUNDS):
            racer.meet()
            taken = await reserve(racer.driver, queues=(f"round-{number}",), worker_id=f"w{racer.number}")
            won.append(taken[0].token if taken else None)
        return won

    answers = await in_threads(driver, THREADS, race)

    for tokens in zip(*answers, strict=True):
        assert len([token for token in tokens if token is not None]) == 1


async def test_a_hundred_jobs_are_shared_out_without_a_double_or_a_loss(driver: Driver) -> None:
    """P02 P05 R000-41: batches of three, never more, and every job once."""
    jobs = new_jobs(100)
    await driver.enqueue(jobs, now=START)

    async def work(racer: Racer) -> list[str]:
        mine: list[str] = []
        while taken := await reserve(racer.driver, limit=3, worker_id=f"w{racer.number}"):
            assert len(taken) <= 3
            mine += [job.id for job in taken]
        return mine

    shares = await in_threads(driver, THREADS, work)

    assert sorted([*chain(*shares)]) == sorted(job.id for job in jobs)


async def test_tasks_of_one_loop_over_several_handles_share_out_alike(driver: Driver) -> None:
    """P02: 32 tasks over four handles, settling and claiming in one call."""
    await driver.enqueue(new_jobs(100), now=START)
    handles = [await driver.another().open() for _ in range(4)]

    async def work(number: int) -> list[str]:
        mine: list[str] = []
        handle = handles[number % 4]
        while taken := await reserve(handle, limit=2, worker_id=f"w{number}"):
            answers = await handle.settle([Ack(job.lease) for job in taken], now=START)
            assert not any(isinstance(answer, Exception) for answer in answers)
            mine += [job.id for job in taken]
        return mine

    shares = await asyncio.gather(*(work(number) for number in range(32)))
    for handle in handles:
        await handle.close()

    done = [*chain(*shares)]
    assert len(set(done)) == len(done) == 100
    assert await driver.count(now=START) == {QUEUE: Counts(completed=100)}


async def test_claims_and_sweeps_of_one_expired_job_count_one_stall(driver: Driver) -> None:
    """P03 R002-13: it ends running under one lease, whichever worker reclaimed it."""
    await driver.enqueue([new_job(queue=f"round-{number}") for number in range(ROUNDS)], now=START)
    for number in range(ROUNDS):
        await reserve(driver, queues=(f"round-{number}",))
    then = START + LEASE

    async def race(racer: Racer) -> list[JobRecord]:
        taken: list[JobRecord] = []
        for number in range(ROUNDS):
            racer.meet()
            if racer.number % 2:
                await racer.driver.reclaim(1, now=then)
            else:
                taken += await reserve(racer.driver, now=then, queues=(f"round-{number}",))
        return taken

    won = [*chain(*await in_threads(driver, THREADS, race))]
    await reserve(driver, now=then, queues=[f"round-{number}" for number in range(ROUNDS)], limit=ROUNDS)

    assert len({job.id for job in won}) == len(won)
    for job in await find_all(driver, now=then):
        assert (job.state, job.stalls, job.starts) == (JobState.RUNNING, 1, 2)


async def test_many_sweepers_handle_every_expiry_once(driver: Driver) -> None:
    """G17 R004-37: each is reported by one of them, and counted once."""
    await driver.enqueue(new_jobs(60), now=START)
    await reserve(driver, limit=60)

    async def sweep(racer: Racer) -> list[str]:
        mine: list[str] = []
        while answers := await racer.driver.reclaim(7, now=START + LEASE):
            assert {answer.result for answer in answers} == {ReclaimResult.REQUEUED}
            mine += [answer.id for answer in answers]
        return mine

    swept = [*chain(*await in_threads(driver, THREADS, sweep))]

    assert len(swept) == len(set(swept)) == 60
    assert {job.stalls for job in await find_all(driver, now=START + LEASE)} == {1}


async def test_a_limit_is_never_exceeded_by_claims_at_once(driver: Driver) -> None:
    """P11 W01 R002-16: nothing is settled, so exactly the limit is out."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=3), now=START)
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, max_running=4), now=START)
    await driver.enqueue([*new_jobs(20), *new_jobs(20, queue="other")], now=START)

    async def work(racer: Racer) -> list[str]:
        mine: list[str] = []
        for _ in range(5):
            mine += [job.queue for job in await reserve(racer.driver, limit=2)]
            mine += [job.queue for job in await reserve(racer.driver, limit=2, queues=("other",))]
        return mine

    taken = Counter([*chain(*await in_threads(driver, THREADS, work))])

    assert taken[QUEUE] <= 3
    assert taken.total() == 4


async def test_a_limit_holds_while_leases_come_and_go(driver: Driver) -> None:
    """P11 I7: as the owners themselves see it."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=3), now=START)
    await driver.enqueue(new_jobs(90), now=START)
    held = HeldClaim()

    async def work(racer: Racer) -> int:
        done = 0
        for _ in range(200):
            done += await hold_a_while(racer.driver, held, await reserve(racer.driver, limit=2))
            if done >= 10 and racer.number:
                break
        return done

    done = await in_threads(driver, THREADS, work)

    assert held.most[None] <= 3
    assert (await driver.count(now=START))[QUEUE].completed == sum(done)


async def test_a_key_never_runs_twice_at_once(driver: Driver) -> None:
    """P12 I6: all enqueue the same three keys and work on whatever they get."""
    held = HeldClaim()

    async def work(racer: Racer) -> int:
        done = 0
        for number in range(25):
            key = b"key-%d" % (number % 3)
            await enqueue_one(racer.driver, key=key, id=ids[racer.number][number])
            done += await hold_a_while(racer.driver, held, await reserve(racer.driver, limit=2))
        return done

    ids = [[job.id for job in new_jobs(25)] for _ in range(THREADS)]
    done = await in_threads(driver, THREADS, work)

    assert held.most.total() == 3
    assert set(held.most.values()) == {1}
    completed = (await driver.count(now=START))[QUEUE].completed
    assert completed == sum(done)


async def test_an_id_enqueued_by_many_is_stored_once(driver: Driver) -> None:
    """P09 M07: one created, all the others duplicates of it."""
    jobs = new_jobs(ROUNDS)

    async def send(racer: Racer) -> list[EnqueueResult]:
        answers = []
        for job in jobs:
            racer.meet()
            answers += await racer.driver.enqueue([job], now=START)
        return [answer.result for answer in answers]

    results = await in_threads(driver, THREADS, send)

    for of_one_job in zip(*results, strict=True):
        assert Counter(of_one_job) == {EnqueueResult.CREATED: 1, EnqueueResult.DUPLICATE: THREADS - 1}
    assert await found_ids(driver) == [job.id for job in jobs]


async def test_an_idempotency_key_sent_by_many_makes_one_job(driver: Driver) -> None:
    """M11: 16 at once, and all get the same id."""
    jobs = [new_jobs(16, idempotency_key=b"%d" % number) for number in range(3)]

    async def send(racer: Racer) -> list[str]:
        answers = []
        for number in range(3):
            racer.meet()
            answers += [
                answer.id for answer in await racer.driver.enqueue([jobs[number][racer.number]], now=START)
            ]
        return answers

    answers = await in_threads(driver, 16, send)

    assert len(await found_ids(driver)) == 3
    assert {tuple(ids) for ids in answers} == {tuple(await found_ids(driver))}


async def test_an_enqueue_budget_shared_by_many_is_spent_exactly(driver: Driver) -> None:
    """W12: 30 try, 10 get in."""
    await driver.configure_queue(
        QueueSettings(queue=QUEUE, enqueue_rate=RateLimit(10, MINUTE), execute_rate=RateLimit(4, MINUTE)),
        now=START,
    )
    jobs = [new_jobs(5) for _ in range(THREADS)]

    async def send(racer: Racer) -> int:
        entered = 0
        for job in jobs[racer.number]:
            try:
                await racer.driver.enqueue([job], now=START)
                entered += 1
            except RateLimited:
                pass
        return entered

    async def take(racer: Racer) -> int:
        return sum([len(await reserve(racer.driver)) for _ in range(3)])

    assert sum(await in_threads(driver, THREADS, send)) == 10
    assert sum(await in_threads(driver, THREADS, take)) == 4


async def test_nothing_is_skipped_while_jobs_keep_coming(driver: Driver) -> None:
    """P14 P17: priorities are inserted before, between and behind what is being claimed."""
    batches = [[new_jobs(4, priority=(n * 7 + m) % 21 - 10) for n in range(8)] for m in range(THREADS // 2)]
    left = [[*chain(*batch)] for batch in batches]
    wanted = {job.id for jobs in left for job in jobs}

    async def live(racer: Racer) -> list[str]:
        if racer.number < len(batches):
            return await produce(racer, batches[racer.number])
        return await consume(racer)

    async def produce(racer: Racer, calls: list[list[NewJob]]) -> list[str]:
        for jobs in calls:
            await racer.driver.enqueue(jobs, now=START)
        return []

    async def consume(racer: Racer) -> list[str]:
        mine: list[str] = []
        for _ in range(40):
            taken = await reserve(racer.driver, limit=3, lease_for=HOUR)
            await racer.driver.settle([Ack(job.lease) for job in taken], now=START)
            mine += [job.id for job in taken]
        return mine

    done = [*chain(*await in_threads(driver, THREADS, live))]
    rest = [job.id for job in await reserve(driver, limit=1000)]

    assert len(done + rest) == len(wanted)
    assert set(done + rest) == wanted


async def test_a_role_asked_for_by_many_has_one_holder(driver: Driver) -> None:
    """C65: in every round, and all get the same name and term."""

    async def ask(racer: Racer) -> list[tuple[str, int, bool]]:
        answers = []
        for number in range(ROUNDS):
            racer.meet()
            lease = await racer.driver.hold_role(
                "leader", f"w{racer.number}", LEASE, now=START + number * LEASE
            )
            answers.append((lease.holder, lease.term, lease.is_mine))
        return answers

    answers = await in_threads(driver, THREADS, ask)

    terms = []
    for of_one_round in zip(*answers, strict=True):
        [(_, term)] = {(holder, term) for holder, term, _ in of_one_round}
        assert [is_mine for *_, is_mine in of_one_round].count(True) == 1
        terms.append(term)
    assert terms == sorted(set(terms))


async def test_many_copies_wanted_is_one_copy_made(driver: Driver) -> None:
    """R003-38: however many leaders look at the same straggler."""
    await driver.enqueue(new_jobs(ROUNDS), now=START)
    jobs = await reserve(driver, limit=ROUNDS, lease_for=HOUR)

    async def ask(racer: Racer) -> list[bool]:
        made = []
        for job in jobs:
            racer.meet()
            made.append(not isinstance(await racer.driver.speculate(job.id, now=START), Exception))
        return made

    answers = await in_threads(driver, THREADS, ask)

    assert [sum(of_one) for of_one in zip(*answers, strict=True)] == [1] * ROUNDS
    assert len(await reserve(driver, worker_id="worker-z", limit=100)) == ROUNDS
    assert (await get_one(driver, jobs[0].id)).state is JobState.RUNNING
