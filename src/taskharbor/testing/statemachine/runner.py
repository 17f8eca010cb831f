"""Runs the state machine on a driver: a number of steps from one seed, without blind spots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import run_state_machine_as_test

from taskharbor.testing.statemachine.coverage import Coverage
from taskharbor.testing.statemachine.fixture import MakeDriver
from taskharbor.testing.statemachine.machine import DriverMachine

RULES_PER_RUN = 150


def hold_to_the_model(
    make_driver: MakeDriver, *, steps: int, seed_number: int = 0, least: int = 20, shrink: bool = True
) -> Coverage:
    """Run at least so many steps; raises AssertionError at the first difference or for a blind spot.

    The same seed draws the same steps. `least` is how often everything must be met; `shrink` looks
    for the shortest way to a difference, which can take minutes.
    """
    machine, coverage = driver_machine(make_driver)
    with without_constants_of_modules():
        run_state_machine_as_test(seed(seed_number)(machine), settings=run_settings(steps, shrink=shrink))
    assert not (missed := coverage.blind_spots(least)), f"met fewer than {least} times: {missed}"
    return coverage


@contextmanager
def without_constants_of_modules() -> Iterator[None]:
    """Hypothesis also draws constants that it finds in the modules loaded so far.

    Without them a seed draws the same steps in every process, whatever ran before.
    """
    find = getattr(providers, "_get_local_constants", None)
    if find is None:  # another Hypothesis: then the steps may depend on what is loaded
        yield
        return
    none = type(find())()
    providers._get_local_constants = lambda: none
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = find
        providers.CONSTANTS_CACHE.cache.clear()


def driver_machine(make_driver: MakeDriver) -> tuple[type[DriverMachine], Coverage]:
    """The state machine class for one driver, and where its runs are counted."""
    coverage = Coverage()
    fields = {"make_driver": staticmethod(make_driver), "coverage": coverage}
    return type("DriverMachine", (DriverMachine,), fields), coverage


def run_settings(steps: int, *, shrink: bool = True) -> settings:
    return settings(
        max_examples=steps * 4 // (RULES_PER_RUN * 5) + 1,  # a rule takes about 1.3 steps
        stateful_step_count=RULES_PER_RUN,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
