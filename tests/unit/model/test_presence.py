"""Averages of durations, and who is fastest."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.model.presence import (
    Sample,
    TypeInfo,
    WorkerInfo,
    WorkerReport,
    fold,
    lanes_of,
    learned,
    ranked,
    reported,
    role_after,
    role_released,
    takes,
)

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
    ("kind", "given", "lanes"),
    [("any", (), ("any",)), ("gpu", (), ("gpu", "any")), ("gpu", ("big", "gpu"), ("big", "gpu"))],
)
def test_lanes_follow_from_the_kind_unless_they_are_named(kind, given, lanes):
    assert lanes_of(WorkerReport(worker_id="w", kind=kind, lanes=given)) == lanes


def test_a_report_goes_on_with_the_average_until_the_last_one_expires():
    report, second = WorkerReport(worker_id="w"), timedelta(seconds=1)
    first = reported(None, report, [Sample("t", ms(100))], second, NOW)

    in_time = reported(first, report, [Sample("t", ms(200))], second, NOW + second - ms(1))
    late = reported(first, report, [], second, NOW + second)

    assert (in_time.latency, in_time.samples) == (ms(120), 2)
    assert (late.latency, late.samples, late.expires_at) == (None, 0, NOW + 2 * second)


def test_types_learn_from_their_own_samples_in_order():
    known = {"a": TypeInfo("a", ms(100), 3), "c": TypeInfo("c", ms(1), 1)}
    samples = [Sample("a", ms(200)), Sample("b", ms(50)), Sample("a", ms(120))]

    assert learned(known, samples) == {"a": TypeInfo("a", ms(120), 5), "b": TypeInfo("b", ms(50), 1)}


def test_a_role_changes_hands_with_a_new_term_when_it_expires_or_is_released():
    second = timedelta(seconds=1)
    mine = role_after(None, "leader", "a", second, NOW)
    renewed = role_after(mine, "leader", "a", second, NOW + ms(1))
    refused = role_after(renewed, "leader", "b", second, NOW + ms(2))
    released = role_released(renewed, "a", NOW + ms(3))

    assert (mine.term, mine.is_mine) == (1, True)
    assert (renewed.term, renewed.expires_at) == (1, NOW + second + ms(1))
    assert (refused.holder, refused.term, refused.is_mine) == ("a", 1, False)
    assert role_released(renewed, "b", NOW) is None
    assert role_after(renewed, "leader", "b", second, renewed.expires_at).term == 2
    assert role_after(released, "leader", "a", second, NOW + ms(3)).term == 2
