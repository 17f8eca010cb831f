"""Schedules in the store: put, advance, pause, change, delete."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import NewJob, Update
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.testing.conformance.kit import HOUR, MICROSECOND, MINUTE, SECOND, START, TYPE, new_id, new_job

LATER = START + HOUR


def rule(name: str = "nightly", **fields: Any) -> Schedule:
    fields = {"every": MINUTE} | fields if "cron" not in fields else fields
    return Schedule(name=name, template=fields.pop("template", NewJob(id="", type=TYPE)), **fields)


async def only(driver: Driver) -> StoredSchedule:
    [entry] = await driver.schedules(now=START)
    return entry


async def test_a_new_schedule_starts_from_now(driver: Driver) -> None:
    """I18: no tick of the past was ever promised."""
    entry = await driver.put_schedule(rule(), now=START)

    assert (entry.last_tick_at, entry.created_at, entry.updated_at, entry.paused) == (
        START,
        START,
        START,
        False,
    )
    assert await only(driver) == entry


async def test_everything_about_a_schedule_comes_back(driver: Driver) -> None:
    """Q06: its rule, and the job to make in every field."""
    template = new_job(
        id="",
        payload=b"\x00\xff",
        key=b"\x00key",
        update=Update(data=False, run_at="if_later", reset_counts=True),
        headers={"ü": "🐍"},
        priority=-7,
        requires="gpu",
        delay=SECOND + MICROSECOND,
        timeout=MINUTE,
        max_attempts=3,
        max_stalls=4,
        min_backoff=SECOND,
        max_backoff=HOUR,
    )
    given = rule(cron="*/5 3 * * 1", timezone="Europe/Berlin", misfire="all", template=template)

    await driver.put_schedule(given, now=START)

    kept = (await only(driver)).schedule
    for name in ("name", "cron", "every", "timezone", "misfire"):
        assert getattr(kept, name) == getattr(given, name), name
    assert replace(kept.template, id="") == template


async def test_schedules_are_listed_by_name(driver: Driver) -> None:
    """R02: one entry per name."""
    for name in ("b", "a.1", "c", "a"):
        await driver.put_schedule(rule(name), now=START)
    await driver.put_schedule(rule("b"), now=START)

    assert [entry.schedule.name for entry in await driver.schedules(now=START)] == ["a", "a.1", "b", "c"]


async def test_advancing_remembers_the_tick_and_never_goes_back(driver: Driver) -> None:
    """I18: two leaders cannot make a tick come twice."""
    await driver.put_schedule(rule(), now=START)

    assert await driver.advance_schedule("nightly", START + 2 * MINUTE, now=LATER)
    assert await driver.advance_schedule("nightly", START + MINUTE, now=LATER)

    assert (await only(driver)).last_tick_at == START + 2 * MINUTE
    assert not await driver.advance_schedule("unknown", START, now=LATER)


async def test_a_tick_that_made_no_job_is_not_the_last_that_fired(driver: Driver) -> None:
    """A schedule that never fired says so; ticks of a pause and missed ones were dealt with, not fired."""
    await driver.put_schedule(rule(), now=START)
    assert (await only(driver)).fired_at is None

    await driver.advance_schedule("nightly", START + MINUTE, fired=False, now=LATER)
    assert (await only(driver)).fired_at is None
    await driver.advance_schedule("nightly", START + 2 * MINUTE, now=LATER)
    await driver.advance_schedule("nightly", START + 3 * MINUTE, fired=False, now=LATER)
    await driver.advance_schedule("nightly", START + MINUTE, now=LATER)
    await driver.put_schedule(rule(every=HOUR), now=LATER)

    entry = await only(driver)
    assert (entry.last_tick_at, entry.fired_at) == (LATER, START + 2 * MINUTE)


async def test_a_schedule_of_the_code_knows_when_it_was_declared_last(driver: Driver) -> None:
    """And one made by hand has no owner."""
    assert (await driver.put_schedule(rule(), now=START)).declared_at is None

    entry = await driver.put_schedule(rule(declared=True), now=START)
    assert (entry.declared_at, await only(driver)) == (START, entry)
    assert (await driver.put_schedule(rule(declared=True), now=LATER)).declared_at == LATER
    assert (await driver.put_schedule(rule(), now=LATER)).declared_at is None


async def test_to_renew_a_declaration_changes_nothing_else(driver: Driver) -> None:
    """An old program in the middle of a deployment does not put its own rule back."""
    await driver.put_schedule(rule(every=HOUR, declared=True, paused=True), now=START)
    before = await only(driver)

    entry = await driver.put_schedule(rule(declared=True, renews=True), now=LATER)

    assert entry == replace(before, declared_at=LATER)
    assert await only(driver) == entry


async def test_to_renew_what_was_made_by_hand_leaves_it_so(driver: Driver) -> None:
    """Not even its rule changes: it has no owner."""
    before = await driver.put_schedule(rule(), now=START)

    assert await driver.put_schedule(rule(every=HOUR, declared=True, renews=True), now=LATER) == before
    assert await only(driver) == before


async def test_a_tick_that_is_remembered_twice_changes_nothing(driver: Driver) -> None:
    """I18: not even when it was changed last."""
    await driver.put_schedule(rule(), now=START)
    assert await driver.advance_schedule("nightly", START + MINUTE, now=START + MINUTE)
    before = await only(driver)

    assert await driver.advance_schedule("nightly", START + MINUTE, now=LATER)

    assert await only(driver) == before


async def test_the_same_rule_put_again_keeps_its_place(driver: Driver) -> None:
    """I18: a deploy neither repeats nor loses a tick."""
    await driver.put_schedule(rule(), now=START)
    await driver.advance_schedule("nightly", START + MINUTE, now=LATER)

    changed = rule(template=NewJob(id=new_id(), type="kit.other"), misfire="skip")
    entry = await driver.put_schedule(changed, now=LATER)

    assert (entry.last_tick_at, entry.created_at, entry.updated_at) == (START + MINUTE, START, LATER)
    assert (entry.schedule.template.type, entry.schedule.misfire) == ("kit.other", "skip")
    assert await only(driver) == entry


@pytest.mark.parametrize(
    "change", [{"every": HOUR}, {"cron": "@daily"}, {"every": MINUTE, "timezone": "Europe/Berlin"}], ids=str
)
async def test_a_changed_rule_forgets_the_ticks_it_missed(driver: Driver, change: dict[str, Any]) -> None:
    """I18: the new rule starts from now."""
    await driver.put_schedule(rule(), now=START)

    entry = await driver.put_schedule(rule(**change), now=LATER)

    assert (entry.last_tick_at, entry.created_at) == (LATER, START)


async def test_a_changed_rule_does_not_go_back_behind_a_fired_tick(driver: Driver) -> None:
    """I18: a clock that is behind the last leader's changes nothing."""
    await driver.put_schedule(rule(), now=START)
    await driver.advance_schedule("nightly", LATER, now=LATER)

    entry = await driver.put_schedule(rule(every=HOUR), now=START + MINUTE)

    assert entry.last_tick_at == LATER


async def test_a_resumed_schedule_starts_from_now(driver: Driver) -> None:
    """I18: what passed in a pause was meant to pass, whether anybody led meanwhile or not."""
    await driver.put_schedule(rule(paused=True), now=START)
    assert (await driver.put_schedule(rule(), now=START + MINUTE)).last_tick_at == START

    entry = await driver.put_schedule(rule(paused=False), now=LATER)

    assert (entry.paused, entry.last_tick_at) == (False, LATER)
    assert (await driver.put_schedule(rule(paused=False), now=LATER + MINUTE)).last_tick_at == LATER


async def test_a_pause_is_kept_until_somebody_says_otherwise(driver: Driver) -> None:
    """R10: a deploy that says nothing about it does not resume."""
    await driver.put_schedule(rule(), now=START)
    assert (await driver.put_schedule(rule(paused=True), now=START)).paused

    assert (await driver.put_schedule(rule(), now=LATER)).paused
    assert (await driver.put_schedule(rule(every=HOUR), now=LATER)).paused
    assert (await only(driver)).paused
    assert not (await driver.put_schedule(rule(every=HOUR, paused=False), now=LATER)).paused
    assert not (await only(driver)).paused


async def test_a_deleted_schedule_is_gone(driver: Driver) -> None:
    """R07: and one of that name starts from the beginning."""
    await driver.put_schedule(rule(paused=True), now=START)

    assert await driver.delete_schedule("nightly", now=START)
    assert not await driver.delete_schedule("nightly", now=START)

    assert await driver.schedules(now=START) == []
    assert not await driver.advance_schedule("nightly", START, now=START)
    entry = await driver.put_schedule(rule(), now=LATER)
    assert (entry.created_at, entry.last_tick_at, entry.paused) == (LATER, LATER, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a b"},
        {"cron": "0 0 31 2 *"},
        {"cron": "not cron"},
        {"cron": "@daily", "timezone": "Mars/Olympus"},
        {"every": MICROSECOND},
        {"misfire": "sometimes"},
        {"template": NewJob(id="", type="")},
        {"template": NewJob(id="", type=TYPE, queue="*")},
    ],
    ids=str,
)
async def test_a_schedule_that_can_never_fire_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """N15 BM21: and the stored one stays."""
    entry = await driver.put_schedule(rule(), now=START)

    with pytest.raises(InvalidArgument):
        await driver.put_schedule(rule(**fields), now=LATER)

    assert await only(driver) == entry


async def test_every_handle_sees_the_same_schedules(driver: Driver) -> None:
    """I18: the next leader goes on where the last one stopped."""
    async with driver.another() as second:
        await second.put_schedule(rule(), now=START)
        await second.advance_schedule("nightly", START + MINUTE, now=START)

    assert (await only(driver)).last_tick_at == START + MINUTE
