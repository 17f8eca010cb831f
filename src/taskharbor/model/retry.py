"""How long to wait before the next try: one formula, its shapes and presets.

delay(n) = base × multiplier^(n−1), capped at `maximum`, spread by ±jitter, capped again
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Literal

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.model.checks import check_kinds
from taskharbor.model.duration import check_timedelta
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NO_TIME

Shape = Literal["exponential", "linear", "fixed"]
RetryPreset = Literal["exponential", "linear", "none"]


ErrorKind = type[BaseException] | str
"""An exception, or its name with or without its module."""


def error_kinds(given: ErrorKind | Iterable[ErrorKind] | None) -> tuple[ErrorKind, ...]:
    """One exception or several, as a policy keeps them."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str | type) or not isinstance(given, Iterable) else tuple(given)


def name_of_error(kind: ErrorKind) -> str:
    """The name under which `error_names` has it.

    Raises:
        ConfigurationError: it is neither an exception nor a name.
    """
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(kind, str) and kind.strip():
        return kind.strip()
    raise ConfigurationError(f"retry_on and no_retry_on take exceptions or their names, not {kind!r:.80}")


def error_names(error: BaseException) -> tuple[str, ...]:
    """The class of an error and those it inherits from, each by its name with and without its module."""
    return _names_of(type(error))


def _names_of_class(error: type[BaseException]) -> tuple[str, ...]:
    kinds = [kind for kind in error.__mro__ if kind is not object]
    return tuple(dict.fromkeys(name for kind in kinds for name in (kind.__name__, name_of_error(kind))))


_names_of: Callable[..., tuple[str, ...]] = lru_cache(256)(_names_of_class)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed job tries again, for jobs that do not say so themselves.

    `max_attempts` counts executions and serves only jobs without a number of their own; 0 leaves
    it at 25. A job's own min_backoff and max_backoff replace `base` and `maximum`.

    `retry_on` and `no_retry_on` are exceptions, or their names: with `retry_on` only those are tried again,
    `no_retry_on` are not, and it wins. A class includes its subclasses.
    """

    base: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(hours=1)
    multiplier: float = 2.0
    jitter: float = 0.2
    max_attempts: int = 0
    shape: Shape = "exponential"
    retry_on: tuple[ErrorKind, ...] = ()
    no_retry_on: tuple[ErrorKind, ...] = ()

    def __post_init__(self) -> None:
        check_timedelta(self.base, "base")
        check_timedelta(self.maximum, "maximum")
        check_kinds(self, {"multiplier": "float", "jitter": "float", "max_attempts": "int"})
        for what in ("retry_on", "no_retry_on"):
            kinds = getattr(self, what)
            if isinstance(kinds, str | type) or not isinstance(kinds, Iterable):
                raise ConfigurationError(
                    f"{what} takes a tuple: {what}=({getattr(kinds, '__name__', repr(kinds)):.80},)"
                )
        for kind in (*self.retry_on, *self.no_retry_on):
            name_of_error(kind)
        if self.shape not in ("exponential", "linear", "fixed"):
            raise ConfigurationError(f"shape={self.shape!r} must be exponential, linear or fixed")
        if not (math.isfinite(self.multiplier) and math.isfinite(self.jitter)):
            raise ConfigurationError("multiplier and jitter must be finite numbers")
        if self.max_attempts < 0:
            raise ConfigurationError(
                f"max_attempts={self.max_attempts} must not be negative; 0 leaves it at 25"
            )

    def tries_again(self, errors: Collection[str]) -> bool:
        """Whether an error is worth another try. `errors` names its class and those it inherits from."""
        if any(name_of_error(kind) in errors for kind in self.no_retry_on):
            return False
        return not self.retry_on or any(name_of_error(kind) in errors for kind in self.retry_on)

    def next_delay(
        self,
        failures: int,
        entropy: Entropy,
        *,
        least: timedelta | None = None,
        most: timedelta | None = None,
    ) -> timedelta:
        """The wait after the n-th recorded failure. `least` and `most` are the job's own range."""
        base = (self.base if least is None else least).total_seconds()
        if failures <= 0 or base <= 0:
            return NO_TIME
        cap = max((self.maximum if most is None else most).total_seconds(), base)
        grown = min(self._grow(base, failures, cap), cap)
        jitter = min(max(self.jitter, 0.0), 1.0)
        spread = grown * entropy.between(1.0 - jitter, 1.0 + jitter) if jitter else grown
        return timedelta(seconds=min(spread, cap))

    def _grow(self, base: float, failures: int, cap: float) -> float:
        if self.shape == "fixed":
            return base
        if self.shape == "linear":
            return base * failures
        factor = max(self.multiplier, 1.0)
        try:
            return base * factor ** (failures - 1)
        except OverflowError:  # the thousandth failure: long past any cap
            return cap


PRESETS: dict[RetryPreset, RetryPolicy] = {
    "exponential": RetryPolicy(),
    "linear": RetryPolicy(shape="linear"),
    "none": RetryPolicy(max_attempts=1),
}
"""Policies by name, for `@harbor.task(retry="linear")`; "none" is one execution and no second try."""
