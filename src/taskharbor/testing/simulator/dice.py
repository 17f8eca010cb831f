"""Dice: every choice of a simulation, from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from taskharbor.model.entropy import Entropy

T = TypeVar("T")


class Dice:
    """Choices in the order in which they are asked for. The same seed gives the same choices."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._roll = entropy._jitter.random  # what `between` asks, without two calls in between

    def split(self, label: str) -> Dice:
        """Dice of their own for one purpose, so that more use of one does not change another."""
        return Dice(self._entropy.split(label))

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
