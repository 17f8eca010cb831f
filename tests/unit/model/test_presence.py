"""Averages of durations, and who is fastest."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.model.presence import WorkerInfo, WorkerReport, fold, lanes_of, ranked, takes

NOW = datetime(2031, 4, 5, tzinfo=UTC)


def ms(number):
    return timedelta(milliseconds=number)


def worker(worker_id, latency):
    return WorkerInfo(
        report=WorkerReport(worker_id=worker_id), seen_at=NOW, expires_at=NOW, latency=latency, samples=1
    )


def test_the_first_sample_is_taken_as_it_is_and_the_next_weighs_a_fifth():
    assert fold(None, ms(100)) == ms(100)
    assert fold(ms(100), ms(200)) == ms(120)
    assert fold(fold(fold(None, ms(100)), ms(200)), ms(20)) == ms(100)


def test_a_negative_sample_counts_as_nothing():
    assert fold(None, ms(-5)) == ms(0)
    assert fold(ms(100), ms(-100)) == ms(80)


def test_the_fastest_come_first_and_the_unknown_last():
    workers = [
        worker("b", None),
        worker("slow", ms(9)),
        worker("a", None),
        worker("fast", ms(0)),
        worker("c", ms(9)),
    ]

    assert [info.report.worker_id for info in ranked(workers)] == ["fast", "c", "slow", "a", "b"]


def test_a_worker_that_names_nothing_takes_every_queue_and_type_of_the_lane_any():
    report = WorkerReport(worker_id="w")

    assert takes(report, queue="mail", lane="any", type_name="send")
    assert not takes(report, queue="mail", lane="gpu", type_name="send")


def test_a_worker_takes_only_what_it_names():
    report = WorkerReport(worker_id="w", kind="gpu", queues=("mail",), types=("send",))

    assert takes(report, queue="mail", lane="gpu", type_name="send")
    assert takes(report, queue="mail", lane="any", type_name="send")
    assert not takes(report, queue="other", lane="gpu", type_name="send")
    assert not takes(report, queue="mail", lane="cpu", type_name="send")
    assert not takes(report, queue="mail", lane="gpu", type_name="other")


@pytest.mark.parametrize(
    ("kind", "said", "lanes"),
    [("any", (), ("any",)), ("gpu", (), ("gpu", "any")), ("gpu", ("big", "gpu"), ("big", "gpu"))],
)
def test_lanes_follow_from_the_kind_unless_they_are_named(kind, said, lanes):
    assert lanes_of(WorkerReport(worker_id="w", kind=kind, lanes=said)) == lanes
