"""Samples: the numbers of one process at one moment, plain enough to travel to another process."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from taskharbor.observe.metric_names import ALL

Labels = tuple[str, ...]


class Histogram(msgspec.Struct, array_like=True):
    """A histogram: how many fell into each bucket, the last without an upper bound, and their sum."""

    counts: list[int]
    sum: float = 0.0


class MetricsSample(msgspec.Struct):
    """Values by metric and labels."""

    counters: dict[str, dict[Labels, float]] = msgspec.field(default_factory=dict)
    gauges: dict[str, dict[Labels, float]] = msgspec.field(default_factory=dict)
    curves: dict[str, dict[Labels, Histogram]] = msgspec.field(default_factory=dict)

    def fold_counts(self, other: MetricsSample) -> None:
        """Add what the other has counted; its gauges are left out."""
        for name, values in other.counters.items():
            mine = self.counters.setdefault(name, {})
            for labels, value in values.items():
                mine[labels] = mine.get(labels, 0.0) + value
        for name, curves in other.curves.items():
            ours = self.curves.setdefault(name, {})
            for labels, curve in curves.items():
                ours[labels] = _added(ours.get(labels), curve)

    def fold_gauges(self, other: MetricsSample) -> None:
        for name, values in other.gauges.items():
            mine = self.gauges.setdefault(name, {})
            for labels, value in values.items():
                before = mine.get(labels, 0.0)
                mine[labels] = max(before, value) if ALL[name].folds == "max" else before + value


def folded(samples: Iterable[MetricsSample]) -> MetricsSample:
    """One sample out of those of several processes."""
    whole = MetricsSample()
    for sample in samples:
        whole.fold_counts(sample)
        whole.fold_gauges(sample)
    return whole


def _added(one: Histogram | None, other: Histogram) -> Histogram:
    if one is None:
        return Histogram(list(other.counts), other.sum)
    return Histogram([a + b for a, b in zip(one.counts, other.counts, strict=True)], one.sum + other.sum)


class _Travelling(msgspec.Struct, array_like=True):
    """JSON and MessagePack have no tuples as keys: labels and value side by side."""

    counters: dict[str, list[tuple[Labels, float]]]
    gauges: dict[str, list[tuple[Labels, float]]]
    curves: dict[str, list[tuple[Labels, Histogram]]]


_decoder = msgspec.msgpack.Decoder(_Travelling)


def encoded(sample: MetricsSample) -> bytes:
    return msgspec.msgpack.encode(
        _Travelling(
            {name: list(values.items()) for name, values in sample.counters.items()},
            {name: list(values.items()) for name, values in sample.gauges.items()},
            {name: list(values.items()) for name, values in sample.curves.items()},
        )
    )


def decoded(data: bytes) -> MetricsSample:
    """Raises msgspec.DecodeError for anything else than what `encoded` made."""
    sample = _decoder.decode(data)
    return MetricsSample(
        {name: dict(values) for name, values in sample.counters.items()},
        {name: dict(values) for name, values in sample.gauges.items()},
        {name: dict(values) for name, values in sample.curves.items()},
    )
