"""The conformance kit has a case for every number of its plan, and no two cases of one name."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskharbor.testing import conformance
from tests.contract.losses import LOSSES

ROOT = Path(__file__).parents[2]
TOPICS = ROOT / "src" / "taskharbor" / "testing" / "conformance"

# Letter → how many numbered cases the plan has under it.
PLAN = {
    "A": 22,  # enqueue and schedule
    "B": 26,  # reserve and order
    "E": 18,  # extend and the end of a lease
    "D": 13,  # ack
    "T": 17,  # retry, release, snooze
    "F": 18,  # fail and dead letters
    "G": 19,  # reclaim and stalls
    "H": 14,  # cancel
    "K": 16,  # keys
    "W": 15,  # limits and rates
    "M": 13,  # idempotency
    "N": 16,  # errors and closing
    "P": 23,  # races
    "Q": 12,  # round trips
    "R": 14,  # looking and retention
    "S": 10,  # clocks
    "U": 12,  # crashes midway
    "V": 13,  # lifecycle
    "X": 7,  # lost records
    "Y": 99,  # workflows
}
NUMBERS = {f"{letter}{number:02}" for letter, count in PLAN.items() for number in range(1, count + 1)}
# A pooler is in front of a server; no store that is finished today has one.
FOR_SERVERS = {"V10"}
# "E05 D02 R001-10: what it says". Longer and shorter ones name a requirement and are no numbers of the plan.
HEAD = re.compile(r"(?:[A-Z]{1,2}\d+[a-z]?(?:-\d+)? ?)+:")
NUMBER = re.compile(r"\b[A-Z]\d\d\b(?!-)")


def numbers_in(docstring: str | None) -> set[str]:
    """The numbers at the head of a case's docstring."""
    head = HEAD.match(docstring or "")
    return set(NUMBER.findall(head.group())) if head else set()


def kit_cases() -> dict[str, object]:
    return {name: getattr(conformance, name) for name in conformance.__all__ if name.startswith("test_")}


def docstrings_beside_the_kit() -> Iterator[str | None]:
    """The docstrings of the tests beside the kit: what needs a process, a connection or a broken store."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield ast.get_docstring(node)


def test_every_number_of_the_plan_has_a_case() -> None:
    covered = {number for case in kit_cases().values() for number in numbers_in(inspect.getdoc(case))}
    covered |= {number for docstring in docstrings_beside_the_kit() for number in numbers_in(docstring)}

    assert sorted(NUMBERS - covered - FOR_SERVERS) == []


@pytest.mark.more("collects the whole kit in a process of its own")
@pytest.mark.parametrize(
    "kit", ["tests/integration/redis/cluster/test_conformance.py", "tests/contract/test_conformance.py"]
)
def test_every_case_runs_in_make_test_on_every_store(kit: str) -> None:
    """Where a store leaves the other rows of a table to `make test-more`, one row of each case stays."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not long and not more", kit]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    stores = ("memory", "sqlite", "postgres", "redis", "http") if "contract" in kit else ("",)

    cases = [line.removeprefix(f"{kit}::").partition("[") for line in listed.splitlines() if kit in line]
    for store in stores:
        found = {name for name, _, row in cases if store in row}
        assert sorted(set(kit_cases()) - found - about_lost_records(store)) == [], store


def about_lost_records(store: str) -> set[str]:
    """The cases that nothing can ask of this store: see `lose_record` in tests/contract/conftest.py."""
    if store == "" or store in LOSSES:
        return set()
    return {name for name, case in kit_cases().items() if case.__module__.endswith(".orphans")}


def test_every_case_of_the_kit_says_what_it_is_about() -> None:
    assert [name for name, case in kit_cases().items() if not inspect.getdoc(case)] == []


def test_no_case_names_a_number_that_is_not_planned() -> None:
    named = {number for case in kit_cases().values() for number in numbers_in(inspect.getdoc(case))}

    assert sorted(number for number in named - NUMBERS if number[0] in PLAN) == []


def test_no_case_hides_another_of_the_same_name() -> None:
    names = [
        node.name
        for path in sorted(TOPICS.glob("*.py"))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]

    assert sorted(names) == sorted(kit_cases())


def test_every_case_is_given_nothing_but_a_driver_and_its_table() -> None:
    for name, case in kit_cases().items():
        wanted = set(inspect.signature(case).parameters) - {"driver", "request"}  # type: ignore[arg-type]
        given = {
            argument.strip()
            for mark in getattr(case, "pytestmark", [])
            if mark.name == "parametrize"
            for argument in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
        }
        assert wanted <= given, f"{name} asks for {sorted(wanted - given)}"


def test_the_kit_speaks_only_through_the_contract() -> None:
    """No topic names a driver, a statement of SQL or anything private of a driver."""
    forbidden = re.compile(
        r"taskharbor\.drivers\.(?:memory|sqlite|postgres|redis|http)\b|sqlite3|psycopg|asyncpg|redis\b"
        r"|driver\._|\bSELECT\b|\bINSERT\b|type\(driver\) is|isinstance\(driver"
    )
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(TOPICS.glob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if forbidden.search(line)
    ]

    assert found == []
