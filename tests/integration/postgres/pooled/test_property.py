"""The driver beside the reference model, behind a pooler in transaction mode."""

from collections.abc import Callable

import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.statemachine import hold_to_the_model


@pytest.mark.timeout(3600)
def test_it_answers_and_stores_what_the_model_does(fresh_url: Callable[[], str]) -> None:
    coverage = hold_to_the_model(
        lambda: PostgresDriver.from_url(fresh_url()), steps=20_000, seed_number=0, least=2, shrink=False
    )

    assert coverage.steps >= 20_000
