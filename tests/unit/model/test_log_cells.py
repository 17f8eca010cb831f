"""Cells of the logbook: packed and unpacked without loss, added up, and bounded."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from taskharbor.model.entropy import Entropy
from taskharbor.model.log_cells import (
    BOUNDS,
    BUCKETS,
    MAX_CAUSES,
    MAX_PAIRS,
    OTHER,
    CauseNumbers,
    Fire,
    Level,
    Numbers,
    packed,
    sum_of_causes,
    sum_of_numbers,
    unpacked,
)
from taskharbor.model.logbook import MAX_CELL

AT = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)


def numbers(queue: str = "mail", type_name: str = "send", **fields: Any) -> Numbers:
    row = Numbers(queue, type_name, **fields)
    row.ran([0.0005, 0.003, 70.0])
    row.waited([AT - timedelta(seconds=2)], AT)
    return row


def cause(name: str = "c1", queue: str = "mail", at: int = 10, **fields: object) -> CauseNumbers:
    row = CauseNumbers(name, queue, "send", "Boom: …", "app.py in send", "error", 1, 0, at, at, "job-1", "r1")
    return msgspec.structs.replace(row, **fields)


@pytest.mark.parametrize(
    "rows", [[], [numbers(), numbers("push")], [cause()], [Level("mail", 3, 2, 1, 0, 7.5)], [Fire("job-1")]]
)
def test_a_cell_comes_back_as_it_was(rows):
    kind = type(rows[0]) if rows else Numbers

    assert unpacked(packed(rows), kind) == rows


@pytest.mark.parametrize(
    "data", [b"", b"junk", zlib.compress(b"junk"), zlib.compress(msgspec.msgpack.encode((2, [[1]])))]
)
def test_a_cell_that_this_release_cannot_read_is_empty(data):
    assert unpacked(data, Numbers) == []


def test_a_value_is_in_the_bucket_whose_bound_it_does_not_pass():
    row = Numbers("q", "t")
    row.ran([0.001, 0.0011, 0.002, BOUNDS[-1], BOUNDS[-1] + 1])

    assert (row.run[0], row.run[1], row.run[BUCKETS - 2], row.run[BUCKETS - 1]) == (1, 2, 1, 1)
    assert row.run_sum == pytest.approx(0.0041 + 2 * BOUNDS[-1] + 1)
    assert [high / low for low, high in pairwise(BOUNDS)] == [2.0] * (BUCKETS - 2)


@pytest.mark.parametrize("total", [3, 4, 10, 1000])
def test_a_sample_represents_all(total):
    row = Numbers("q", "t")
    row.ran([0.001, 0.5, 70.0], total)

    assert sum(row.run) == total
    assert max(row.run) - min(filter(None, row.run)) <= 1
    assert row.run_sum == pytest.approx(70.501 / 3 * total)


def test_jobs_of_one_call_are_counted_like_single_ones():
    since = [AT - timedelta(milliseconds=number % 7) for number in range(50)]
    together, alone, same = Numbers("q", "t"), Numbers("q", "t"), Numbers("q", "t")

    together.waited(since, AT)
    for one in since:
        alone.waited([one], AT)
    same.waited([AT - timedelta(seconds=3)] * 4, AT)

    assert together.wait == alone.wait
    assert together.wait_sum == pytest.approx(alone.wait_sum)
    assert (sum(same.wait), same.wait_sum) == (4, 12.0)


def test_adding_up_is_the_same_in_any_order_and_in_parts():
    cells = [
        [numbers(f"q{(cell * place) % 5}", completed=cell, failed=place) for place in range(6)]
        for cell in range(9)
    ]
    whole = sum_of_numbers(cells)
    shuffled = cells[3:][::-1] + cells[:3]
    in_parts = sum_of_numbers([sum_of_numbers(shuffled[:4]), sum_of_numbers(shuffled[4:])])

    def plain(rows):
        return sorted((row.queue, row.completed, row.failed, row.wait, row.run) for row in rows)

    assert plain(in_parts) == plain(whole)
    assert sum(row.completed for row in whole) == sum(row.completed for cell in cells for row in cell)


def test_adding_up_leaves_what_it_was_given_alone():
    first, second = [numbers(completed=1)], [numbers(completed=2)]

    [row] = sum_of_numbers([first, second])

    assert (row.completed, first[0].completed, sum(first[0].run)) == (3, 1, 3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cause_keeps_the_releases_that_saw_it_first_and_last(order):
    seen = [
        cause(at=10, release="r1", first_release="r1"),
        cause(at=20, release="r2", first_release="r2"),
    ]

    [row] = sum_of_causes([[seen[place]] for place in order])

    assert (row.first_release, row.release) == ("r1", "r2")


def test_cells_of_causes_are_read_by_older_and_newer_programs():
    """An older program knows no first release: it ignores the last field, and its own rows lack it."""
    row = cause(at=10, release="r2", first_release="r1")
    fields = msgspec.to_builtins(row)
    older = zlib.compress(msgspec.msgpack.encode((1, [fields[:-1]])))
    newer = zlib.compress(msgspec.msgpack.encode((1, [[*fields, "a later field"]])))

    assert [one.first_release for one in unpacked(older, CauseNumbers)] == [""]
    assert unpacked(newer, CauseNumbers) == [row]


def test_beyond_so_many_pairs_the_others_share_one_row():
    cells = [[numbers(f"q{number}", completed=1) for number in range(MAX_PAIRS + 50)] for _ in range(2)]

    rows = sum_of_numbers([*cells, [numbers(OTHER, OTHER, completed=5)]])

    assert len(rows) == MAX_PAIRS + 1
    [other] = [row for row in rows if row.queue == OTHER]
    assert (other.type, other.completed) == (OTHER, 105)


def test_a_cause_keeps_its_first_and_its_last_failure():
    cells = [
        [cause(at=20, sample="late", release="r2", retried=2)],
        [cause(at=10, sample="early"), cause(queue="push")],
        [cause("c2", dead=1)],
    ]

    rows = {(row.cause, row.queue): row for row in sum_of_causes(cells)}

    merged = rows["c1", "mail"]
    assert (merged.retried, merged.first_at, merged.last_at) == (3, 10, 20)
    assert (merged.sample, merged.release) == ("late", "r2")
    assert len(rows) == 3


def test_beyond_so_many_causes_the_others_share_one_row():
    rows = sum_of_causes([[cause(f"c{number}", dead=1) for number in range(MAX_CAUSES + 3)]])

    assert len(rows) == MAX_CAUSES + 1
    assert (rows[-1].cause, rows[-1].dead, rows[-1].title) == (OTHER, 3, "Other causes")


def test_a_cell_never_grows_beyond_its_limit():
    name = Entropy(1).bytes(50_000).hex()
    rows = [numbers(name[at : at + 128], name[at + 128 : at + 256]) for at in range(0, 90_000, 256)]

    data = packed(rows)

    assert len(data) <= MAX_CELL
    kept = unpacked(data, Numbers)
    assert kept == rows[: len(kept)]
    assert len(kept) > 100
