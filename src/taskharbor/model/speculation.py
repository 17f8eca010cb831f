"""When a run counts as a straggler: the rule of a type, carried in the headers of its jobs."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from taskharbor.errors import ConfigurationError

SPECULATE_HEADER = "taskharbor-speculate"


class Speculate(msgspec.Struct, frozen=True, kw_only=True):
    """Start a second run of a straggler: after `after`, and `factor` times the usual duration."""

    after: timedelta
    factor: float = 3.0

    def __post_init__(self) -> None:
        if self.after <= timedelta(0) or self.factor < 1:
            raise ConfigurationError("speculate needs after > 0 and factor ≥ 1")


def header_of(rule: Speculate) -> str:
    """The rule as a header's text."""
    return f"{rule.after.total_seconds()!r};{rule.factor!r}"


def rule_of(headers: dict[str, str]) -> Speculate | None:
    """The rule that a job carries; a text that is not ours counts as none."""
    text = headers.get(SPECULATE_HEADER)
    if text is None:
        return None
    after, _, factor = text.partition(";")
    try:
        return Speculate(after=timedelta(seconds=float(after)), factor=float(factor))
    except (ValueError, OverflowError):
        return None
