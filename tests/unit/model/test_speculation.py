"""The rule for a second run, and its way through a header."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from taskharbor.errors import ConfigurationError
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.presence import WorkerInfo, WorkerReport
from taskharbor.model.speculation import (
    LONGEST_HEAD_START,
    SPECULATE_HEADER,
    Speculate,
    head_start,
    header_of,
    rule_of,
)
from taskharbor.model.transitions import new_record

SECOND = timedelta(seconds=1)


def test_a_rule_comes_out_of_its_header_as_it_went_in():
    rule = Speculate(after=timedelta(seconds=1.5), factor=2.25)

    assert rule_of({SPECULATE_HEADER: header_of(rule)}) == rule
    assert rule_of({}) is None


@pytest.mark.parametrize("text", ["", "soon;3", "1;", "1e400;3", "nan;3"])
def test_a_text_that_is_not_ours_counts_as_no_rule(text):
    assert rule_of({SPECULATE_HEADER: text}) is None


@pytest.mark.parametrize(("after", "factor"), [(timedelta(0), 3.0), (-SECOND, 3.0), (SECOND, 0.99)])
def test_a_rule_needs_some_time_and_a_factor_of_at_least_one(after, factor):
    with pytest.raises(ConfigurationError, match="speculate needs"):
        Speculate(after=after, factor=factor)


def test_the_smallest_rule_is_one():
    assert Speculate(after=timedelta(microseconds=1), factor=1).factor == 1


# ------------------------------------------------------------------ a head start for the faster ones

NOW = datetime(2031, 4, 5, tzinfo=UTC)


def job(worker_id: str) -> JobRecord:
    record = new_record(NewJob(id="1", type="work", queue="q", requires="gpu"), 1, NOW)
    return replace(record, worker_id=worker_id)


def worker(name: str, latency: int | None, **fields: object) -> WorkerInfo:
    report = WorkerReport(worker_id=name, kind="gpu", **fields)  # type: ignore[arg-type]
    spent = None if latency is None else timedelta(seconds=latency)
    return WorkerInfo(report=report, seen_at=NOW, expires_at=NOW, latency=spent, samples=1)


FOUR = [worker(name, number) for number, name in enumerate("abcd", 1)]


@pytest.mark.parametrize(
    ("worker_id", "slower"), [("x", ("c", "d")), ("a", ("c", "d")), ("c", ("d",)), ("d", ("c",))]
)
def test_the_slower_half_waits_and_the_worker_of_the_original_does_not_count(worker_id, slower):
    start = head_start(job(worker_id), FOUR, SECOND)

    assert start is not None
    assert start.slower == slower


def test_of_three_workers_the_one_in_the_middle_need_not_wait():
    start = head_start(job("x"), FOUR[:3], SECOND)

    assert start is not None
    assert start.slower == ("c",)


@pytest.mark.parametrize(
    ("worker_id", "ranking"),
    [
        ("x", []),
        ("x", FOUR[:1]),
        ("a", FOUR[:2]),
        ("b", FOUR[:2]),
        ("x", [FOUR[0], worker("new", None)]),
        ("x", [FOUR[0], worker("elsewhere", 9, queues=("other",))]),
        ("x", [FOUR[0], worker("other", 9, types=("other",))]),
        ("x", [FOUR[0], worker("plain", 9, lanes=("any",))]),
    ],
)
def test_where_nobody_faster_is_free_nobody_waits(worker_id, ranking):
    assert head_start(job(worker_id), ranking, SECOND) is None


def test_a_head_start_is_a_part_of_what_the_run_has_cost_and_never_long():
    short, long = head_start(job("x"), FOUR, SECOND), head_start(job("x"), FOUR, timedelta(days=9))

    assert short is not None
    assert timedelta(0) < short.span < SECOND
    assert long is not None
    assert long.span == LONGEST_HEAD_START
