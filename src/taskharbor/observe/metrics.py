"""Metrics for Prometheus: samples in its format, over HTTP or in a registry of yours.

    from prometheus_client import REGISTRY
    REGISTRY.register(TaskHarborCollector(meter.sample))

This is the only module that needs prometheus-client.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from taskharbor.errors import ConfigurationError
from taskharbor.observe.metric_names import ALL, Metric
from taskharbor.observe.metrics_sample import Histogram, Labels, MetricsSample

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder, make_wsgi_app
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "metrics need prometheus-client, which is not installed: pip install 'taskharbor[prometheus]'"
    ) from error

REQUEST_SECONDS = 10.0
MOST_SCRAPES = 32

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class TaskHarborCollector(Collector):
    """Everything that a sample holds, for a registry. The sample is taken when the registry asks."""

    def __init__(self, sample: Callable[[], MetricsSample]) -> None:
        self._sample = sample

    def collect(self) -> Iterator[Family]:
        sample = self._sample()
        for metric in ALL.values():
            yield _family(metric, sample)

    def describe(self) -> Iterator[Family]:
        for metric in ALL.values():
            yield _family(metric, MetricsSample())


class Exposition:
    """One registry with these numbers and those of the process, ready to be served."""

    def __init__(self, sample: Callable[[], MetricsSample]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(TaskHarborCollector(sample))
        ProcessCollector(registry=self.registry)

    def page(self, accept: str | None = None) -> tuple[bytes, str]:
        """What GET /metrics answers, in the format that the caller accepts, and its content type."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self.registry), content_type

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Answer on a port of its own, from a thread; returns a function that stops it.

        Raises:
            ConfigurationError: the port cannot be used.
        """
        try:
            server = metrics_server(host, port, self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on the metrics port {host}:{port}: {error.strerror}"
            ) from error
        thread = threading.Thread(target=server.serve_forever, name="taskharbor-metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


# ------------------------------------------------------------------ the port


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its parent calls it that
        """Scrapes are no news."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per scrape, few at once, and none for long: silent connections must not stay."""

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_SCRAPES)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        ending = threading.Timer(REQUEST_SECONDS, _cut_off, (request,))
        ending.daemon = True
        ending.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            ending.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers who are cut off, or go: no news either."""


def metrics_server(host: str, port: int, registry: CollectorRegistry) -> WSGIServer:
    """The server of a metrics port, bound and not started. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    kind = type("_Server", (_Server,), {"address_family": family})
    return make_server(host, port, make_wsgi_app(registry), kind, handler_class=_Handler)


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _family(metric: Metric, sample: MetricsSample) -> Family:
    if metric.kind == "histogram":
        return _histogram(metric, sample.curves.get(metric.name, {}))
    make: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    values = sample.counters if metric.kind == "counter" else sample.gauges
    family: Family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.get(metric.name, {}).items():
        family.add_metric(labels, value)  # type: ignore[call-arg,arg-type]
    return family


def _histogram(metric: Metric, curves: dict[Labels, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*(repr(float(bound)) for bound in metric.buckets), "+Inf"]
    for labels, curve in curves.items():
        buckets = list(zip(bounds, accumulate(curve.counts), strict=True))
        family.add_metric(labels, buckets, curve.sum)
    return family
