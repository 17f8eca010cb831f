"""Why a job is not running: one true reason for every situation."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.client.why import Reason, Situation, look_into, why
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim, Counts, Page, Query, QueueInfo
from taskharbor.errors import JobNotFound
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import AttemptRecord, JobRecord, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def job(state: JobState = JobState.READY, **fields: Any) -> JobRecord:
    defaults: dict[str, Any] = {
        "created_at": NOW - MINUTE,
        "updated_at": NOW - MINUTE,
        "type": "render",
        "queue": "media",
    }
    return JobRecord(
        id="01a1de6c-6ff6-738c-9f3a-6aa1afc95af6", seq=5, state=state, payload=b"", **{**defaults, **fields}
    )


def worker(**fields: Any) -> WorkerInfo:
    values: dict[str, Any] = {
        "worker_id": "w-1",
        "queues": ("media",),
        "lanes": ("any",),
        "concurrency": 2,
        **fields,
    }
    return WorkerInfo(report=WorkerReport(**values), seen_at=NOW, expires_at=NOW + MINUTE)


def queue(running: int = 0, **rules: Any) -> QueueInfo:
    return QueueInfo(queue="media", rules=QueueRules(**rules), counts=Counts(ready=1, running=running))


def reason(record: JobRecord, **around: Any) -> Reason:
    around.setdefault("workers", [worker()])
    return why(Situation(job=record, now=NOW, **around)).reason


def test_a_scheduled_job_waits_for_its_time() -> None:
    answer = why(Situation(job=job(JobState.SCHEDULED, run_at=NOW + 5 * MINUTE), now=NOW))

    assert (answer.reason, answer.until) == (Reason.SCHEDULED, NOW + 5 * MINUTE)
    assert "due in 5m" in answer.text


def test_a_scheduled_retry_shows_what_went_wrong_and_what_else_will_hold_it() -> None:
    record = job(JobState.SCHEDULED, run_at=NOW + MINUTE, attempts=2, last_error="boom")

    answer = why(Situation(job=record, now=NOW, queue=queue(paused=True)))

    assert answer.facts == ("attempt 2 failed: boom", "queue media is paused")


def test_a_blocked_job_names_the_one_that_holds_its_key() -> None:
    holder = job(JobState.RUNNING, worker_id="w-9")

    answer = why(Situation(job=job(JobState.BLOCKED, key=b"k"), now=NOW, key_holder=holder))

    assert answer.reason is Reason.KEY_HELD
    assert holder.id in answer.text
    assert "w-9" in answer.text


def test_a_pause_of_queue_or_harbor_comes_before_everything_else() -> None:
    paused = why(Situation(job=job(), now=NOW, queue=queue(paused=True)))
    harbor = why(Situation(job=job(), now=NOW, harbor=QueueRules(paused=True)))

    assert (paused.reason, paused.hint) == (Reason.PAUSED, "resume it: taskharbor queues resume media")
    assert (harbor.reason, harbor.hint) == (Reason.PAUSED, "resume it: taskharbor queues resume --all")


@pytest.mark.parametrize(
    ("workers", "word"),
    [
        ([], "no worker is alive"),
        ([worker(queues=("mail",))], "takes queue media"),
        ([worker(lanes=("cpu", "any"))], "needs gpu"),
        ([worker(lanes=("gpu",), types=("other",))], "knows the task render"),
    ],
)
def test_nobody_alive_takes_it(workers: list[WorkerInfo], word: str) -> None:
    answer = why(Situation(job=job(requires="gpu"), now=NOW, workers=workers))

    assert answer.reason is Reason.NO_WORKER
    assert word in answer.text
    assert answer.hint is not None


def test_a_worker_that_claims_nothing_more_takes_nothing() -> None:
    quiet = worker(is_quiet=True)

    answer = why(Situation(job=job(), now=NOW, workers=[quiet]))
    taken = why(Situation(job=job(), now=NOW, workers=[quiet, worker()]))

    assert (answer.reason, taken.reason) == (Reason.NO_WORKER, Reason.IN_LINE)
    assert "claims nothing more" in answer.text
    assert answer.hint == "start one: taskharbor worker APP -q media"


def test_a_full_queue_or_harbor_is_named() -> None:
    full = why(Situation(job=job(), now=NOW, queue=queue(running=3, max_running=3), workers=[worker()]))
    harbor = why(
        Situation(job=job(), now=NOW, harbor=QueueRules(max_running=4), harbor_running=4, workers=[worker()])
    )

    assert "queue media is full: 3 of at most 3 run" in full.text
    assert "the harbor is full: 4 of at most 4 run" in harbor.text
    assert full.reason is harbor.reason is Reason.FULL


def test_a_spent_rate_says_when_it_is_back_and_comes_before_full_and_busy() -> None:
    spent = replace(queue(execute_rate=RateLimit(10, MINUTE), max_running=0), throttled_until=NOW + MINUTE)
    busy = worker(running=("a", "b"))

    answer = why(Situation(job=job(), now=NOW, queue=spent, workers=[busy]))

    assert (answer.reason, answer.until) == (Reason.RATE, NOW + MINUTE)
    assert "at most 10 jobs per 1m: the budget is back in 1m" in answer.text


def test_a_rate_with_room_holds_nobody_back() -> None:
    limited = queue(execute_rate=RateLimit(10, MINUTE))

    assert reason(job(), queue=limited, workers=[worker(running=("a", "b"))]) is Reason.BUSY
    assert reason(job(), queue=limited, ahead=7) is Reason.IN_LINE


def test_busy_workers_are_counted_in_plain_words() -> None:
    one_slot = worker(concurrency=1, running=("a",))
    two_slots = worker(running=("a", "b"))

    def text(*workers: WorkerInfo) -> str:
        return why(Situation(job=job(), now=NOW, workers=list(workers))).text

    assert "the one slot of the only worker that could take it is in use" in text(one_slot)
    assert "all 2 slots of the only worker that could take it are in use" in text(two_slots)
    assert "all 3 slots of the 2 workers that could take it are in use" in text(one_slot, two_slots)


def test_a_ready_job_knows_its_place() -> None:
    first = why(Situation(job=job(), now=NOW, workers=[worker()]))
    later = why(Situation(job=job(), now=NOW, workers=[worker()], ahead=211))
    many = why(Situation(job=job(), now=NOW, workers=[worker()], ahead=5000, ahead_is_exact=False))

    assert "first in line" in first.text
    assert "211 jobs are ahead" in later.text
    assert "at least 5000 jobs are ahead" in many.text


def test_a_running_job_names_its_worker_until_the_lease_is_over() -> None:
    running = job(
        JobState.RUNNING, worker_id="w-1", started_at=NOW - MINUTE, lease_expires_at=NOW + MINUTE,
        progress=Progress(0.4, "frames"),
    )  # fmt: skip
    silent = job(JobState.RUNNING, worker_id="w-1", started_at=NOW - MINUTE, lease_expires_at=NOW)

    answer = why(Situation(job=running, now=NOW))

    assert (answer.reason, answer.until) == (Reason.RUNNING, NOW + MINUTE)
    assert answer.facts == ("says it is 40% done frames",)
    assert (
        reason(job(JobState.RUNNING, cancel_requested=True, lease_expires_at=NOW + MINUTE))
        is Reason.CANCELLING
    )
    assert reason(silent) is Reason.LEASE_OVER


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"failure_kind": "error", "attempts": 5}, "all 5 attempts are used up"),
        ({"failure_kind": "stalled", "stalls": 3}, "fell silent or died 3 times"),
        ({"failure_kind": "no_handler"}, "no handler"),
        ({"failure_kind": "invalid_payload"}, "payload does not fit"),
        ({"failure_kind": "unrecoverable"}, "raised Unrecoverable"),
    ],
)
def test_a_failed_job_says_how_it_failed(fields: dict[str, Any], words: str) -> None:
    answer = why(
        Situation(job=job(JobState.FAILED, failed_at=NOW - MINUTE, last_error="boom", **fields), now=NOW)
    )

    assert answer.reason is Reason.FAILED
    assert words in answer.text
    assert answer.facts == ("last error: boom",)


def test_attempts_before_a_retry_by_hand_are_not_mixed_with_those_since() -> None:
    history = tuple(AttemptRecord(number, "w", NOW, NOW, "failed") for number in range(4))
    two, one = (
        job(JobState.FAILED, failed_at=NOW, failure_kind="error", attempts=attempts, history=history)
        for attempts in (2, 1)
    )

    assert why(Situation(job=two, now=NOW)).text.endswith("all 2 attempts since it was retried are used up")
    assert why(Situation(job=one, now=NOW)).text.endswith("its attempt since it was retried failed")


def test_finished_jobs_say_so() -> None:
    assert reason(job(JobState.COMPLETED, finished_at=NOW)) is Reason.COMPLETED
    assert reason(job(JobState.CANCELLED, finished_at=NOW)) is Reason.CANCELLED


# ------------------------------------------------------------------ asking a store


@pytest.fixture
async def driver():
    async with MemoryDriver() as driver:
        yield driver


async def put(driver: MemoryDriver, **fields: Any) -> str:
    job_id = Entropy().job_id(NOW)
    await driver.enqueue([NewJob(id=job_id, type="render", queue="media", **fields)], now=NOW)
    return job_id


async def test_the_jobs_ahead_are_counted_in_the_order_of_claims(driver: MemoryDriver) -> None:
    await put(driver)
    await put(driver, priority=5)
    await put(driver, requires="gpu", priority=9)
    mine = await put(driver)
    await put(driver)
    await driver.report_worker(
        WorkerReport(worker_id="w", queues=("media",), lanes=("any",), concurrency=1), now=NOW
    )

    answer = await look_into(driver, mine, now=NOW)

    assert answer.reason is Reason.IN_LINE
    assert "2 jobs are ahead" in answer.text


async def test_the_jobs_ahead_are_counted_up_to_a_bound(driver: MemoryDriver) -> None:
    """However long the queue is: one page of 200, without payloads."""
    await driver.enqueue(
        [NewJob(id=Entropy().job_id(NOW), type="render", queue="media") for _ in range(900)], now=NOW
    )
    mine, urgent = await put(driver), await put(driver, priority=9)
    await driver.report_worker(
        WorkerReport(worker_id="w", queues=("media",), lanes=("any",), concurrency=1), now=NOW
    )
    asked: list[Query] = []
    find = driver.do_find

    async def watched(query: Query, now: datetime | None) -> Page:
        asked.append(query)
        page = await find(query, now)
        assert page.examined <= 200
        return page

    driver.do_find = watched  # type: ignore[method-assign]

    assert "at least 200 jobs are ahead" in (await look_into(driver, mine, now=NOW)).text
    assert "none of the oldest jobs of its queue is ahead" in (await look_into(driver, urgent, now=NOW)).text
    assert [(query.limit, query.payloads) for query in asked] == [(200, False)] * 2


async def test_a_blocked_job_finds_its_holder_in_the_store(driver: MemoryDriver) -> None:
    holder = await put(driver, key=b"k")
    [running] = (await driver.reserve(Claim(queues=("media",), worker_id="w"), now=NOW)).jobs
    blocked = await put(driver, key=b"k")

    answer = await look_into(driver, blocked, now=NOW)
    await driver.settle([Ack(running.lease)], now=NOW)
    after = await look_into(driver, blocked, now=NOW)

    assert answer.reason is Reason.KEY_HELD
    assert holder in answer.text
    assert after.reason is Reason.NO_WORKER


async def test_limits_of_queue_and_harbor_are_read_from_the_store(driver: MemoryDriver) -> None:
    waiting = await put(driver)
    await driver.report_worker(
        WorkerReport(worker_id="w", queues=("media",), lanes=("any",), concurrency=1), now=NOW
    )
    await driver.configure_queue(QueueSettings(queue="*", max_running=0), now=NOW)

    answer = await look_into(driver, waiting, now=NOW)

    assert answer.reason is Reason.FULL
    assert "the harbor is full" in answer.text


async def test_an_unknown_job_is_not_found(driver: MemoryDriver) -> None:
    with pytest.raises(JobNotFound):
        await look_into(driver, Entropy().job_id(NOW))


def test_a_job_that_a_second_run_finished_says_so() -> None:
    run = AttemptRecord(
        fence=1,
        worker_id="w-slow",
        started_at=NOW - MINUTE,
        ended_at=NOW,
        outcome="superseded",
        error="its speculative copy finished first",
    )
    record = job(JobState.COMPLETED, finished_at=NOW, history=(run,))

    [fact] = why(Situation(job=record, now=NOW)).facts

    assert "w-slow" in fact
    assert "second one was started" in fact


def test_a_job_of_a_schedule_and_a_second_run_show_where_they_come_from() -> None:
    ticked = job(JobState.COMPLETED, finished_at=NOW, headers={"taskharbor-schedule": "nightly"})
    copy = job(JobState.CANCELLED, finished_at=NOW, speculates_on="01a1de6c-0000-738c-9f3a-6aa1afc95af6")

    assert why(Situation(job=ticked, now=NOW)).facts == ("schedule nightly made it",)
    assert "second run of job 01a1de6c-0000" in why(Situation(job=copy, now=NOW)).facts[-1]


async def test_queues_that_are_known_are_not_counted_again(driver: MemoryDriver) -> None:
    mine = await put(driver)
    known = await driver.queues(now=NOW)
    paused = [replace(info, rules=QueueRules(paused=True)) for info in known]
    others = [replace(info, queue="others") for info in paused]

    assert (await look_into(driver, mine, now=NOW, known=paused)).reason is Reason.PAUSED
    assert (await look_into(driver, mine, now=NOW, known=others)).reason is Reason.NO_WORKER
