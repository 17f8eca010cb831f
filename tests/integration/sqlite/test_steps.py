"""Steps that touch several jobs at once, where one of them changes what the next one finds."""

import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Claim, Extended, Speculated
from taskharbor.errors import InvalidArgument, JobNotInflight
from taskharbor.model.job import Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.model.state import JobState
from tests.integration.sqlite.stores import NOW, claim, driver_on, is_sound, new_job

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def driver(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        yield driver
    assert is_sound(tmp_path / "jobs.db")


async def test_a_copy_that_expires_with_its_failing_original_ends_once(driver):
    await driver.enqueue([new_job(max_stalls=1)], now=NOW)
    [original] = (await driver.reserve(claim(1), now=NOW)).jobs
    speculated = await driver.speculate(original.id, now=NOW)
    other = Claim(queues=("default",), worker_id="worker-2", lease_for=timedelta(seconds=30))
    [copy] = (await driver.reserve(other, now=NOW)).jobs
    assert isinstance(speculated, Speculated)
    assert copy.id == speculated.copy_id

    answers = await driver.reclaim(now=NOW + MINUTE)

    assert [(answer.id, answer.result) for answer in answers] == [(original.id, "failed")]
    [ended, dropped] = await driver.get([original.id, copy.id], now=NOW + MINUTE)
    assert ended is not None
    assert dropped is not None
    assert (ended.state, dropped.state) == (JobState.FAILED, JobState.CANCELLED)
    assert dropped.version == copy.version + 1


async def test_what_can_never_pass_a_rate_comes_before_what_cannot_pass_now(driver):
    await driver.configure_queue(QueueSettings(queue="default", enqueue_rate=RateLimit(3, MINUTE)), now=NOW)
    await driver.configure_queue(QueueSettings(queue="*", enqueue_rate=RateLimit(2, MINUTE)), now=NOW)
    await driver.enqueue([new_job()], now=NOW)

    with pytest.raises(InvalidArgument, match="never pass"):
        await driver.enqueue([new_job() for _ in range(3)], now=NOW)


async def test_a_job_taken_out_of_the_middle_of_a_line_leaves_its_neighbours_in_order(driver):
    jobs = [new_job() for _ in range(9)]
    await driver.enqueue(jobs, now=NOW)
    gone = [jobs[0].id, jobs[4].id, jobs[5].id, jobs[8].id]

    await driver.cancel(gone, now=NOW)
    first = (await driver.reserve(claim(2), now=NOW)).jobs
    rest = (await driver.reserve(claim(9), now=NOW)).jobs

    assert [job.id for job in first + rest] == [job.id for job in jobs if job.id not in gone]


async def states_of(driver, jobs, now=NOW):
    return [None if job is None else job.state for job in await driver.get([job.id for job in jobs], now=now)]


async def test_a_key_is_free_after_an_ack_beside_that_of_a_cancelled_job(driver):
    """A cancel gives a running job a claim of its own, with the token of its neighbours."""
    jobs = [new_job(), new_job(key=b"key")]
    await driver.enqueue(jobs, now=NOW)
    leases = [job.lease for job in (await driver.reserve(claim(2), now=NOW)).jobs]
    await driver.cancel([jobs[0].id], now=NOW)
    await driver.settle([Ack(lease) for lease in leases], now=NOW)

    [answer] = await driver.enqueue([new_job(key=b"key")], now=NOW)

    assert answer.result == "created"
    assert await states_of(driver, jobs) == [JobState.CANCELLED, JobState.COMPLETED]


async def test_what_happens_to_one_job_of_a_claim_leaves_the_others_running(driver):
    jobs = [new_job() for _ in range(9)]
    await driver.enqueue(jobs, now=NOW)
    leases = [job.lease for job in (await driver.reserve(claim(9), now=NOW)).jobs]

    await driver.cancel([jobs[4].id], now=NOW)
    progress = {jobs[1].id: Progress(0.5)}
    answers = await driver.extend_leases(leases[1:4] + leases[6:7], 2 * MINUTE, progress=progress, now=NOW)
    await driver.settle([Retry(leases[0], MINUTE, "again"), Ack(leases[2]), Fail(leases[8], "bad")], now=NOW)

    assert all(isinstance(answer, Extended) for answer in answers)
    running, failed = JobState.RUNNING, JobState.FAILED
    scheduled, completed = JobState.SCHEDULED, JobState.COMPLETED
    assert await states_of(driver, jobs) == [
        scheduled, running, completed, running, running, running, running, running, failed
    ]  # fmt: skip
    reclaimed = await driver.reclaim(now=NOW + MINUTE)
    assert {answer.id for answer in reclaimed} == {jobs[4].id, jobs[5].id, jobs[7].id}
    settled = await driver.settle([Ack(leases[1]), Ack(leases[3]), Ack(leases[6])], now=NOW + MINUTE)
    assert [answer.version for answer in settled] == [4, 4, 4]


async def test_jobs_that_ended_together_live_again_and_are_forgotten_one_by_one(driver):
    jobs = [new_job() for _ in range(9)]
    await driver.enqueue(jobs, now=NOW)
    taken = (await driver.reserve(claim(9), now=NOW)).jobs
    await driver.settle([Ack(job.lease, b"%d" % job.seq) for job in taken], now=NOW)

    await driver.requeue([jobs[4].id], now=NOW)
    await driver.delete([jobs[0].id, jobs[7].id], now=NOW)
    pruned = await driver.prune(2, now=NOW + timedelta(days=1))

    found = await driver.get([job.id for job in jobs], now=NOW)
    assert pruned == 2
    assert [job and (job.state, job.result) for job in found] == [
        None, None, None, ("completed", b"4"), ("ready", None),
        ("completed", b"6"), ("completed", b"7"), None, ("completed", b"9"),
    ]  # fmt: skip
    assert (await driver.count(["default"], now=NOW))["default"].completed == 4


async def test_a_settlement_of_every_second_job_of_a_claim_keeps_the_others(driver):
    jobs = [new_job() for _ in range(10)]
    await driver.enqueue(jobs, now=NOW)
    taken = (await driver.reserve(claim(10), now=NOW)).jobs

    await driver.settle([Ack(job.lease) for job in taken[::2]], now=NOW)
    again = await driver.settle([Ack(job.lease) for job in taken], now=NOW)

    assert [isinstance(answer, JobNotInflight) for answer in again] == [True, False] * 5
    assert await states_of(driver, jobs) == [JobState.COMPLETED] * 10


async def test_jobs_claimed_together_have_their_options_and_headers_of_their_own(driver):
    jobs = [new_job(headers={"trace": "1"}, max_stalls=3, payload=b"%d" % n) for n in range(12)]
    await driver.enqueue(jobs, now=NOW)

    taken = (await driver.reserve(claim(10), now=NOW)).jobs
    taken[0].headers["trace"] = "changed"

    assert [(job.id, job.payload) for job in taken] == [(job.id, job.payload) for job in jobs[:10]]
    assert {(job.max_stalls, job.headers["trace"]) for job in taken[1:]} == {(3, "1")}
    stored = await driver.get([job.id for job in jobs[:10]], now=NOW)
    assert [job and job.version for job in stored] == [job.version for job in taken]


async def test_the_seq_of_a_deleted_job_is_not_issued_again(driver):
    jobs = [new_job() for _ in range(3)]
    await driver.enqueue(jobs, now=NOW)
    [*_, newest] = (await driver.reserve(claim(3), now=NOW)).jobs
    await driver.settle([Ack(newest.lease)], now=NOW)
    await driver.delete([newest.id], now=NOW)

    again = new_job()
    await driver.enqueue([again], now=NOW)

    [record] = await driver.get([again.id], now=NOW)
    assert record is not None
    assert record.seq > newest.seq


@pytest.mark.parametrize("types", [2, 101, 1000])
async def test_jobs_of_many_types_are_claimed_in_one_order(driver, types):
    jobs = [new_job(type=f"t{place % types}", priority=place * 7 % 3) for place in range(2 * types)]
    await driver.enqueue(jobs, now=NOW)
    expected = [job.id for job in sorted(jobs, key=lambda job: -job.priority)]

    first = (await driver.reserve(claim(types // 2), now=NOW)).jobs
    rest = (await driver.reserve(claim(1000), now=NOW)).jobs + (
        await driver.reserve(claim(1000), now=NOW)
    ).jobs

    assert [job.id for job in first + rest] == expected


async def test_a_job_blocked_behind_a_lost_one_goes_on(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        await driver.enqueue([new_job(key=b"k")], now=NOW)
        [lost] = (await driver.reserve(claim(), now=NOW)).jobs
        [blocked] = await driver.enqueue([new_job(key=b"k")], now=NOW)
        assert blocked.result == "blocked"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("delete from th_job where id = ?", (lost.id,))

        assert await driver.reclaim(now=NOW + MINUTE) == []
        [job] = (await driver.reserve(claim(), now=NOW + MINUTE)).jobs

        assert job.id == blocked.id
        [again] = await driver.enqueue([new_job(key=b"k")], now=NOW + MINUTE)
        assert again.result == "blocked"
    assert is_sound(path)


async def test_ends_of_one_instant_under_several_claims_keep_their_own_leases(driver):
    await driver.enqueue(
        [new_job(queue=queue) for queue in ("default", "reports") for _ in range(3)], now=NOW
    )
    both = Claim(queues=("default", "reports"), worker_id="worker-1", limit=6, lease_for=MINUTE)
    taken = (await driver.reserve(both, now=NOW)).jobs
    await driver.extend_leases([taken[0].lease, taken[4].lease], 2 * MINUTE, now=NOW)

    answers = await driver.settle([Ack(job.lease, b"%d" % job.seq) for job in taken], now=NOW)

    assert [answer.version for answer in answers] == [4, 3, 3, 3, 4, 3]
    found = await driver.get([job.id for job in taken], now=NOW)
    assert [job and (job.result, job.version, job.settled_token, job.fence) for job in found] == [
        (b"%d" % job.seq, answer.version, job.token, job.fence)
        for job, answer in zip(taken, answers, strict=True)
    ]


async def test_a_job_that_ran_again_is_pruned_by_its_last_end(driver):
    day = Retention(completed=timedelta(days=1))
    await driver.configure_queue(QueueSettings(queue="default", retention=day), now=NOW)
    jobs = [new_job() for _ in range(3)]
    await driver.enqueue(jobs, now=NOW)
    await driver.settle([Ack(job.lease) for job in (await driver.reserve(claim(3), now=NOW)).jobs], now=NOW)
    await driver.requeue([jobs[1].id], now=NOW)
    later = NOW + timedelta(hours=1)
    [again] = (await driver.reserve(claim(3), now=later)).jobs
    await driver.settle([Ack(again.lease)], now=later)

    assert await driver.prune(now=NOW + timedelta(days=1)) == 2
    assert await states_of(driver, jobs, now=later) == [None, JobState.COMPLETED, None]
    assert await driver.prune(now=later + timedelta(days=1)) == 1
    assert (await driver.count(["default"], now=later))["default"].total == 0


async def test_a_second_claim_of_a_completed_job_leaves_the_first_ones_batch(driver):
    """What a first-try success keeps in its batch is not lost with its neighbours."""
    jobs = [new_job() for _ in range(3)]
    await driver.enqueue(jobs, now=NOW)
    taken = (await driver.reserve(claim(3), now=NOW)).jobs
    await driver.settle([Ack(job.lease) for job in taken], now=NOW)
    await driver.delete([jobs[0].id, jobs[2].id], now=NOW)

    [kept] = await driver.get([jobs[1].id], now=NOW)

    assert kept is not None
    assert (kept.settled_token, kept.fence, kept.started_at) == (taken[1].token, taken[1].fence, NOW)
