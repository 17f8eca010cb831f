"""RESULTS.md has an order, and `make bench` writes all of it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(BENCH))
    return BENCH


def module(name: str) -> ModuleType:
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def test_every_section_of_the_results_has_its_place(bench: Path) -> None:
    order = module("results").ORDER

    titles = re.findall(r"^## (.*)$", (bench / "RESULTS.md").read_text("utf-8"), re.MULTILINE)

    assert titles == [title for title in order if title in titles]


def test_make_bench_runs_every_benchmark(bench: Path) -> None:
    runs = module("run_all").RUNS

    assert {run.command.split()[0] for run in runs} == {path.name for path in bench.glob("bench_*.py")}
