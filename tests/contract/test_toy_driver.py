"""The driver of docs/extending/write-a-driver.md, put together from the page, keeps the contract."""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.testing.conformance import *  # noqa: F403

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


def test_the_page_runs_the_kit_the_way_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test file imports, brings every case along, and defines the one fixture."""
    monkeypatch.setitem(sys.modules, "toy_driver", toy)

    there = vars(module_from_page("test_conformance.py"))

    assert "driver" in there
    assert {"test_an_expired_lease_is_never_revived", "the_books_are_in_order"} <= set(there)
