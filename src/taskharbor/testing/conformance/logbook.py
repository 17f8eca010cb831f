"""LB: the logbook. Cells are kept, replaced, merged and forgotten, and never looked into."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_pages import each_entry
from taskharbor.errors import InvalidArgument
from taskharbor.model.logbook import MAX_CELL, MAX_ENTRIES, LogEntry, LogKey
from taskharbor.testing.conformance.kit import HOUR, MICROSECOND, MINUTE, SECOND, START, requires, row

BOOK = "kit.1m"
DAY = timedelta(days=1)


def cell(at: datetime = START, by: str = "w", data: bytes = b"cell", **fields: Any) -> LogEntry:
    named: dict[str, Any] = {"book": BOOK, "at": at, "by": by, "data": data, "until": START + DAY}
    return LogEntry(**(named | fields))


async def read(
    driver: Driver,
    *,
    book: str = BOOK,
    since: datetime = START - HOUR,
    until: datetime = START + HOUR,
    now: datetime = START,
    **options: Any,
) -> list[LogEntry]:
    return await driver.read_log(book, since, until, now=now, **options)


async def test_a_cell_comes_back_as_it_was_written(driver: Driver) -> None:
    """LB01: every byte, every microsecond, any writer."""
    requires(driver, "logbook")
    entries = [
        cell(START + MICROSECOND, "", bytes(range(256))),
        cell(START + 2 * MICROSECOND, "wörker 1:2/3 🐍", b"", until=START + DAY + MICROSECOND),
        cell(START + 3 * MICROSECOND, "x" * 255, b"\x00" * MAX_CELL),
    ]

    await driver.write_log(entries, now=START)

    assert await read(driver) == entries


async def test_a_cell_that_is_written_again_is_replaced(driver: Driver) -> None:
    """LB02: with its time; those of other writers, instants and books stay."""
    requires(driver, "logbook")
    others = [cell(by="v"), cell(START + MINUTE), cell(book="kit.other")]
    await driver.write_log([cell(), *others], now=START)

    again = cell(data=b"more", until=START + HOUR)
    await driver.write_log([again], now=START)
    await driver.write_log([again], now=START)

    assert await read(driver) == [others[0], again, others[1]]
    assert await read(driver, book="kit.other") == [others[2]]


async def test_a_range_has_its_beginning_and_not_its_end(driver: Driver) -> None:
    """LB03: by instant, then by writer; the newest first is the exact reverse; `limit` cuts."""
    requires(driver, "logbook")
    entries = [
        cell(START + number * MINUTE, by) for number in range(4) for by in ("", "B", "a", "a-1", "ab", "é")
    ]
    await driver.write_log(entries[::-1], now=START)
    middle: dict[str, Any] = {"since": START + MINUTE, "until": START + 3 * MINUTE}

    assert await read(driver) == entries
    assert await read(driver, newest_first=True) == entries[::-1]
    assert await read(driver, **middle) == entries[6:18]
    assert await read(driver, **middle, newest_first=True) == entries[6:18][::-1]
    assert await read(driver, **middle, limit=8) == entries[6:14]
    assert await read(driver, **middle, limit=8, newest_first=True) == entries[10:18][::-1]
    assert await read(driver, since=START, until=START) == []
    assert await read(driver, since=START + HOUR, until=START) == []
    assert await read(driver, book="kit.never") == []


async def test_a_range_is_read_page_by_page(driver: Driver) -> None:
    """LB03: every cell once in either direction, with more instants than fit a page."""
    requires(driver, "logbook")
    entries = [cell(START + number * SECOND, by) for number in range(30) for by in ("a", "b", "c")]
    await driver.write_log(entries, now=START)
    span = (BOOK, START, START + HOUR)

    found = [entry async for entry in each_entry(driver, *span, page=7, now=START)]
    backwards = each_entry(driver, *span, page=7, newest_first=True, now=START)

    assert found == entries
    assert [entry async for entry in backwards] == entries[::-1]


async def test_a_range_of_many_instants_comes_whole(driver: Driver) -> None:
    """LB03: a store may look at a hundred instants at a time; it goes on until it has enough."""
    requires(driver, "logbook")
    entries = [cell(START + number * SECOND) for number in range(250)]
    for first in range(0, 250, MAX_ENTRIES):
        await driver.write_log(entries[first : first + MAX_ENTRIES], now=START)

    assert await read(driver) == entries
    assert await read(driver, newest_first=True, limit=120) == entries[:-121:-1]


async def test_cells_become_one_in_one_step(driver: Driver) -> None:
    """LB04: what is named goes, what is written stays, a cell that is not there does not matter."""
    requires(driver, "logbook")
    parts = [cell(by=f"w-{number}") for number in range(5)]
    other = cell(START + MINUTE, "w-1")
    await driver.write_log([*parts, other], now=START)
    names = [part.key for part in parts]
    merged = cell(by="", data=b"all")

    await driver.write_log([merged], instead_of=[*names, LogKey(BOOK, START, "never")], now=START)
    assert await read(driver) == [merged, other]

    await driver.write_log([], instead_of=[other.key], now=START)
    await driver.write_log([merged], instead_of=[merged.key], now=START)
    await driver.write_log([], now=START)
    assert await read(driver) == [merged]
    assert await read(driver, newest_first=True) == [merged]


async def test_of_two_cells_with_one_key_the_last_counts(driver: Driver) -> None:
    """LB04: also when their instants are written in two time zones."""
    requires(driver, "logbook")
    there = START.astimezone(timezone(timedelta(hours=9)))

    await driver.write_log([cell(data=b"first"), cell(there, data=b"last")], now=START)

    assert await read(driver) == [cell(data=b"last")]
    await driver.write_log([], instead_of=[LogKey(BOOK, there, "w")], now=START)
    assert await read(driver, since=there - HOUR, until=there + HOUR) == []


async def test_a_cell_past_its_time_is_not_read(driver: Driver) -> None:
    """LB05: from that microsecond on, whether it was pruned or not."""
    requires(driver, "logbook")
    end = START + MINUTE
    await driver.write_log([cell(until=end), cell(by="x", until=end + SECOND)], now=START)

    assert [entry.by for entry in await read(driver, now=end - MICROSECOND)] == ["w", "x"]
    assert [entry.by for entry in await read(driver, now=end)] == ["x"]
    assert [entry.by for entry in await read(driver, now=end, limit=1)] == ["x"]
    assert await read(driver, now=end + SECOND) == []


async def test_prune_forgets_cells_past_their_time(driver: Driver) -> None:
    """LB05: only those, and so many at a time; they count as no job."""
    requires(driver, "logbook")
    end = START + MINUTE
    old = [cell(START + number * SECOND, until=end) for number in range(5)]
    kept = [cell(START + 9 * SECOND, until=end + MICROSECOND)]
    await driver.write_log([*old, *kept], now=START)

    assert await driver.prune(now=end - MICROSECOND) == 0
    assert await read(driver) == [*old, *kept]
    assert await driver.prune(2, now=end) == 0
    assert len(await read(driver)) == 4
    for _ in range(2):
        await driver.prune(2, now=end)
    assert await read(driver) == kept

    await driver.write_log(old[:1], now=START)  # an instant that was forgotten may come back
    assert await read(driver) == [*old[:1], *kept]


async def test_what_is_no_cell_is_refused(driver: Driver) -> None:
    """LB06: and nothing of the call is written."""
    requires(driver, "logbook")
    bad: dict[str, list[LogEntry]] = {
        "too large": [cell(), cell(by="x", data=b"\x00" * (MAX_CELL + 1))],
        "a book with a blank": [cell(), cell(book="a b")],
        "a book without a name": [cell(), cell(book="")],
        "a long writer": [cell(), cell(by="x" * 256)],
        "a writer with a line": [cell(), cell(by="a\nb")],
        "no time zone": [cell(), cell(START.replace(tzinfo=None))],
        "an end without a time zone": [cell(), cell(by="x", until=START.replace(tzinfo=None))],
        "no bytes": [cell(), cell(by="x", data="text")],  # type: ignore[arg-type]
        "too many": [cell(START + number * SECOND) for number in range(MAX_ENTRIES + 1)],
    }
    for name, entries in bad.items():
        with row(name), pytest.raises(InvalidArgument):
            await driver.write_log(entries, now=START)
    with pytest.raises(InvalidArgument):
        await driver.write_log([cell()], instead_of=[LogKey("a b", START, "")], now=START)

    assert await read(driver) == []


async def test_what_is_no_question_is_refused(driver: Driver) -> None:
    """LB06: a name, two instants, a number of cells."""
    requires(driver, "logbook")
    naive = START.replace(tzinfo=None)
    wrong: list[dict[str, Any]] = [
        {"book": ""},
        {"since": naive},
        {"until": naive},
        {"limit": 0},
        {"limit": 10_001},
    ]
    for asked in wrong:
        with row(asked), pytest.raises(InvalidArgument):
            await read(driver, **asked)


async def test_a_store_without_a_logbook_says_so(driver: Driver) -> None:
    """LB07: nothing is written to nowhere."""
    if driver.capabilities.logbook:
        pytest.skip("this driver keeps a logbook")
    with pytest.raises(InvalidArgument):
        await driver.write_log([cell()], now=START)
    with pytest.raises(InvalidArgument):
        await read(driver)


async def test_every_handle_writes_and_reads_the_same_book(driver: Driver) -> None:
    """LB08: writers of one instant do not get into each other's way, nor into that of a merge."""
    requires(driver, "logbook")
    parts = [cell(by=f"w-{number}") for number in range(10)]
    late = [cell(by=f"w-{number}", data=b"late") for number in range(10, 20)]
    await driver.write_log(parts, now=START)

    async with driver.another() as second:
        merge = driver.write_log(
            [cell(by="", data=b"all")], instead_of=[part.key for part in parts], now=START
        )
        await asyncio.gather(
            merge,
            *((driver, second)[place % 2].write_log([one], now=START) for place, one in enumerate(late)),
        )
        found = await read(second)

    assert found == [cell(by="", data=b"all"), *late]
    assert await read(driver) == found


async def test_the_stores_own_clock_keeps_cells(driver: Driver) -> None:
    """LB09: as in production, without a given `now`."""
    requires(driver, "logbook")
    at = (await driver.info()).at
    entries = [cell(at, until=at + DAY), cell(at, "x", until=at + HOUR), cell(at, "y", until=at - HOUR)]

    await driver.write_log(entries)
    await driver.write_log(entries[1:2])

    assert await driver.read_log(BOOK, at - HOUR, at + HOUR) == entries[:2]
    await driver.prune()
    assert await driver.read_log(BOOK, at - HOUR, at + HOUR) == entries[:2]
