"""The smoke run of the chaos cases: each once, small, with the seed printed; `make chaos` runs them all."""

from __future__ import annotations

import pytest

from tests.chaos import cases  # noqa: F401 - the cases enter themselves
from tests.chaos.case import CASES, run_case
from tests.chaos.stores import Stores, available
from tests.chaos.world import SMOKE

# In `make test`: one case on each store, about processes, replies and lost data.
FIRST = {("C12", "sqlite"), ("C27", "postgres"), ("C34", "http"), ("C53", "valkey")}
MORE = pytest.mark.more("several worker processes, which are killed or stopped")
SMOKES = [
    pytest.param(number, store, id=f"{number}-{store}", marks=() if (number, store) in FIRST else MORE)
    for number, one in CASES.items()
    for store in one.smoke
    if store in available()
]


@pytest.fixture(scope="module")
def stores():
    with Stores() as stores:
        yield stores


@pytest.mark.parametrize(("number", "store"), SMOKES)
async def test_nothing_promised_is_broken(stores, number, store):
    outcome = await run_case(CASES[number], stores, store, SMOKE, seed=1)

    assert not outcome.not_here, outcome.not_here
    assert not outcome.error, f"seed {outcome.seed}: {outcome.error}"
    assert not outcome.findings.problems, f"seed {outcome.seed}: {outcome.findings.problems}"
