"""The page of metrics, read back by the parsers of those who will read it."""

from __future__ import annotations

import urllib.request
from functools import partial

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from taskharbor.errors import ConfigurationError
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.metric_names import ALL
from taskharbor.observe.metrics import Exposition, TaskHarborCollector
from taskharbor.testing.servers import free_port


def busy_meter() -> Meter:
    """One value of every metric there is."""
    meter = Meter()
    for metric in ALL.values():
        labels = tuple(f'"{label}"\n' for label in metric.labels)  # nothing in a name may break the page
        if metric.kind == "counter":
            meter.add(metric, labels, 2)
        elif metric.kind == "histogram":
            meter.observe(metric, labels, 0.02)
        else:
            values = {metric.name: {labels: 3.0}}
            meter.ask(partial(dict, values))
    return meter


def test_every_metric_is_on_the_page_under_its_name_and_labels():
    page, content_type = Exposition(busy_meter().sample).page()

    samples = [sample for family in parse(page.decode()) for sample in family.samples]
    found = {sample.name: sample for sample in samples if sample.value}
    assert content_type.startswith("text/plain")
    for metric in ALL.values():
        name = f"{metric.name}_sum" if metric.kind == "histogram" else metric.name
        assert set(found[name].labels) == set(metric.labels)
        assert found[name].value == {"counter": 2, "gauge": 3, "histogram": 0.02}[metric.kind]


def test_buckets_are_cumulative_and_end_with_everything():
    meter = Meter()
    for seconds in (0.0001, 0.02, 0.02, 99.0):
        meter.observe(metric_names.STORE_OP, ("get",), seconds)
    page, _ = Exposition(meter.sample).page()

    buckets = {
        sample.labels["le"]: sample.value
        for family in parse(page.decode())
        for sample in family.samples
        if sample.name == "taskharbor_store_op_seconds_bucket"
    }
    assert (buckets["0.0005"], buckets["0.025"], buckets["10.0"], buckets["+Inf"]) == (1, 3, 3, 4)


def test_a_scraper_that_asks_for_openmetrics_gets_it():
    page, content_type = Exposition(busy_meter().sample).page("application/openmetrics-text")

    assert "openmetrics" in content_type
    assert "taskharbor_jobs_finished" in {family.name for family in parse_openmetrics(page.decode())}


def test_the_collector_fits_into_a_registry_of_somebody_else():
    registry = CollectorRegistry()
    registry.register(TaskHarborCollector(busy_meter().sample))

    labels = {label: f'"{label}"\n' for label in metric_names.WORKER_BUSY.labels}
    assert registry.get_sample_value("taskharbor_worker_busy", labels) == 3
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(TaskHarborCollector(Meter().sample))


def test_a_port_answers_until_it_is_stopped_and_a_taken_one_is_reported():
    port = free_port()
    stop = Exposition(busy_meter().sample).serve("127.0.0.1", port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"taskharbor_jobs_finished_total" in answer.read()
        with pytest.raises(ConfigurationError, match=f"metrics port 127.0.0.1:{port}"):
            Exposition(Meter().sample).serve("127.0.0.1", port)
    finally:
        stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
