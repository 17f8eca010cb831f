"""Every driver beside the reference model, step by step.

The same seed gives the same steps. TASKHARBOR_PROPERTY_SEED picks another one, TASKHARBOR_PROPERTY_STEPS
another number of steps; both are printed.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.statemachine import hold_to_the_model

SEED = int(os.environ.get("TASKHARBOR_PROPERTY_SEED", "0"))
STEPS = int(os.environ.get("TASKHARBOR_PROPERTY_STEPS", "50000"))
_numbers = count()

# The driver → the URL of a new, empty store in a folder of its own.
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/{next(_numbers)}.db?durability=normal",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: these tests are not about the disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STORES)
def test_a_driver_answers_and_stores_what_the_model_does(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hold(name, folder, capsys, seed=SEED, steps=STEPS)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", STORES)
def test_a_driver_does_so_twenty_times_as_long(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hold(name, folder, capsys, seed=SEED + 1, steps=STEPS * 20)


def _hold(name: str, folder: Path, capsys: pytest.CaptureFixture[str], *, seed: int, steps: int) -> None:
    def make_driver() -> Driver:
        return connect(STORES[name](folder))

    with capsys.disabled():
        print(f"\n{name}: seed {seed}, at least {steps} steps", flush=True)
    coverage = hold_to_the_model(make_driver, steps=steps, seed_number=seed, least=min(20, steps // 2500))
    with capsys.disabled():
        print(f"{name}: {coverage.steps} steps, {coverage.edges.total()} moves, no difference", flush=True)
    assert coverage.steps >= steps
