"""What the hot verbs cost, counted and not timed: statements, and steps of SQLite's machine."""

from contextlib import contextmanager
from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Claim, Query, Settled
from taskharbor.model.bonds import Bonds
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState
from tests.integration.sqlite.stores import driver_on, new_job, writing

HOUR = timedelta(hours=1)
CLAIM = Claim(queues=("default", "reports"), worker_id="worker-1", limit=100, lease_for=HOUR)


@pytest.fixture
async def driver(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        yield driver


@contextmanager
def statements(driver):
    """What is executed while it is open."""
    seen: list[str] = []
    writing(driver).set_trace_callback(seen.append)
    try:
        yield seen
    finally:
        writing(driver).set_trace_callback(None)


@contextmanager
def work(driver):
    """How many hundreds of machine steps SQLite takes while it is open."""
    seen: list[None] = []
    writing(driver).set_progress_handler(lambda: seen.append(None), 100)
    try:
        yield seen
    finally:
        writing(driver).set_progress_handler(None, 100)


async def one_cycle(driver, size):
    """The statements of each hot verb over one batch of this size, half of it in each of two queues."""
    jobs = [new_job(queue=queue) for queue in ("default", "reports") for _ in range(size // 2)]
    claim = Claim(queues=CLAIM.queues, worker_id="worker-1", limit=size, lease_for=HOUR)
    counts = {}
    with statements(driver) as seen:
        await driver.enqueue(jobs)
    counts["enqueue"] = len(seen)
    with statements(driver) as seen:
        taken = (await driver.reserve(claim)).jobs
    counts["reserve"] = len(seen)
    with statements(driver) as seen:
        await driver.extend_leases([job.lease for job in taken], HOUR)
    counts["extend"] = len(seen)
    with statements(driver) as seen:
        answers = await driver.settle([Ack(job.lease) for job in taken])
    counts["settle"] = len(seen)
    assert len(answers) == size
    assert all(isinstance(answer, Settled) for answer in answers)
    return counts


@pytest.mark.parametrize("retention", [Retention(), Retention(completed=timedelta(0))])
async def test_the_number_of_statements_does_not_grow_with_the_batch(driver, retention):
    await driver.configure_queue(QueueSettings(queue="*", retention=retention))
    await one_cycle(driver, 20)  # what is only asked once is asked now

    small, large = await one_cycle(driver, 20), await one_cycle(driver, 200)

    assert large == small


async def test_one_job_that_needs_a_closer_look_does_not_slow_its_neighbours_down(driver):
    await driver.enqueue([new_job() for _ in range(99)] + [new_job(key=b"k")])
    taken = (await driver.reserve(CLAIM)).jobs

    with statements(driver) as seen:
        answers = await driver.settle([Ack(job.lease) for job in taken])

    assert all(isinstance(answer, Settled) for answer in answers)
    assert len(seen) < 60


async def test_a_retry_reads_no_body_and_takes_no_statement_of_its_own(driver):
    async def one_retry(size):
        await driver.enqueue([new_job() for _ in range(size)])
        claim = Claim(queues=("default",), worker_id="worker-1", limit=size, lease_for=HOUR)
        taken = (await driver.reserve(claim)).jobs
        with statements(driver) as seen:
            await driver.settle([Retry(job.lease, HOUR, "ValueError: broken") for job in taken])
            later = driver.clock.now() + 2 * HOUR
            again = (await driver.reserve(claim, now=later)).jobs
            answers = await driver.settle([Ack(job.lease) for job in again], now=later)
        assert [answer.state for answer in answers] == [JobState.COMPLETED] * size
        assert ["th_job " in text and "payload" in text for text in seen].count(True) == 1  # the pick
        return len(seen)

    await one_retry(20)  # what is only asked once is asked now

    assert await one_retry(200) == await one_retry(20)


@pytest.mark.parametrize("end", [Ack, lambda lease: Retry(lease, HOUR, "broken")])
async def test_a_copy_that_outlived_a_stall_ends_with_the_next_run(driver, end):
    """The flags of that run say nothing about the copy."""
    start = driver.clock.now()
    await driver.enqueue([job := new_job()], now=start)
    await driver.reserve(CLAIM, now=start)
    copy = await driver.speculate(job.id, head_start=HeadStart(slower=(), span=3 * HOUR), now=start)
    later = start + 2 * HOUR
    [again] = (await driver.reserve(CLAIM, now=later)).jobs
    assert (again.id, again.stalls) == (job.id, 1)

    await driver.settle([end(again.lease)], now=later)

    [dropped] = await driver.get([copy.copy_id], now=later)
    assert dropped.state is JobState.CANCELLED


async def test_a_job_that_becomes_a_parent_while_it_runs_does_not_slow_its_neighbours_down(driver):
    jobs = [new_job() for _ in range(100)]
    await driver.enqueue(jobs)
    taken = (await driver.reserve(CLAIM)).jobs
    await driver.enqueue([new_job(delay=HOUR, bonds=Bonds(parent=jobs[50].id))], by=taken[50].lease)

    with statements(driver) as seen:
        answers = await driver.settle([Ack(job.lease) for job in taken])

    states = [answer.state for answer in answers if isinstance(answer, Settled)]
    assert states == [JobState.COMPLETED] * 50 + [JobState.BLOCKED] + [JobState.COMPLETED] * 49
    assert len(seen) < 60


async def test_children_are_handed_out_and_counted_by_sets(driver):
    async def one_family(size):
        root = new_job(bonds=Bonds(done_by="children"))
        await driver.enqueue([root, *(new_job(bonds=Bonds(parent=root.id)) for _ in range(size))])
        claim = Claim(queues=("default",), worker_id="worker-1", limit=size, lease_for=HOUR)
        with statements(driver) as seen:
            taken = (await driver.reserve(claim)).jobs
            await driver.settle([Ack(job.lease) for job in taken])
        [over] = await driver.get([root.id])
        assert over is not None
        assert (len(taken), over.state) == (size, JobState.COMPLETED)
        return len(seen)

    await one_family(10)  # what is only asked once is asked now

    assert await one_family(20) == await one_family(200)


async def test_a_link_of_a_chain_costs_few_statements_more_than_a_plain_job(driver):
    """Its ack is one by sets, and releases the next one without reading either of them."""
    claim = Claim(queues=("default",), worker_id="worker-1", limit=1, lease_for=HOUR)

    async def third_exchange(jobs):
        await driver.enqueue(jobs)
        [job] = (await driver.reserve(claim)).jobs
        for _ in range(2):
            [job] = (await driver.exchange([Ack(job.lease)], claim)).claimed
        with statements(driver) as seen:
            [job] = (await driver.exchange([Ack(job.lease, result=b"1")], claim)).claimed
        await driver.exchange([Ack(job.lease)], claim)
        return len(seen)

    root = new_job(bonds=Bonds(done_by="children"))
    links = [new_job(bonds=Bonds(parent=root.id))]
    while len(links) < 4:
        links.append(new_job(bonds=Bonds(parent=root.id, after=(links[-1].id,))))

    plain = await third_exchange([new_job() for _ in range(4)])
    assert await third_exchange([root, *links]) <= plain + 8
    assert [job.state for job in await driver.get([root.id])] == [JobState.COMPLETED]


async def test_what_cannot_run_costs_a_claim_nothing(driver):
    async def exchange():
        await driver.enqueue([new_job() for _ in range(300)])
        first = (await driver.reserve(CLAIM)).jobs
        with work(driver) as steps:
            done = await driver.exchange([Ack(job.lease) for job in first], CLAIM)
        assert len(done.claimed) == 100
        await driver.settle([Ack(job.lease) for job in done.claimed])
        await driver.reserve(CLAIM)
        return len(steps)

    await driver.configure_queue(QueueSettings(queue="limited", execute_rate=RateLimit(1, HOUR)))
    await driver.configure_queue(QueueSettings(queue="paused", paused=True))
    alone = await exchange()
    await driver.enqueue([new_job(delay=HOUR) for _ in range(5000)])
    await driver.enqueue([new_job(queue="paused") for _ in range(5000)])
    await driver.enqueue([new_job(queue="limited") for _ in range(5000)])
    await driver.enqueue([new_job(queue="keyed", key=b"%d" % number) for number in range(500)])
    await driver.reserve(Claim(queues=("keyed",), worker_id="worker-2", limit=500, lease_for=HOUR))
    await driver.enqueue([new_job(queue="keyed", key=b"%d" % number) for number in range(500)])
    await driver.enqueue([new_job(requires="gpu") for _ in range(5000)])

    crowded = await exchange()

    assert crowded <= 1.5 * alone


async def test_what_is_finished_costs_a_claim_nothing(driver):
    claim = Claim(queues=("default",), worker_id="worker-1", limit=1000, lease_for=HOUR)
    costs = []
    for _ in range(4):
        for _ in range(3):
            await driver.enqueue([new_job() for _ in range(1000)])
            taken = (await driver.reserve(claim)).jobs
            await driver.settle([Ack(job.lease) for job in taken])
        await driver.enqueue([new_job() for _ in range(1000)])
        with work(driver) as steps:
            taken = (await driver.reserve(claim)).jobs
        costs.append(len(steps))
        await driver.settle([Ack(job.lease) for job in taken])

    assert max(costs) <= 1.5 * costs[0]


async def test_a_listing_finds_the_few_among_the_many(driver):
    """One page, though thousands of other jobs lie before them."""
    await driver.enqueue([new_job(queue="other") for _ in range(3000)])
    await driver.enqueue([new_job(delay=HOUR) for _ in range(3000)])
    few = [new_job(priority=5) for _ in range(3)]
    await driver.enqueue(few)

    page = await driver.find(Query(queue="default", states=(JobState.READY,), limit=10))

    assert [job.id for job in page.jobs] == [job.id for job in few]
    assert page.next_cursor is None


@pytest.mark.parametrize("others", [2_000, 8_000])
async def test_jobs_of_other_types_cost_a_claim_nothing(driver, others):
    """One by one, so that no two of them are one row of the line."""
    mine = Claim(queues=("default",), worker_id="worker-1", limit=10, lease_for=HOUR, types=("a", "b", "c"))
    for start in range(0, others, 1000):
        await driver.enqueue(
            [new_job(type=f"other{place % 7}", priority=place % 3) for place in range(start, start + 1000)]
        )
    await driver.enqueue([new_job(type="ab"[place % 2]) for place in range(10)])

    with work(driver) as seen:
        taken = (await driver.reserve(mine)).jobs
    assert [job.type for job in taken] == ["a", "b"] * 5
    with work(driver) as seen_for_nothing:
        assert (await driver.reserve(mine)).jobs == []

    assert len(seen) < 100, len(seen)  # 8,000 rows that are walked over make more than a thousand
    assert len(seen_for_nothing) < 60, len(seen_for_nothing)


async def test_types_cost_little_where_a_worker_knows_them_all(driver):
    await driver.enqueue([new_job(type="ab"[place % 2]) for place in range(400)])
    all_types = Claim(queues=("default",), worker_id="worker-1", limit=100, lease_for=HOUR)
    both = Claim(queues=("default",), worker_id="worker-1", limit=100, lease_for=HOUR, types=("a", "b"))

    with work(driver) as without:
        assert len((await driver.reserve(all_types)).jobs) == 100
    with work(driver) as with_types:
        assert len((await driver.reserve(both)).jobs) == 100

    assert len(with_types) <= 2 * len(without), (len(without), len(with_types))


def many(count):
    return Claim(
        queues=tuple(f"queue-{number}" for number in range(count)),
        worker_id="worker-1",
        limit=10,
        lease_for=HOUR,
    )


async def work_of_a_claim(driver, claim, *, brings):
    with statements(driver) as executed, work(driver) as steps:
        taken = (await driver.reserve(claim)).jobs
    assert len(taken) == brings
    await driver.settle([Ack(job.lease) for job in taken])
    return len(executed), len(steps)


async def test_queues_in_which_nothing_is_cost_a_claim_nothing(driver):
    """One job in ten or in 2,000 queues; then none."""
    found = {}
    for count in (9, 10, 2_000):  # the first claims ask what is only asked once
        await driver.enqueue([new_job(queue="queue-7")])
        with_a_job = await work_of_a_claim(driver, many(count), brings=1)
        found[count] = (with_a_job, await work_of_a_claim(driver, many(count), brings=0))

    assert found[10][0][0] == found[2_000][0][0]
    assert found[10][1][0] == found[2_000][1][0] <= 8
    assert (
        found[2_000][0][1] <= found[10][0][1] + 2
    )  # hundreds of SQLite's steps; a look at 2,000 queues takes 200
    assert found[2_000][1][1] <= found[10][1][1] + 2


async def test_many_busy_queues_of_others_cost_a_claim_a_look_at_its_own(driver):
    await driver.enqueue([new_job(queue=f"other-{number}") for number in range(1_000)])
    await driver.enqueue([new_job(queue="queue-7")])

    executed, _ = await work_of_a_claim(driver, many(10), brings=1)
    for_nothing, _ = await work_of_a_claim(driver, many(10), brings=0)

    assert executed <= 25
    assert for_nothing <= 9
