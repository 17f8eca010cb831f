"""Schedules: declared in code, stored by name."""

from datetime import timedelta

import pytest

from taskharbor.errors import ConfigurationError, InvalidArgument, PayloadError
from taskharbor.harbor import Harbor
from taskharbor.model.state import JobState
from taskharbor.testing.clock import SimulatedClock
from taskharbor.testing.store import in_memory


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def harbor(clock):
    with Harbor("memory://", clock=clock) as harbor:
        yield harbor


def declared(harbor):
    @harbor.task(queue="chores")
    def clean_up(days: int) -> None: ...

    harbor.cron("0 3 * * *", call=clean_up.call(days=7), timezone="Europe/Berlin")
    return clean_up


def test_a_declared_schedule_is_stored_with_the_first_use(harbor):
    task = declared(harbor)

    [entry] = harbor.schedules.list()

    schedule = entry.schedule
    assert task.name == "clean_up"
    assert (schedule.name, schedule.cron, schedule.timezone) == ("clean_up", "0 3 * * *", "Europe/Berlin")
    assert (schedule.template.queue, schedule.template.payload) == ("chores", b'{"days":7}')
    assert not entry.paused


def test_a_worker_brings_the_schedules_with_it(harbor):
    declared(harbor)

    harbor.worker().run(until_idle=True)

    driver = harbor.driver.another()
    assert len(harbor.client._block(_schedules, driver)) == 1


async def _schedules(driver):
    async with driver:
        return await driver.schedules()


def test_cron_may_be_written_below_task_as_well_as_above_it(harbor):
    @harbor.cron("0 3 * * *", name="third")
    @harbor.task
    @harbor.cron("0 1 * * *", name="first")
    @harbor.cron("0 2 * * *", name="second")
    def clean_up(days: int = 7) -> None: ...

    assert [entry.schedule.name for entry in harbor.schedules.list()] == ["first", "second", "third"]
    assert harbor.schedules.list()[0].schedule.template.payload == b"{}"


def test_cron_without_task_is_refused_when_it_would_be_stored(harbor):
    @harbor.cron("0 1 * * *")
    def forgotten() -> None: ...

    with pytest.raises(ConfigurationError, match=r"forgotten, which is not a task: add @harbor\.task"):
        harbor.schedules.list()
    with pytest.raises(ConfigurationError, match="is not a task"):
        harbor.worker(unknown_types="fail").run(until_idle=True)
    with pytest.raises(ConfigurationError, match="goes on a task"):
        harbor.cron("0 1 * * *")("text")


def test_an_interval_may_be_given_instead(harbor):
    @harbor.cron(every="15m", name="often")
    @harbor.task
    def task() -> None: ...

    [entry] = harbor.schedules.store()
    assert (entry.schedule.name, entry.schedule.every) == ("often", timedelta(minutes=15))


def test_pause_and_resume_outlive_the_next_start_of_the_program(harbor):
    declared(harbor)

    assert harbor.schedules.pause("clean_up").paused
    [entry] = harbor.schedules.store()  # what a restart does
    assert entry.paused
    assert not harbor.schedules.resume("clean_up").paused


def test_a_running_program_declares_its_schedules_again(harbor, clock):
    """Neither puts an old rule back nor brings back what was deleted: old code may run beside new."""
    declared(harbor)
    harbor.schedules.store()
    newer = Harbor("memory://", clock=clock)
    newer.attach(harbor.driver, clock=clock)

    @newer.cron("0 5 * * *", name="clean_up")
    @newer.task
    def clean_up() -> None: ...

    newer.schedules.store()
    clock.advance(timedelta(minutes=20))

    assert harbor.client._block(_renew, harbor) == 1
    assert harbor.client._block(_renew, harbor) == 0
    [entry] = newer.schedules.list()
    assert (entry.schedule.cron, entry.declared_at) == ("0 5 * * *", clock.now())
    harbor.schedules.delete("clean_up")
    assert harbor.client._block(_renew, harbor) == 0
    newer.close()


def test_a_schedule_that_is_deleted_while_it_is_declared_again_stays_away(harbor, clock):
    declared(harbor)
    harbor.schedules.store()
    clock.advance(timedelta(minutes=20))

    async def renew():
        async with harbor.driver.another() as driver:
            looked = driver.schedules

            async def look_then_lose(**options):
                found = await looked(**options)
                await driver.delete_schedule("clean_up")
                return found

            driver.schedules = look_then_lose
            await harbor.schedules.arenew(driver)
            driver.schedules = looked
            return await looked()

    assert harbor.client._block(renew) == []


async def _renew(harbor):
    async with harbor.driver.another() as driver:
        return await harbor.schedules.arenew(driver)


def test_a_schedule_can_be_made_that_is_not_in_the_code(harbor, clock):
    task = declared(harbor)

    entry = harbor.schedules.put("weekly", task.call(days=30), cron="0 4 * * 1", timezone="Europe/Berlin")

    assert (entry.schedule.template.payload, entry.declared_at) == (b'{"days":30}', None)
    assert [one.declared_at for one in harbor.schedules.list()] == [clock.now(), None]
    with pytest.raises(InvalidArgument, match="nosuch"):
        harbor.schedules.put("weekly", task.call(days=30), nosuch=1)
    with pytest.raises(InvalidArgument, match="cron or every"):
        harbor.schedules.put("weekly", task.call(days=30))
    assert harbor.schedules.put("often", task.call(days=1), every="15m").schedule.every == timedelta(
        minutes=15
    )


def test_when_it_fires_next_is_shown_and_nothing_while_it_is_paused(harbor, clock):
    task = declared(harbor)
    harbor.schedules.put("often", task.call(days=1), every="15m")

    now = clock.now()
    coming = harbor.schedules.next("often", 3)

    assert len(coming) == 3
    assert coming[0] - now <= timedelta(minutes=15) < coming[1] - now <= timedelta(minutes=30)
    harbor.schedules.pause("often")
    assert harbor.schedules.next("often") == []
    with pytest.raises(InvalidArgument, match="there is no schedule"):
        harbor.schedules.next("nosuch")


def test_run_makes_its_job_now(harbor):
    declared(harbor)

    one, two = harbor.schedules.run("clean_up"), harbor.schedules.run("clean_up")

    assert one.id != two.id
    assert (one.record.type, one.record.payload, one.state) == ("clean_up", b'{"days":7}', JobState.READY)


def test_a_schedule_can_be_taken_out(harbor):
    declared(harbor)
    harbor.schedules.store()

    assert harbor.schedules.delete("clean_up")
    assert not harbor.schedules.delete("clean_up")
    assert harbor.schedules.list() == []


def test_an_unknown_schedule_lists_those_that_exist(harbor):
    declared(harbor)

    with pytest.raises(InvalidArgument, match="'weekly'; schedules are: clean_up"):
        harbor.schedules.pause("weekly")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"cron": "61 * * * *"}, "not understood"),
        ({"cron": "0 0 31 2 *"}, "cron '0 0 31 2"),
        ({}, "cron or every"),
        ({"cron": "* * * * *", "every": 5}, "cron or every"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "time zone"),
        ({"every": "0.1s"}, "every"),
    ],
)
def test_a_rule_that_cannot_fire_is_refused_when_it_is_declared(harbor, rule, words):
    with pytest.raises(InvalidArgument, match=words):

        @harbor.cron(**rule)
        @harbor.task
        def task() -> None: ...


def test_arguments_are_checked_when_the_rule_is_declared(harbor):
    @harbor.task
    def task(days: int) -> None: ...

    with pytest.raises(PayloadError, match="argument 'days'"):
        harbor.cron("@daily", call=task.call(days="seven"))
    with pytest.raises(TypeError, match="days"):
        harbor.cron("@daily")(task)


def test_two_rules_of_one_name_are_refused(harbor):
    task = declared(harbor)

    with pytest.raises(ConfigurationError, match="two schedules are named 'clean_up'"):
        harbor.cron("0 4 * * *", call=task.call(days=1))
    harbor.cron("0 4 * * *", call=task.call(days=1), name="again")
    assert [schedule.name for schedule in harbor.schedules.declared] == ["again", "clean_up"]


def test_another_store_gets_the_schedules_again(harbor, clock):
    declared(harbor)
    harbor.schedules.store()

    with in_memory(harbor, clock=clock):
        assert len(harbor.schedules.list()) == 1
    assert len(harbor.schedules.list()) == 1
