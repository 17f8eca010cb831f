"""Every random choice of a simulation, drawn from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from taskharbor.model.entropy import Entropy

T = TypeVar("T")


class Choices:
    """A stream of random choices. The same seed and the same calls give the same choices."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._roll = entropy._jitter.random  # what `between` asks, without two calls in between

    def split(self, label: str) -> Choices:
        """A separate stream for one purpose: drawing more from it changes no other stream."""
        return Choices(self._entropy.split(label))

    def entropy(self, label: str) -> Entropy:
        """Ids, tokens and jitter for one part of the world."""
        return self._entropy.split(label)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._roll() < probability

    def below(self, count: int) -> int:
        """A whole number from 0 to count − 1."""
        return min(int(count * self._roll()), count - 1)

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + self.below(high - low + 1)

    def seconds(self, low: float, high: float) -> float:
        return low + (high - low) * self._roll()

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]
