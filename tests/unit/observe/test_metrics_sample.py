"""Samples of several processes: how they travel, become one, and what is left of one that is gone."""

from __future__ import annotations

import os

import pytest

from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.metrics_sample import Histogram, MetricsSample, decoded, encoded, folded
from taskharbor.observe.multiprocess import MultiprocessMetrics, report_to


def sample(count: float, busy: float = 1.0, lag: float = 0.0) -> MetricsSample:
    return MetricsSample(
        {metric_names.LEASES_LOST.name: {("mail",): count}},
        {metric_names.WORKER_BUSY.name: {("any",): busy}, metric_names.HEARTBEAT_LAG.name: {("any",): lag}},
        {
            metric_names.STORE_OP.name: {
                ("get",): Histogram([1] * (len(metric_names.STORE_OP.buckets) + 1), count)
            }
        },
    )


def test_a_sample_travels_unchanged():
    assert decoded(encoded(sample(3, 2, 0.5))) == sample(3, 2, 0.5)


def test_counts_and_slots_are_added_and_of_lags_the_worst_counts():
    whole = folded([sample(3, busy=2, lag=0.5), sample(4, busy=1, lag=7.0)])

    assert whole.counters[metric_names.LEASES_LOST.name] == {("mail",): 7}
    assert whole.gauges[metric_names.WORKER_BUSY.name] == {("any",): 3}
    assert whole.gauges[metric_names.HEARTBEAT_LAG.name] == {("any",): 7.0}
    assert whole.curves[metric_names.STORE_OP.name]["get",].counts == [2] * (
        len(metric_names.STORE_OP.buckets) + 1
    )


def test_folding_leaves_the_parts_as_they_are():
    one, other = sample(3), sample(4)

    folded([one, other])

    assert (one, other) == (sample(3), sample(4))


def test_what_a_crashed_process_counted_is_kept_and_its_gauges_go_with_it():
    fleet = MultiprocessMetrics(Meter())
    fleet.started(1)
    fleet.started(2)
    fleet.reported(1, encoded(sample(3, busy=2)))
    fleet.reported(2, encoded(sample(4, busy=1)))

    fleet.ended(1, "crashed")
    after = fleet.sample()

    assert after.counters[metric_names.LEASES_LOST.name] == {("mail",): 7}
    assert after.gauges[metric_names.WORKER_BUSY.name] == {("any",): 1}
    assert after.gauges[metric_names.WORKER_PROCESSES.name] == {(): 1}
    assert after.counters[metric_names.PROCESS_ENDS.name] == {("crashed",): 1, ("recycled",): 0, ("done",): 0}


def test_a_successor_starts_from_nothing_and_no_counter_ever_falls():
    fleet = MultiprocessMetrics(Meter())
    seen = []
    for pid in (1, 2, 3):
        fleet.started(pid)
        for count in (1, 5):
            fleet.reported(pid, encoded(sample(count)))
            seen.append(fleet.sample().counters[metric_names.LEASES_LOST.name]["mail",])
        fleet.ended(pid, "recycled")

    assert seen == sorted(seen)
    assert fleet.sample().counters[metric_names.LEASES_LOST.name] == {("mail",): 15}
    assert fleet.sample().counters[metric_names.PROCESS_ENDS.name]["recycled",] == 3


def test_a_report_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture):
    fleet = MultiprocessMetrics(Meter())
    fleet.started(1)
    fleet.reported(1, encoded(sample(3)))

    fleet.reported(1, b"\xff nonsense")

    assert fleet.sample().counters[metric_names.LEASES_LOST.name] == {("mail",): 3}
    assert "sent invalid metrics" in caplog.text


def test_the_last_words_of_a_process_are_its_newest_numbers():
    ear, mouth = os.pipe()
    meter = Meter()
    end = report_to(mouth, meter)
    meter.add(metric_names.LEASES_LOST, ("mail",), 9)

    end()

    with os.fdopen(ear, "rb") as pipe:
        data = pipe.read()
    size = int.from_bytes(data[:4], "big")
    assert len(data) == 4 + size
    assert decoded(data[4:]).counters[metric_names.LEASES_LOST.name] == {("mail",): 9}


def test_a_supervisor_that_is_gone_stops_nobody():
    ear, mouth = os.pipe()
    end = report_to(mouth, Meter())
    os.close(ear)

    end()
