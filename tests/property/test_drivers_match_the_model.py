"""Every driver beside the reference model, step by step.

The same seed draws the same steps. TASKHARBOR_PROPERTY_SEED picks another one, TASKHARBOR_PROPERTY_STEPS
another number of steps for the full runs; both are printed.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_cluster_url, fresh_postgres_url, fresh_redis_url
from taskharbor.testing.statemachine import hold_families_to_the_model, hold_to_the_model

SEED = int(os.environ.get("TASKHARBOR_PROPERTY_SEED", "0"))
STEPS = int(os.environ.get("TASKHARBOR_PROPERTY_STEPS", "50000"))
FEW_STEPS = min(STEPS, 1_000)
_numbers = count()

# The driver → the URL of a new, empty store. The slow ones first: so several processes share them out evenly.
STORES: dict[str, Callable[[Path], str]] = {
    "postgres": lambda _: fresh_postgres_url(),
    "cluster": lambda _: fresh_cluster_url(),
    "http": lambda _: fresh_http_url(),
    "redis": lambda _: fresh_redis_url(),
    "sqlite": lambda folder: f"sqlite:///{folder}/{next(_numbers)}.db?durability=normal",
    "memory": lambda _: "memory://",
}
SHRINKS = ("memory", "sqlite")
"""Where the shortest way to a difference is found in seconds."""

every_driver = pytest.mark.parametrize("name", STORES)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: these tests are not about the disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


@pytest.mark.timeout(300)
@every_driver
def test_a_driver_answers_and_stores_what_the_model_does(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hold(name, folder, capsys, seed=SEED + 7, steps=FEW_STEPS)


@pytest.mark.more("fifty thousand steps a driver")
@pytest.mark.timeout(1800)
@every_driver
def test_a_driver_does_so_in_every_state_and_with_every_error(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long enough to meet every rule, error and edge of the graph many times."""
    _hold(name, folder, capsys, seed=SEED, steps=STEPS, least=min(20, STEPS // 2500))


@pytest.mark.long
@pytest.mark.timeout(14400)
@every_driver
def test_a_driver_does_so_twenty_times_as_long(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hold(name, folder, capsys, seed=SEED + 1, steps=STEPS * 20, least=20)


@pytest.mark.timeout(300)
@every_driver
def test_families_on_a_driver_are_those_of_the_model(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hold_families(name, folder, capsys, seed=SEED + 7, steps=FEW_STEPS // 5)


@pytest.mark.more("thousands of steps a driver")
@pytest.mark.timeout(1800)
@every_driver
def test_families_are_so_with_every_verdict_and_every_refusal(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of the table of verdicts, every way to stop, to be released and to be refused."""
    is_quick = name in SHRINKS
    steps, least = (STEPS // 10, min(1, STEPS // 50000)) if is_quick else (STEPS // 50, 0)
    _hold_families(name, folder, capsys, seed=SEED, steps=steps, least=least)


@pytest.mark.long
@pytest.mark.timeout(14400)
@every_driver
def test_families_are_so_twenty_times_as_long(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hold_families(name, folder, capsys, seed=SEED + 1, steps=STEPS * 2, least=5)


def _hold_families(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], *, seed: int, steps: int, least: int = 0
) -> None:
    def make_driver() -> Driver:
        return connect(STORES[name](folder))

    if not asyncio.run(_has_workflows(make_driver())):
        pytest.skip(f"{name} does not declare workflows")
    met = hold_families_to_the_model(make_driver, steps=steps, seed_number=seed, least=least, shrink=False)
    with capsys.disabled():
        print(f"\n{name}: {met['steps']} steps with families, seed {seed}, no difference", flush=True)
    assert met["steps"] >= steps // 2


async def _has_workflows(driver: Driver) -> bool:
    async with driver:
        return driver.capabilities.workflows


def _hold(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], *, seed: int, steps: int, least: int = 0
) -> None:
    def make_driver() -> Driver:
        return connect(STORES[name](folder))

    with capsys.disabled():
        print(f"\n{name}: seed {seed}, at least {steps} steps", flush=True)
    coverage = hold_to_the_model(
        make_driver, steps=steps, seed_number=seed, least=least, shrink=name in SHRINKS
    )
    with capsys.disabled():
        print(f"{name}: {coverage.steps} steps, {coverage.edges.total()} moves, no difference", flush=True)
    assert coverage.steps >= steps
