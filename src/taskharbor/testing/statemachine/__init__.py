"""One state machine for every driver: each step runs on the store and on the reference model.

    from taskharbor.testing.statemachine import hold_to_the_model

    def test_my_driver_matches_the_model():
        hold_to_the_model(make_my_driver, steps=6_000)

`make_driver()` returns a driver on a new, empty store, not opened yet. After each step the answers must
be equal, errors by their class, and so must everything that can be read of the jobs it touched;
every few steps, and at the end, of all jobs. A `SafetyChecker` judges the store's answers without the model.
The run also fails when it did not meet every rule, every error and every edge of the state graph
often enough: a generator with a blind spot proves nothing. Needs hypothesis.

`hold_families_to_the_model` does the same for families of jobs, on a driver with the capability `workflows`.
"""

from taskharbor.testing.statemachine.coverage import Coverage
from taskharbor.testing.statemachine.families import hold_families_to_the_model
from taskharbor.testing.statemachine.machine import DriverMachine
from taskharbor.testing.statemachine.runner import driver_machine, hold_to_the_model, run_settings

__all__ = [
    "Coverage",
    "DriverMachine",
    "driver_machine",
    "hold_families_to_the_model",
    "hold_to_the_model",
    "run_settings",
]
