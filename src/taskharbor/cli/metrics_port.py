"""Serves metrics on --metrics-port.

Imported only if a port is set: without one nothing listens and nothing is timed.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from taskharbor import __version__
from taskharbor.drivers.contract import Driver
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.metrics_sample import MetricsSample
from taskharbor.observe.multiprocess import MultiprocessMetrics, report_to
from taskharbor.observe.store_gauges import StoreGauges, Values
from taskharbor.observe.store_times import time_store
from taskharbor.worker import Worker

_FAREWELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPort:
    """The address of the metrics page, and whether metrics are labelled by task."""

    host: str
    port: int
    tasks: bool = True


def timed(driver: Driver, url: str | None, meter: Meter) -> Driver:
    """Time the calls of this store, and add its kind to the metrics."""
    scheme = urlsplit(url or "").scheme or type(driver).__name__
    info: Values = {metric_names.BUILD_INFO.name: {(__version__, scheme): 1.0}}
    meter.ask(lambda: info)
    return time_store(driver, meter, counts_jobs=scheme not in ("http", "https"))


def watch_worker(worker: Worker, meter: Meter) -> None:
    """Count what this worker does, and read its slots with every sample."""
    options = worker.options
    kind = (options.kind,)
    meter.listen(worker.events)
    meter.ask(
        lambda: {
            metric_names.WORKER_SLOTS.name: {kind: float(options.concurrency)},
            metric_names.WORKER_BUSY.name: {kind: float(worker.busy)},
            metric_names.WORKER_LEASE.name: {kind: options.lease.total_seconds()},
            metric_names.HEARTBEAT_LAG.name: {kind: worker.heartbeat_lag},
        }
    )


def report_from(worker: Worker, meter: Meter, descriptor: int) -> None:
    """Report the metrics of this process to the supervisor, through this pipe, until it ends."""
    watch_worker(worker, meter)
    atexit.register(report_to(descriptor, meter))


@contextmanager
def shown(
    at: MetricsPort, meter: Meter, driver: Driver, fleet: MultiprocessMetrics | None = None
) -> Iterator[None]:
    """Serve the metrics while the block runs; `driver`, not opened, is what the store is measured by.

    Raises:
        ConfigurationError: prometheus-client is missing, or the port cannot be used.
    """
    from taskharbor.observe.metrics import Exposition

    sample: Callable[[], MetricsSample] = meter.sample if fleet is None else fleet.sample
    stop_serving = Exposition(sample).serve(at.host, at.port)
    gauges = StoreGauges(driver)
    meter.ask(gauges.values)
    measuring = _Measuring(gauges)
    measuring.start()
    try:
        yield
    finally:
        measuring.stop()
        stop_serving()


class _Measuring:
    """An event loop in a thread: that of the worker is busy with handlers."""

    def __init__(self, gauges: StoreGauges) -> None:
        self._gauges = gauges
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskharbor-measuring", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._has_started.wait()

    def stop(self) -> None:
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_FAREWELL_SECONDS)

    def _run(self) -> None:
        asyncio.run(self._measure())

    async def _measure(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._gauges.keep())
        self._has_started.set()
        await asyncio.wait((self._task,))
