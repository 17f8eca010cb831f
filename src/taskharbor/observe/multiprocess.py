"""One registry for several worker processes: each reports its sample, the supervisor adds them up.

A report is the whole sample of a process, not what has changed: a lost one is made up for by the next.
When a process is gone, crashed or recycled, what it had counted is kept, so that no counter ever falls,
and its gauges go with it.

    process ── sample every second, and one at the end ──► pipe ──► supervisor ── folded ──► /metrics
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.metrics_sample import MetricsSample, decoded, encoded, folded

REPORT_EVERY_SECONDS = 1.0
_log = logging.getLogger("taskharbor.metrics")


class MultiprocessMetrics:
    """The supervisor's side. `own` is the meter of the supervisor itself."""

    def __init__(self, own: Meter) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._alive: dict[int, MetricsSample] = {}
        self._departed = MetricsSample()

    def started(self, pid: int) -> None:
        with self._lock:
            self._alive[pid] = MetricsSample()

    def reported(self, pid: int, data: bytes) -> None:
        """A process sent its sample; what cannot be read is dropped, the next one comes soon."""
        try:
            sample = decoded(data)
        except msgspec.MsgspecError as error:
            _log.warning("worker process %d sent invalid metrics: %s", pid, error)
            return
        with self._lock:
            if pid in self._alive:
                self._alive[pid] = sample

    def ended(self, pid: int, how: str) -> None:
        """A process is gone; `how` is done, recycled or crashed."""
        with self._lock:
            last = self._alive.pop(pid, None)
            if last is not None:
                self._departed.fold_counts(last)
        self._own.add(metric_names.PROCESS_ENDS, (how,))

    def sample(self) -> MetricsSample:
        with self._lock:
            whole = folded([self._departed, *self._alive.values(), self._own.sample()])
            ends = whole.counters.setdefault(metric_names.PROCESS_ENDS.name, {})
            for how in ("done", "recycled", "crashed"):
                ends.setdefault((how,), 0.0)  # a counter that begins with 1 shows no increase
            whole.gauges[metric_names.WORKER_PROCESSES.name] = {(): float(len(self._alive))}
        return whole


def report_to(descriptor: int, meter: Meter) -> Callable[[], None]:
    """A worker process's side: send samples down this pipe from a thread; answers how to end it.

    The end sends a last sample. A supervisor that does not read, or is gone, blocks nothing.
    """
    os.set_inheritable(descriptor, False)
    is_over = threading.Event()

    def send() -> None:
        data = encoded(meter.sample())
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view:
            view = view[os.write(descriptor, view) :]

    def keep_reporting() -> None:
        with suppress(OSError):
            while not is_over.wait(REPORT_EVERY_SECONDS):
                send()
            send()
        with suppress(OSError):
            os.close(descriptor)

    thread = threading.Thread(target=keep_reporting, name="taskharbor-metrics", daemon=True)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join(REPORT_EVERY_SECONDS)

    return end
