"""The duties, one leader, and what happens when it dies in the middle. Time moves by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim, Page, Query
from taskharbor.errors import ConfigurationError, DriverUnavailable, InvalidArgument
from taskharbor.events import DutyRan, Event, EventBus, SpeculationStarted, SpeculationWatched
from taskharbor.harbor import Harbor
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.speculation import SPECULATE_HEADER, Speculate, header_of
from taskharbor.model.state import JobState
from taskharbor.scheduler import Scheduler
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.speculate import SpeculateOnStragglers

START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
entropy = Entropy(5)


class HandClock:
    """Does not pass until a test moves it."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - START).total_seconds()

    async def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def driver(clock: HandClock) -> AsyncIterator[Driver]:
    async with MemoryDriver(clock=clock, entropy=Entropy(1)) as driver:
        yield driver


def scheduler(driver: Driver, clock: HandClock, name: str = "one", **options: object) -> Scheduler:
    return Scheduler(driver, name=name, clock=clock, entropy=Entropy(2), **options)  # type: ignore[arg-type]


def new_job(**fields: object) -> NewJob:
    return NewJob(id=entropy.job_id(START), type="report", **fields)  # type: ignore[arg-type]


async def take(driver: Driver, worker_id: str = "worker", limit: int = 10) -> list[JobRecord]:
    claim = Claim(queues=("default",), worker_id=worker_id, limit=limit, lease_for=30 * SECOND)
    return (await driver.reserve(claim)).jobs


async def all_jobs(driver: Driver) -> list[JobRecord]:
    return (await driver.find(Query(limit=1000))).jobs


# ------------------------------------------------------------------ the role


async def test_only_one_of_two_schedulers_leads_and_the_other_follows_when_it_falls_silent(
    driver: Driver, clock: HandClock
) -> None:
    first, second = scheduler(driver, clock, "first"), scheduler(driver, clock, "second")
    await first.run_once()
    await second.run_once()
    assert (first.is_leading, second.is_leading) == (True, False)

    clock.at += 16 * SECOND  # longer than the role lasts, and nobody renewed it
    await second.run_once()

    assert (first.is_leading, second.is_leading) == (False, True)
    assert first.term is not None
    assert second.term == first.term + 1


async def test_a_leader_that_stops_hands_over_at_once(driver: Driver, clock: HandClock) -> None:
    first, second = scheduler(driver, clock, "first"), scheduler(driver, clock, "second")
    await first.run_once()

    first.stop()
    await first.arun()
    await second.run_once()

    assert second.is_leading


async def test_a_follower_runs_no_duty(driver: Driver, clock: HandClock) -> None:
    await scheduler(driver, clock, "leader").run_once()
    await driver.enqueue([new_job()])
    await take(driver)
    clock.at += 5 * SECOND

    done = await scheduler(driver, clock, "follower").run_once()

    assert done == 0


async def test_a_store_that_does_not_answer_is_not_the_end(driver: Driver, clock: HandClock) -> None:
    silent = scheduler(driver, clock, duties=[FailingDuty()])

    assert await silent.run_once() == 0
    clock.at += 2 * SECOND
    assert await silent.run_once() == 0
    assert silent.is_leading


class FailingDuty:
    name = "failing"
    every_seconds = 1.0

    async def run_once(self) -> int:
        raise DriverUnavailable("the store is away")


class BrokenDuty:
    name = "broken"
    every_seconds = 1.0

    async def run_once(self) -> int:
        raise KeyError("not an error that anybody thought of")


async def test_a_duty_that_breaks_does_not_end_the_others(driver: Driver, clock: HandClock) -> None:
    events = EventBus()
    seen: list[DutyRan] = []
    events.listen(seen.append, DutyRan)
    one = scheduler(driver, clock, duties=[BrokenDuty(), FailingDuty()], events=events)

    assert await one.run_once() == 0
    assert [ran.duty for ran in seen] == ["broken", "failing"]
    assert all(ran.error for ran in seen)


async def test_a_follower_asks_for_the_role_a_few_times_per_term_only(
    driver: Driver, clock: HandClock
) -> None:
    await scheduler(driver, clock, "leader", ttl=100 * SECOND).run_once()
    asked: list[str] = []

    class Counting(MemoryDriver):
        async def do_hold_role(self, name, holder, ttl, now):
            asked.append(holder)
            return await super().do_hold_role(name, holder, ttl, now)

    async with Counting(clock=clock) as store:
        await scheduler(store, clock, "leader").run_once()
        asked.clear()
        follower = scheduler(store, clock, "follower")
        for _ in range(10):
            await follower.run_once()
            clock.at += SECOND

    assert 2 <= len(asked) <= 5


# ------------------------------------------------------------------ housekeeping


async def test_the_sweep_pages_through_every_expired_lease(driver: Driver, clock: HandClock) -> None:
    await driver.enqueue([new_job() for _ in range(250)])
    await take(driver, limit=250)
    clock.at += 31 * SECOND

    await scheduler(driver, clock).run_once()

    assert (await driver.count())["default"].ready == 250


async def test_finished_jobs_are_forgotten_when_their_retention_is_over(
    driver: Driver, clock: HandClock
) -> None:
    await driver.configure_queue(QueueSettings(queue="default", retention=Retention(completed=MINUTE)))
    await driver.enqueue([new_job()])
    await driver.settle([Ack(job.lease) for job in await take(driver)])
    leader = scheduler(driver, clock)
    await leader.run_once()
    assert len(await all_jobs(driver)) == 1

    clock.at += MINUTE
    await leader.run_once()

    assert await all_jobs(driver) == []


async def test_each_run_of_a_duty_is_an_event(driver: Driver, clock: HandClock) -> None:
    bus = EventBus()
    heard: list[DutyRan] = []
    bus.listen(heard.append, DutyRan)

    await scheduler(driver, clock, events=bus).run_once()

    usual = [
        "sweep",
        "promote",
        "fire-cron",
        "speculate",
        "prune",
        "notice-unclaimed",
        "note-levels",
        "merge-log",
    ]
    assert [event.duty for event in heard] == usual


# ------------------------------------------------------------------ schedules


async def put(driver: Driver, **fields: object) -> None:
    rule = {"name": "nightly", "template": new_job(payload=b"{}"), "cron": "* * * * *"} | fields
    await driver.put_schedule(Schedule(**rule))  # type: ignore[arg-type]


async def test_a_tick_makes_exactly_one_job_with_two_schedulers(driver: Driver, clock: HandClock) -> None:
    await put(driver)
    first, second = scheduler(driver, clock, "first"), scheduler(driver, clock, "second")

    for _ in range(182):
        clock.at += SECOND
        await first.run_once()
        await second.run_once()

    jobs = await all_jobs(driver)
    assert [job.idempotency_key for job in jobs] == [
        b"schedule/nightly/2093-05-17T09:31:00Z",
        b"schedule/nightly/2093-05-17T09:32:00Z",
        b"schedule/nightly/2093-05-17T09:33:00Z",
    ]


async def test_a_schedule_whose_code_is_gone_makes_no_more_jobs_until_it_is_back(
    driver: Driver, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await put(driver, declared=True)
    await put(driver, name="by-hand")
    leader = scheduler(driver, clock)
    for _ in range(90):
        clock.at += MINUTE
        await leader.run_once()
    made = [job.headers["taskharbor-schedule"] for job in await all_jobs(driver)]

    await put(driver, declared=True)
    clock.at += MINUTE
    await leader.run_once()

    assert (made.count("nightly"), made.count("by-hand")) == (59, 90)
    assert caplog.text.count("schedule nightly makes no more jobs") == 1
    back = [job.headers["taskharbor-schedule"] for job in await all_jobs(driver)]
    assert back.count("nightly") == 60


async def test_a_schedule_that_was_paused_has_not_fired(driver: Driver, clock: HandClock) -> None:
    await put(driver, paused=True)
    clock.at += MINUTE
    await scheduler(driver, clock).run_once()
    [paused] = await driver.schedules()

    await put(driver, paused=False)
    clock.at += MINUTE
    await scheduler(driver, clock, "second").run_once()
    [fired] = await driver.schedules()

    assert paused.fired_at is None
    assert fired.fired_at == fired.last_tick_at


async def test_a_leader_that_dies_between_enqueue_and_note_leaves_one_job(
    driver: Driver, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(driver)
    first = scheduler(driver, clock, "first")
    await first.run_once()
    clock.at += MINUTE
    with monkeypatch.context() as patch:
        patch.setattr(driver, "do_advance_schedule", lambda *_: _die())
        with pytest.raises(KeyboardInterrupt):
            await first.run_once()

    clock.at += 16 * SECOND
    await scheduler(driver, clock, "second").run_once()

    assert len(await all_jobs(driver)) == 1


async def _die() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("misfire", "made"), [("latest", 1), ("skip", 1), ("all", 10)])
async def test_after_an_outage_the_misfire_policy_decides(
    driver: Driver, clock: HandClock, misfire: str, made: int
) -> None:
    await put(driver, misfire=misfire)

    clock.at += 10 * MINUTE
    await scheduler(driver, clock).run_once()

    assert len(await all_jobs(driver)) == made


async def test_skip_makes_nothing_of_a_tick_that_is_long_past(driver: Driver, clock: HandClock) -> None:
    await put(driver, cron="0 10 * * *", misfire="skip")

    clock.at += timedelta(hours=2)
    leader = scheduler(driver, clock)
    await leader.run_once()

    assert await all_jobs(driver) == []


async def test_a_paused_schedule_does_not_catch_up(driver: Driver, clock: HandClock) -> None:
    await put(driver, paused=True)
    leader = scheduler(driver, clock)
    clock.at += 5 * MINUTE
    await leader.run_once()

    await put(driver, paused=False)
    await leader.run_once()

    assert await all_jobs(driver) == []


# ------------------------------------------------------------------ speculation


async def straggler(driver: Driver, **fields: object) -> JobRecord:
    rule = header_of(Speculate(after=5 * SECOND, factor=3.0))
    await driver.enqueue([new_job(headers={SPECULATE_HEADER: rule}, **fields)])
    [job] = await take(driver, "slow")
    return job


async def test_a_straggler_gets_one_copy_and_the_copy_completes_it(driver: Driver, clock: HandClock) -> None:
    job = await straggler(driver)
    leader = scheduler(driver, clock)
    clock.at += 5 * SECOND
    await leader.run_once()
    assert await take(driver, "fast") == []

    clock.at += timedelta(seconds=2)
    await leader.run_once()
    [copy] = await take(driver, "fast")
    await driver.settle([Ack(copy.lease, b'"done"')])

    [original] = await driver.get([job.id])
    assert original is not None
    assert (original.state, original.result) == (JobState.COMPLETED, b'"done"')


async def test_a_run_whose_copy_failed_gets_no_other_and_the_next_run_does(
    driver: Driver, clock: HandClock
) -> None:
    """A copy that fails at once would otherwise be followed by another every second."""
    await straggler(driver, max_stalls=9)
    leader = scheduler(driver, clock)
    clock.at += 6 * SECOND
    await leader.run_once()
    [copy] = await take(driver, "fast")
    await driver.settle([Fail(copy.lease, "broken")])
    for _ in range(5):
        clock.at += 2 * SECOND
        await leader.run_once()
    assert await take(driver, "fast") == []

    clock.at += 30 * SECOND
    [again] = await take(driver, "slow")
    assert again.starts == 2
    for _ in range(5):
        clock.at += 2 * SECOND
        await leader.run_once()

    [second_copy] = await take(driver, "fast")
    assert second_copy.speculates_on == again.id


@pytest.mark.parametrize("ended", [False, True], ids=["lives", "failed"])
async def test_a_leader_that_takes_over_makes_the_same_run_no_second_copy(
    driver: Driver, clock: HandClock, ended: bool
) -> None:
    """What the first leader knew died with it; the store remembers."""
    await straggler(driver)
    clock.at += 6 * SECOND
    await SpeculateOnStragglers(driver, Now(driver, clock)).run_once()
    [copy] = await take(driver, "fast")
    if ended:
        await driver.settle([Fail(copy.lease, "broken")])
    clock.at += SECOND

    assert await SpeculateOnStragglers(driver, Now(driver, clock)).run_once() == 0
    assert await take(driver, "another") == []


async def test_what_may_get_a_second_run_is_announced_before_it_does(
    driver: Driver, clock: HandClock
) -> None:
    seen: list[Event] = []
    bus = EventBus()
    bus.listen(seen.append, SpeculationWatched)
    bus.listen(seen.append, SpeculationStarted)
    duty = SpeculateOnStragglers(driver, Now(driver, clock), events=bus)
    await straggler(driver)

    await duty.run_once()
    early = [type(event) for event in seen]
    clock.at += 6 * SECOND
    await duty.run_once()

    assert early == [SpeculationWatched]
    assert [type(event) for event in seen] == [SpeculationWatched, SpeculationStarted]


async def test_the_faster_half_of_the_workers_is_first_to_be_offered_a_copy(
    driver: Driver, clock: HandClock
) -> None:
    for name, seconds in (("quick", 1), ("brisk", 2), ("lame", 3), ("slow", 4)):
        report = WorkerReport(worker_id=name, queues=("default",))
        await driver.report_worker(report, [Sample("other", seconds * SECOND)], ttl=MINUTE)
    for _ in range(2):
        await straggler(driver)
    clock.at += 6 * SECOND
    assert await SpeculateOnStragglers(driver, Now(driver, clock)).run_once() == 2

    assert await take(driver, "lame") == []
    [first] = await take(driver, "brisk", limit=1)
    clock.at += 2 * SECOND
    [second] = await take(driver, "lame")
    assert first.speculates_on != second.speculates_on


async def test_a_look_around_ends_although_workers_go_on_to_the_next_jobs_meanwhile(
    driver: Driver, clock: HandClock
) -> None:
    await driver.enqueue([new_job() for _ in range(200)], now=clock.now())
    running = await take(driver)
    looks, find = 0, driver.find

    async def find_while_they_work(query: Query, *, now: datetime | None = None) -> Page:
        nonlocal looks, running
        looks += 1
        page = await find(query, now=now)
        await driver.settle([Ack(job.lease) for job in running], now=now)
        running = await take(driver)
        return page

    driver.find = find_while_they_work  # type: ignore[method-assign]
    await SpeculateOnStragglers(driver, Now(driver, clock), page=5).run_once()

    assert looks == 2, "one page of those that ran, and what was left of them"


async def test_without_anything_to_copy_the_look_around_is_rarer(driver: Driver, clock: HandClock) -> None:
    duty = SpeculateOnStragglers(driver, Now(driver, clock), every_seconds=1.0)
    await duty.run_once()
    calm = duty.every_seconds

    await straggler(driver)
    await duty.run_once()

    assert (calm, duty.every_seconds) == (5.0, 1.0)


async def test_a_type_that_usually_takes_long_is_given_its_time(driver: Driver, clock: HandClock) -> None:
    report = WorkerReport(worker_id="fast")
    await driver.report_worker(report, [Sample("report", 4 * SECOND)], ttl=MINUTE)
    await straggler(driver)
    leader = scheduler(driver, clock)

    clock.at += 12 * SECOND
    await leader.run_once()

    assert await take(driver, "fast") == []


async def test_a_keyed_job_is_never_copied(driver: Driver, clock: HandClock) -> None:
    await straggler(driver, key=b"only-one")

    clock.at += 20 * SECOND
    await scheduler(driver, clock).run_once()

    assert await take(driver, "fast") == []


# ------------------------------------------------------------------ schedules that cannot fire


async def test_a_schedule_over_its_queues_rate_does_not_stop_the_others(
    driver: Driver, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    await driver.configure_queue(QueueSettings(queue="spent", enqueue_rate=RateLimit(1, 3600 * SECOND)))
    await driver.enqueue([new_job(queue="spent")])
    await driver.put_schedule(Schedule(name="a", template=new_job(queue="spent"), every=MINUTE))
    await driver.put_schedule(Schedule(name="b", template=new_job(queue="free"), every=MINUTE))

    clock.at += MINUTE
    await scheduler(driver, clock).run_once()

    assert [job.queue for job in await all_jobs(driver)].count("free") == 1
    assert "schedule a could not fire" in caplog.text


async def test_a_schedule_that_cannot_be_read_does_not_stop_the_others(
    driver: Driver, clock: HandClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.put_schedule(
        Schedule(name="a", template=new_job(), cron="* * * * *", timezone="Europe/Berlin")
    )
    await driver.put_schedule(Schedule(name="b", template=new_job(), every=MINUTE))

    def no_zone(name: str) -> None:
        raise InvalidArgument(f"time zone {name!r} is not known")

    monkeypatch.setattr("taskharbor.model.cron.zone", no_zone)  # a machine without that zone
    clock.at += MINUTE
    await scheduler(driver, clock).run_once()

    assert [job.headers["taskharbor-schedule"] for job in await all_jobs(driver)] == ["b"]
    assert "schedule a could not fire" in caplog.text


async def test_more_missed_ticks_than_the_queue_takes_at_once_go_in_parts(
    driver: Driver, clock: HandClock
) -> None:
    await driver.configure_queue(QueueSettings(queue="default", enqueue_rate=RateLimit(2, MINUTE)))
    await driver.put_schedule(Schedule(name="a", template=new_job(), every=10 * SECOND, misfire="all"))
    clock.at += 50 * SECOND
    one = scheduler(driver, clock)

    counts = []
    for _ in range(4):
        await one.run_once()
        counts.append(len(await all_jobs(driver)))
        clock.at += MINUTE if len(counts) > 1 else SECOND

    assert counts[0] == 2
    keys = [job.idempotency_key for job in await all_jobs(driver)]
    assert len(set(keys)) == len(keys) == counts[-1] >= 6


# ------------------------------------------------------------------ how often


async def test_how_often_leases_are_swept_can_be_set(driver, clock):
    swept = []
    events = EventBus()
    events.listen(lambda event: swept.append(clock.monotonic()) if event.duty == "sweep" else None, DutyRan)
    scheduler = Scheduler(driver, clock=clock, sweep_every=timedelta(seconds=20), events=events)

    while clock.monotonic() < 110:
        await scheduler.run_once()
        await clock.sleep(1)

    gaps = [later - sooner for sooner, later in pairwise(swept)]
    assert len(gaps) >= 4
    assert all(18 <= gap <= 23 for gap in gaps)


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=-1)])
def test_a_sweep_without_a_pause_is_refused(driver, wrong):
    with pytest.raises(ConfigurationError, match="sweep_every"):
        Scheduler(driver, sweep_every=wrong)
    with pytest.raises(ConfigurationError, match="sweep_every"):
        Harbor("memory://").worker(sweep_every=wrong)
