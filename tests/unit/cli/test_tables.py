"""Tables on a terminal: nothing is cut, whatever the width."""

import csv
import io
from collections import Counter

import pytest
from rich.cells import cell_len

from taskharbor.cli.tables import Column, fitted_table, short_ids, write_csv

IDS = ["01a1de6c-6ffa-7b64-a142-da4a1a77f526", "01a1de6c-6ffa-7b64-9f3a-6aa1afc95af6"]
ID = Column("ID", lambda item: item["id"], is_id=True)
TYPE = Column("TYPE", lambda item: item["type"])
COUNT = Column("SCHEDULED", lambda item: item["count"], is_number=True, narrow="SCHED")
AGE = Column("AGE", lambda item: item["age"], spare=1)
ERROR = Column("ERROR", lambda item: item["error"], is_below=True)


def lines(columns, items, width):
    return ["".join(text for text, _ in line) for line in fitted_table(columns, items, width)]


def job(at=0, **fields):
    return {"id": IDS[at], "type": "send", "count": 7, "age": "3m ago", "error": None, **fields}


def test_a_table_with_room_is_one_line_per_item():
    table = lines((ID, TYPE, AGE, ERROR), [job(error="boom")], 80)

    assert table == [f"ID{' ' * 36}TYPE  AGE     ERROR", f"{IDS[0]}  send  3m ago  boom"]


def test_ids_are_shortened_first():
    assert lines((ID, TYPE, ERROR), [job(error="boom"), job(1)], 44) == [
        "ID        TYPE  ERROR",
        "1a77f526  send  boom",
        "afc95af6  send  -",
    ]


def test_a_long_text_goes_below_its_row_and_is_kept_whole():
    error = "the mail server did not answer within thirty seconds"

    table = lines((ID, TYPE, ERROR), [job(error=error), job(1)], 44)

    assert table == [
        f"ID{' ' * 36}TYPE",
        f"{IDS[0]}  send",
        "  error: the mail server did not answer",
        "  within thirty seconds",
        f"{IDS[1]}  send",
    ]


def test_short_parts_share_a_line_below_the_row():
    zone = Column("ZONE", lambda item: "UTC", is_below=True)
    queue = Column("QUEUE", lambda item: "q" * 30, is_below=True)

    assert lines((TYPE, zone, queue), [job()], 40) == ["TYPE", "send", "  zone: UTC", f"  queue: {'q' * 30}"]
    assert lines((TYPE, AGE, zone, ERROR), [job(error="boom")], 24) == [
        "TYPE  AGE",
        "send  3m ago",
        "  zone: UTC  error: boom",
    ]


def test_then_empty_columns_and_those_that_can_be_spared_are_left_out():
    empty = Column("KEY", lambda item: None)

    assert lines((ID, TYPE, empty, AGE), [job()], 16) == ["ID        TYPE", "1a77f526  send"]
    assert lines((ID, TYPE, empty, AGE), [job()], 22) == ["ID        TYPE  AGE", "1a77f526  send  3m ago"]


def test_titles_of_numbers_become_shorter_and_numbers_are_never_broken():
    assert lines((TYPE, COUNT), [job(count=123456)], 12) == ["TYPE   SCHED", "send  123456"]


def test_what_is_still_too_wide_is_wrapped_behind_a_sign():
    assert lines((ID, TYPE), [job(type="billing.invoices.send_reminder")], 30) == [
        "ID        TYPE",
        "1a77f526  billing.invoices.",
        "          send_reminder",
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 120, 200])
def test_no_character_is_lost_and_no_line_is_too_long(width):
    items = [
        job(type="x" * 90, error="word " * 40 + "y" * 200),
        job(1, type="日本語のタスク名" * 4, error="=cmd; /very/long/path-with.signs" * 5),
    ]

    table = lines((ID, TYPE, COUNT, ERROR), items, width)

    wanted = "".join(item["type"] + item["error"] for item in items).replace(" ", "")
    assert not Counter(wanted) - Counter("".join(table))
    assert width < 40 or max(cell_len(line) for line in table) <= width


def test_short_ids_are_longer_where_they_would_be_alike():
    alike = [f"01a1de6c-6ffa-7b64-a142-{n}a4a1a77f526" for n in (1, 2)]

    assert short_ids(IDS) == ["1a77f526", "afc95af6"]
    assert short_ids(alike) == ["1a4a1a77f526", "2a4a1a77f526"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'=1"),
        ("-12", "-12"),
        ("+1.5", "+1.5"),
        ("plain=1", "plain=1"),
    ],
)
def test_a_csv_cell_is_never_a_formula(value: str, cell: str) -> None:
    """Spreadsheets run what begins like one; an error text or a key may come from anybody."""
    stream = io.StringIO()
    write_csv(stream, [Column("a", lambda item: item["a"])], [{"a": value}])

    assert list(csv.reader(io.StringIO(stream.getvalue()))) == [["a"], [cell]]
