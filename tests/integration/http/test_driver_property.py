"""The driver beside the reference model, step by step, through a real server."""

import os

import pytest

from taskharbor.drivers.loading import connect
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.statemachine import hold_to_the_model

SEED = int(os.environ.get("TASKHARBOR_PROPERTY_SEED", "0"))
STEPS = 3_000


def hold(steps: int, seed: int, least: int) -> None:
    coverage = hold_to_the_model(
        lambda: connect(fresh_http_url()), steps=steps, seed_number=seed, least=least, shrink=False
    )

    assert coverage.steps >= steps


@pytest.mark.timeout(900)
def test_it_answers_and_stores_what_the_model_does() -> None:
    hold(STEPS, SEED, 1)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_it_does_so_sixteen_times_as_long() -> None:
    hold(STEPS * 16, SEED + 1, 20)
