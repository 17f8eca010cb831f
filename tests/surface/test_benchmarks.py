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


def test_no_text_breaks_a_row_of_the_results(bench: Path) -> None:
    table = module("results").table(["queue", "what"], [["rq", "failed: one\n two | three"]])

    assert table.splitlines()[-1] == "| rq | failed: one two / three |"


@pytest.mark.parametrize(
    ("noted", "expected", "is_about"),
    [
        (0, 800, False),
        (399, 800, False),
        (400, 800, True),
        (1700, 800, True),
        (1801, 800, False),
        (9000, 10_000, True),
    ],
)
def test_a_logbook_that_misses_jobs_is_noticed(
    bench: Path, noted: int, expected: int, is_about: bool
) -> None:
    assert module("logbook_cost").is_about(noted, expected) is is_about


def test_without_a_browser_the_recorded_section_stays(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard, before = module("bench_dashboard"), (bench / "RESULTS.md").read_bytes()
    monkeypatch.setattr(sys, "argv", ["bench_dashboard.py", "--only", "browser"])
    monkeypatch.setattr("tools.browser.find", lambda: None)

    with pytest.raises(SystemExit, match="no browser was found"):
        dashboard.main()

    assert (bench / "RESULTS.md").read_bytes() == before


def test_a_peer_that_fails_keeps_its_recorded_row(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks, wrote = module("bench_callbacks"), list[object]()

    async def failing(*_: object) -> None:
        raise AssertionError("its worker\nended | at once")

    monkeypatch.setattr(callbacks, "tried", failing)
    monkeypatch.setattr(callbacks, "write_rows", lambda *rows: wrote.append(rows))
    monkeypatch.setattr(callbacks.flow_peers, "install", lambda names: None)
    monkeypatch.setattr(sys, "argv", ["bench_callbacks.py", "--peers", "rq"])

    with pytest.raises(SystemExit, match="not measured: rq"):
        callbacks.main()

    assert wrote == []
