"""The driver of docs/extending/write-a-driver.md, put together from the page, keeps the contract."""

import re
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from types import ModuleType

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Claimed
from taskharbor.errors import DriverUnavailable
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance import *  # noqa: F403
from taskharbor.testing.conformance.kit import START, claim, running

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "write-a-driver.md"
BLOCK = re.compile(r"<!-- file: (?P<file>[\w.]+) -->\n```python\n(?P<code>.*?)```", re.DOTALL)


def code_of(file: str) -> str:
    """Every block that the page marks as part of this file, in order."""
    blocks = BLOCK.finditer(PAGE.read_text("utf-8"))
    return "\n".join(block["code"] for block in blocks if block["file"] == file)


def module_from_page(file: str) -> ModuleType:
    module = ModuleType(file.removesuffix(".py"))
    exec(compile(code_of(file), f"{PAGE.name}:{file}", "exec"), module.__dict__)
    return module


toy = module_from_page("toy_driver.py")


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    async with toy.ToyDriver() as driver:
        yield driver


@pytest.fixture
def driver_url() -> None:
    """A dict has no address that others could open."""


@pytest.fixture
def other_namespace_url() -> None:
    """Nor has it two harbors."""


@pytest.fixture
def lose_record() -> None:
    """Nor an entry beside its records."""


class CutOffDriver(toy.ToyDriver):  # type: ignore[name-defined, misc]
    """Settles, and then cannot be reached."""

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        raise DriverUnavailable("the store is gone")


async def test_a_failing_claim_comes_back_with_the_settlements(driver: Driver) -> None:
    """B25: the exchange that every driver inherits never gives an error instead of answers."""
    job = await running(driver)
    async with CutOffDriver(vars(driver)["store"]) as cut_off:
        answers = await cut_off.exchange([Ack(job.lease)], claim(), now=START)

    assert [answer.state for answer in answers.settled] == [JobState.COMPLETED]
    assert (answers.claimed, type(answers.error)) == ([], DriverUnavailable)


def test_the_page_runs_the_kit_the_way_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test file imports, brings every case along, and defines the one fixture."""
    monkeypatch.setitem(sys.modules, "toy_driver", toy)

    there = vars(module_from_page("test_conformance.py"))

    assert "driver" in there
    assert {"test_an_expired_lease_is_never_revived", "invariants_hold"} <= set(there)
