"""When a schedule fires: aliases, clock changes, missed ticks, intervals and tick keys."""

import re
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import MAX_HEADER_BYTES
from taskharbor.model.cron import clock_changes, zone
from taskharbor.model.job import NewJob
from taskharbor.model.schedule import (
    MAX_CATCH_UP,
    SKIP_AFTER,
    Schedule,
    StoredSchedule,
    check_schedule,
    due_ticks,
    is_undeclared,
    made_by,
    stored,
    tick_key,
    ticks,
)

NOW = datetime(2031, 4, 5, 6, 7, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def rule(**fields: Any) -> Schedule:
    given: dict[str, Any] = {"name": "nightly", "template": NewJob(id="", type="report.build")}
    return Schedule(**given | fields)


def entry(last, **fields):
    return StoredSchedule(
        schedule=rule(**fields), paused=False, last_tick_at=last, created_at=last, updated_at=last
    )


def first(count, after, **fields):
    return [tick.isoformat() for tick in islice(ticks(rule(**fields), after), count)]


@pytest.mark.parametrize(
    ("alias", "expected"),
    [
        ("@yearly", "2032-01-01T00:00"),
        ("@annually", "2032-01-01T00:00"),
        ("@monthly", "2031-05-01T00:00"),
        ("@weekly", "2031-04-06T00:00"),
        ("@daily", "2031-04-06T00:00"),
        ("@midnight", "2031-04-06T00:00"),
        ("@hourly", "2031-04-05T07:00"),
        (" @Daily ", "2031-04-06T00:00"),
    ],
)
def test_aliases_mean_what_cron_says(alias, expected):
    assert first(1, NOW, cron=alias) == [expected + ":00+00:00"]


HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("fields", "age", "expected"),
    [
        ({"every": MINUTE}, HOUR - MINUTE, False),
        ({"every": MINUTE}, HOUR, True),
        ({"cron": "0 3 * * *"}, HOUR, False),
        ({"cron": "0 3 * * *"}, DAY, False),  # one tick: a worker that it started may be on its way
        ({"cron": "0 3 * * *"}, 2 * DAY, True),
        ({"every": DAY, "timezone": "Mars/Olympus"}, 9 * DAY, True),
        ({"cron": "0 3 * * *", "timezone": "Mars/Olympus"}, 9 * DAY, False),
    ],
)
def test_code_that_is_silent_for_an_hour_and_two_ticks_is_gone(fields, age, expected):
    silent = replace(entry(NOW, **fields), declared_at=NOW)

    assert is_undeclared(silent, NOW + age) is expected
    assert is_undeclared(replace(silent, declared_at=None), NOW + age) is False


def test_a_tick_at_the_very_instant_is_not_fired_again():
    at_six = datetime(2031, 4, 5, 6, tzinfo=UTC)

    assert first(1, at_six, cron="0 6 * * *") == ["2031-04-06T06:00:00+00:00"]


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4 *"])
def test_a_day_that_never_comes_is_refused(cron):
    with pytest.raises(InvalidArgument, match="cron"):
        check_schedule(rule(cron=cron), NOW)


def test_the_29th_of_february_is_a_day():
    check_schedule(rule(cron="0 0 29 2 *"), NOW)

    assert first(2, NOW, cron="0 0 29 2 *") == ["2032-02-29T00:00:00+00:00", "2036-02-29T00:00:00+00:00"]


BERLIN = "Europe/Berlin"
BEFORE_SPRING = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)  # 00:30 in Berlin; 02:00 jumps to 03:00
BEFORE_AUTUMN = datetime(2026, 10, 24, 22, 30, tzinfo=UTC)  # 00:30 in Berlin; 03:00 falls back to 02:00


def test_a_daily_job_in_the_hour_that_is_skipped_runs_right_after_it():
    assert first(2, BEFORE_SPRING, cron="30 2 * * *", timezone=BERLIN) == [
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]


def test_a_daily_job_in_the_hour_that_comes_twice_runs_once():
    assert first(2, BEFORE_AUTUMN, cron="30 2 * * *", timezone=BERLIN) == [
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]


@pytest.mark.parametrize("start", [BEFORE_SPRING, BEFORE_AUTUMN])
def test_a_job_of_every_half_hour_keeps_its_step_through_a_change(start):
    found = list(islice(ticks(rule(cron="*/30 * * * *", timezone=BERLIN), start), 12))

    assert {later - earlier for earlier, later in pairwise(found)} == {30 * MINUTE}


def test_a_daily_job_fires_once_on_every_day_of_a_year_with_both_changes():
    start = datetime(2025, 12, 31, 23, tzinfo=UTC)
    found = list(islice(ticks(rule(cron="30 2 * * *", timezone=BERLIN), start), 365))

    assert len({tick.date() for tick in found}) == 365
    assert found[-1].isoformat() == "2026-12-31T01:30:00+00:00"


def test_an_interval_ticks_on_multiples_of_itself_whenever_it_is_asked():
    assert first(3, NOW, every=15 * MINUTE) == [
        "2031-04-05T06:15:00+00:00",
        "2031-04-05T06:30:00+00:00",
        "2031-04-05T06:45:00+00:00",
    ]
    assert first(1, NOW + timedelta(seconds=1), every=15 * MINUTE) == ["2031-04-05T06:15:00+00:00"]


def test_an_interval_tick_is_not_repeated_at_its_own_instant():
    assert first(1, datetime(2031, 4, 5, 6, 15, tzinfo=UTC), every=15 * MINUTE) == [
        "2031-04-05T06:30:00+00:00"
    ]


@pytest.mark.parametrize(("now", "due"), [(59, 0), (60, 1), (61, 1), (180, 3)])
def test_a_tick_is_due_from_its_own_instant(now, due):
    last = datetime(2031, 4, 5, tzinfo=UTC)

    assert len(due_ticks(entry(last, every=MINUTE, misfire="all"), last + timedelta(seconds=now))) == due


def test_latest_fires_only_the_newest_missed_tick():
    last = datetime(2031, 4, 5, tzinfo=UTC)

    assert due_ticks(entry(last, every=MINUTE), last + 90.5 * MINUTE) == [last + 90 * MINUTE]


def test_all_makes_up_for_a_bounded_number_oldest_first():
    last = datetime(2031, 4, 5, tzinfo=UTC)
    found = due_ticks(entry(last, every=MINUTE, misfire="all"), last + 250 * MINUTE)

    assert found == [last + n * MINUTE for n in range(251 - MAX_CATCH_UP, 251)]


@pytest.mark.parametrize(("late", "fires"), [(timedelta(0), True), (SKIP_AFTER, True)])
def test_skip_fires_a_tick_that_is_hardly_late(late, fires):
    last = datetime(2031, 4, 5, tzinfo=UTC)
    hourly = entry(last, cron="@hourly", misfire="skip")

    assert bool(due_ticks(hourly, last + timedelta(hours=1) + late)) is fires
    assert due_ticks(hourly, last + timedelta(hours=1) + SKIP_AFTER + timedelta(microseconds=1)) == []


@pytest.mark.parametrize("misfire", ["latest", "all", "skip"])
def test_a_paused_schedule_has_no_due_tick(misfire):
    last = datetime(2031, 4, 5, tzinfo=UTC)
    kept = stored(rule(every=MINUTE, paused=True, misfire=misfire), None, last)

    assert due_ticks(kept, last + timedelta(hours=1)) == []


def test_the_key_of_a_tick_is_its_instant_in_utc():
    berlin = datetime.fromisoformat("2031-04-05T08:00:00+02:00")

    assert tick_key("nightly", berlin) == b"schedule/nightly/2031-04-05T06:00:00Z"
    assert tick_key("nightly", berlin.astimezone(UTC)) == tick_key("nightly", berlin)


def test_neighbouring_ticks_of_an_odd_interval_have_keys_of_their_own():
    found = list(islice(ticks(rule(every=timedelta(seconds=1, milliseconds=100)), NOW), 100))

    assert len({tick_key("odd", tick) for tick in found}) == 100


def test_a_new_schedule_starts_from_now_and_runs():
    kept = stored(rule(every=MINUTE), None, NOW)

    assert (kept.last_tick_at, kept.paused, kept.created_at, kept.updated_at) == (NOW, False, NOW, NOW)


def test_the_same_rule_again_keeps_its_place_and_its_pause():
    before = stored(rule(every=MINUTE, paused=True), None, NOW)
    again = stored(rule(every=MINUTE, paused=UNSET, misfire="all"), before, NOW + MINUTE)

    assert (again.last_tick_at, again.paused, again.created_at, again.updated_at) == (
        NOW,
        True,
        NOW,
        NOW + MINUTE,
    )


@pytest.mark.parametrize(
    "change", [{"every": 2 * MINUTE}, {"every": None, "cron": "@daily"}, {"timezone": BERLIN}]
)
def test_another_rule_forgets_the_ticks_it_missed(change):
    before = stored(rule(every=MINUTE), None, NOW)

    assert stored(rule(**{"every": MINUTE} | change), before, NOW + MINUTE).last_tick_at == NOW + MINUTE


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cron": "@daily", "every": MINUTE},
        {"every": timedelta(milliseconds=999)},
        {"every": timedelta(days=4000)},
        {"cron": ""},
        {"cron": "* * * *"},
        {"cron": "61 * * * *"},
        {"cron": "* " * 200},
        {"cron": "@reboot"},
        {"cron": "@daily", "timezone": "Mars/Olympus"},
        {"cron": "@daily", "timezone": "../../etc/passwd"},
        {"cron": "@daily", "timezone": ""},
        {"cron": "@daily", "misfire": "sometimes"},
        {"cron": "@daily", "name": "a b"},
        {"cron": "@daily", "template": NewJob(id="", type="")},
    ],
)
def test_a_schedule_that_cannot_fire_is_refused(fields):
    with pytest.raises(InvalidArgument):
        check_schedule(rule(**fields), NOW)


def test_the_id_of_a_template_does_not_matter():
    check_schedule(rule(cron="@daily"), NOW)


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 0 31 2 *", "never fires: day 31 does not come in month 2"),
        ("0 0 31 2,4,6 *", "never fires: day 31 does not come in month 2,4,6"),
        ("61 * * * *", "minute takes 0-59"),
        ("0 25 * * *", "hour takes 0-23"),
        ("0 0 32 * *", "day-of-month takes 1-31"),
        ("0 0 * 13 *", "month takes 1-12 or JAN-DEC"),
        ("0 0 * * 8", "day-of-week takes 0-7"),
        ("every day", "has 2 fields; five are needed: minute hour day month weekday"),
        ("@reboot", "there are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(cron, words):
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        check_schedule(rule(cron=cron), NOW)


def test_a_cron_expression_of_a_page_is_refused():
    with pytest.raises(InvalidArgument, match="characters"):
        check_schedule(rule(cron="0 0 " + "1," * 400 + "2 * *"), NOW)


@pytest.mark.parametrize(
    ("expression", "zone", "changes"),
    [
        (
            "30 2 * * *",
            "Europe/Berlin",
            [
                "2026-03-29: 02:30 does not exist; fires at 03:00 instead",
                "2026-10-25: 02:30 comes twice; fires once",
            ],
        ),
        ("0 3 * * *", "Europe/Berlin", []),
        ("30 2 * * 1", "Europe/Berlin", []),
        ("30 2 * * *", "UTC", []),
        ("30 2 * * *", "Asia/Tokyo", []),
        (
            "*/30 1 * * *",
            "Europe/London",
            [
                "2026-03-29: 01:00 to 01:30 does not exist; does not fire",
                "2026-10-25: 01:00 to 01:30 comes twice; fires both times",
            ],
        ),
    ],
)
def test_a_preview_says_what_the_changes_of_the_clock_do(expression, zone, changes):
    assert (
        clock_changes(expression, zone, datetime(2026, 1, 1, tzinfo=UTC))[: len(changes) or None] == changes
    )


def test_a_preview_agrees_with_the_ticks():
    [gap, twice, *_] = clock_changes("30 2 * * *", "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC))
    rule = Schedule(name="s", template=NewJob(id="", type="t"), cron="30 2 * * *", timezone="Europe/Berlin")
    in_march = next(ticks(rule, datetime(2026, 3, 28, 12, tzinfo=UTC)))
    in_october = list(islice(ticks(rule, datetime(2026, 10, 24, 12, tzinfo=UTC)), 2))

    assert in_march.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") in gap
    assert [tick.day for tick in in_october] == [25, 26]
    assert "once" in twice


def test_a_job_carries_the_name_and_the_rule_of_its_schedule():
    nightly = rule(
        cron="0 3 * * *", timezone="Europe/Berlin", template=NewJob(id="", type="t", headers={"a": "b"})
    )

    assert made_by(nightly) == {
        "a": "b",
        "taskharbor-schedule": "nightly",
        "taskharbor-schedule-rule": '{"cron":"0 3 * * *","timezone":"Europe/Berlin"}',
    }
    assert made_by(rule(every=MINUTE))["taskharbor-schedule-rule"] == '{"every_seconds":60.0}'


def test_a_rule_without_room_is_left_out():
    full = NewJob(id="", type="t", headers={"a": "x" * (MAX_HEADER_BYTES - 40)})

    assert list(made_by(rule(every=MINUTE, template=full))) == ["a", "taskharbor-schedule"]


@pytest.mark.parametrize("name", ["Mars/Base", "a." * 1_000_000])
def test_a_time_zone_that_does_not_exist_is_refused_however_long_its_name_is(name):
    with pytest.raises(InvalidArgument, match="is not known; use a name like") as refused:
        zone(name)

    assert len(str(refused.value)) < 120
