"""The driver beside the reference model, step by step, on a real server."""

import os

import pytest

from taskharbor.drivers.redis import RedisDriver
from taskharbor.testing.servers import fresh_redis_url
from taskharbor.testing.statemachine import hold_to_the_model

SEED = int(os.environ.get("TASKHARBOR_PROPERTY_SEED", "0"))
STEPS = 6_000


@pytest.mark.timeout(900)
def test_it_answers_and_stores_what_the_model_does() -> None:
    coverage = hold_to_the_model(
        lambda: RedisDriver.from_url(fresh_redis_url()),
        steps=STEPS,
        seed_number=SEED,
        least=2,
        shrink=False,
    )

    assert coverage.steps >= STEPS
