"""A store that is timed, and a store that is measured: by one of all, and by the next one when it goes."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import DriverUnavailable
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.store_gauges import TTL, StoreGauges, StoreLook
from taskharbor.observe.store_times import OPS, time_store
from tests.unit.worker.worker_fixture import FaultyDriver

_NOT_CALLS = {"close", "open_to_look", "open_unmigrated"}  # nobody waits for the first, the others open
_ONE_JOB = {"ack", "retry", "fail", "extend_lease", "reserve_one"}  # each calls a verb that is timed


def calls(meter: Meter) -> dict[str, int]:
    curves = meter.sample().curves.get(metric_names.STORE_OP.name, {})
    return {op: sum(curve.counts) for (op,), curve in curves.items()}


def job(number: int = 0, **fields) -> NewJob:
    return NewJob(id=f"01b8dac5-b400-7000-8000-{number:012d}", type="work", **fields)


def test_every_verb_of_the_contract_is_timed():
    verbs = {
        name
        for name, member in inspect.getmembers(Driver, inspect.iscoroutinefunction)
        if not name.startswith(("_", "do_"))
    }

    assert sorted(verbs - _NOT_CALLS - _ONE_JOB) == sorted(OPS)  # a verb named twice would count double


async def test_calls_are_timed_on_the_handle_and_on_those_made_from_it():
    meter = Meter()
    driver = time_store(MemoryDriver(), meter)
    async with driver, driver.another() as other:
        await driver.enqueue([job()])
        await other.queues()
        await other.queues()

    assert calls(meter) == {"open": 2, "enqueue": 1, "queues": 2}
    assert isinstance(driver, MemoryDriver)


async def test_timing_twice_counts_once():
    meter = Meter()
    driver = time_store(time_store(MemoryDriver(), meter), meter)
    async with driver:
        await driver.queues()

    assert calls(meter)["queues"] == 1


async def test_a_failing_store_is_counted_and_a_refusal_of_ours_is_not():
    meter = Meter()
    driver = FaultyDriver()
    driver.before["settle"] = lambda: (_ for _ in ()).throw(DriverUnavailable("away"))
    time_store(driver, meter)
    async with driver:
        with pytest.raises(DriverUnavailable):
            await driver.settle([settlement()])
        with pytest.raises(ValueError, match="limit"):
            await driver.reclaim(0)

    assert meter.sample().counters[metric_names.STORE_ERRORS.name] == {
        ("settle",): 1,
        ("reclaim",): 0,
        ("open",): 0,
    }
    assert calls(meter)["settle"] == 1


def settlement():
    from taskharbor.model.job import Lease
    from taskharbor.model.settlement import Ack

    return Ack(Lease(job().id, "t"))


async def test_jobs_are_counted_as_they_go_in_from_any_caller():
    meter = Meter()
    driver = time_store(MemoryDriver(), meter)
    async with driver:
        await driver.enqueue([job(1), job(2, queue="mail"), job(1)])
        driver.enqueue_blocking([job(3)])

    counted = meter.sample().counters[metric_names.JOBS_ENQUEUED.name]
    assert counted == {("default", "work"): 2, ("mail", "work"): 1}  # the repeated id is no job


async def test_behind_a_server_jobs_are_the_servers_to_count():
    meter = Meter()
    driver = time_store(MemoryDriver(), meter, counts_jobs=False)
    async with driver:
        await driver.enqueue([job(1)])
        driver.enqueue_blocking([job(2)])

    assert metric_names.JOBS_ENQUEUED.name not in meter.sample().counters
    assert calls(meter)["enqueue"] == 2


# ------------------------------------------------------------------ what the store holds


@pytest.fixture
async def driver(clock):
    async with MemoryDriver(clock=clock, entropy=Entropy(3)) as driver:
        yield driver


async def test_queues_workers_and_schedules_are_measured(driver, clock):
    await driver.enqueue([job(1), job(2), job(3, queue="mail", delay=timedelta(hours=1))])
    await driver.configure_queue(QueueSettings(queue="mail", paused=True, max_running=4))
    await driver.put_schedule(Schedule(name="nightly", template=job(9), every=timedelta(seconds=60)))
    await clock.pass_time(timedelta(seconds=130))
    gauges = StoreGauges(driver.another(), entropy=Entropy(4))

    await gauges.run_once()

    values = gauges.values()
    assert values[metric_names.JOBS.name]["default", "ready"] == 2
    assert values[metric_names.JOBS.name]["mail", "scheduled"] == 1
    assert values[metric_names.QUEUE_OLDEST.name] == {("default",): 130.0, ("mail",): 0.0}
    assert values[metric_names.QUEUE_PAUSED.name] == {("default",): 0.0, ("mail",): 1.0}
    assert values[metric_names.QUEUE_LIMIT.name] == {("mail",): 4.0}
    assert values[metric_names.WORKERS.name] == {}
    assert values[metric_names.SCHEDULE_LAG.name]["nightly",] >= 60


async def test_a_schedule_in_good_order_or_paused_is_not_late(driver, clock):
    await driver.put_schedule(Schedule(name="good", template=job(8), every=timedelta(seconds=60)))
    await driver.put_schedule(
        Schedule(name="paused", template=job(9), every=timedelta(seconds=1), paused=True)
    )
    await clock.pass_time(timedelta(seconds=5))
    gauges = StoreGauges(driver.another())
    await gauges.run_once()

    assert set(gauges.values()[metric_names.SCHEDULE_LAG.name].values()) == {0.0}


async def test_only_one_of_several_reports_what_the_store_holds(driver, clock):
    await driver.enqueue([job(1)])
    all_gauges = [StoreGauges(driver.another(), entropy=Entropy(number)) for number in range(3)]

    for _ in range(4):
        for gauges in all_gauges:
            await gauges.run_once()
        assert [bool(gauges.values()) for gauges in all_gauges] == [True, False, False]
        await clock.pass_time(timedelta(seconds=5))


async def test_when_the_one_that_measured_falls_silent_another_takes_over_and_the_old_values_go(
    driver, clock
):
    first, second = (StoreGauges(driver.another(), entropy=Entropy(number)) for number in range(2))
    await driver.enqueue([job(1)])
    await first.run_once()
    assert first.values()

    await clock.pass_time(TTL)
    await second.run_once()

    assert second.values()
    assert not first.values()


async def test_a_store_that_is_away_is_logged_once_and_makes_the_values_go_stale(clock, caplog):
    driver = FaultyDriver(clock=clock)
    async with driver:
        await driver.enqueue([job(1)])
        gauges = StoreGauges(driver)
        await gauges.run_once()
        assert gauges.values()

        async def away(*_):
            raise DriverUnavailable("away")

        driver.do_hold_role = away  # type: ignore[method-assign]
        for _ in range(4):
            await clock.pass_time(timedelta(seconds=5))
            await gauges.run_once()

        assert not gauges.values()
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@pytest.mark.parametrize("is_own_look", [True, False])
async def test_what_is_owed_to_workflows_is_measured(driver, clock, is_own_look):
    root = job(0, bonds=Bonds(done_by="children"))
    kids = [job(number, bonds=Bonds(parent=root.id)) for number in range(1, 451)]
    await driver.enqueue([root, *kids])
    await driver.cancel([root.id])

    async def look() -> StoreLook:
        return StoreLook(clock.now(), [], [], [])

    gauges = StoreGauges(driver.another(), look=None if is_own_look else look)
    await gauges.run_once()
    assert gauges.values()[metric_names.CONSEQUENCES.name] == {(): 1.0}

    while (await driver.promote()).count:
        pass
    await gauges.run_once()
    assert gauges.values()[metric_names.CONSEQUENCES.name] == {(): 0.0}
