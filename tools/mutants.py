"""Mutation testing: change one operator or number at a time, and see whether a test notices.

    python tools/mutants.py                      every mutant of every module below: hours
    python tools/mutants.py --sample 40          forty of them, drawn by --seed
    python tools/mutants.py --only transitions   one module
    python tools/mutants.py --critical           comparisons of tokens and ends of leases only

Each mutant is a copy of the package with one change; the tests of its group run against it until the
first one fails. What survives is printed with its line, to be killed by a test or explained.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "taskharbor"

KIT = ["tests/contract/test_conformance.py", "-k"]
GROUPS: dict[str, tuple[list[str], list[list[str]]]] = {
    "model": (
        ["model/transitions.py", "model/settlement.py", "model/retry.py", "model/limits.py"],
        [["tests/unit/model"], [*KIT, "memory"]],
    ),
    "memory": (
        ["drivers/memory/driver.py", "drivers/memory/store.py", "drivers/memory/gates.py"],
        [[*KIT, "memory"], ["tests/property", "-k", "memory"]],
    ),
    "sqlite": (
        [
            f"drivers/sqlite/{name}.py"
            for name in ("reserve", "settle", "extend", "reclaim", "gates", "enqueue")
        ],
        [[*KIT, "sqlite"]],
    ),
    "worker": (
        ["worker/heartbeat.py", "worker/settler.py", "worker/held.py", "worker/fetcher.py"],
        [["tests/unit/worker"], ["tests/simulation/test_seeds.py", "-k", "memory and (0 or 10 or 20)"]],
    ),
}
CRITICAL = ("token", "expires_at", "lease_error", "trusted_until", "expired")

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
_CHANGEABLE = (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant)


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    before: str
    after: str
    source: str

    @property
    def is_critical(self) -> bool:
        return any(word in self.before for word in CRITICAL) and any(
            sign in self.before for sign in ("<", ">", "=", "!")
        )

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  →  {self.after}"


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every change of one operator, constant or condition in this file."""
    tree = ast.parse((PACKAGE / path).read_text("utf-8"))
    plain = _class_options(tree)
    for number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, _CHANGEABLE) or node in plain:
            continue
        for change in range(3):
            copy = deepcopy(tree)
            there = list(ast.walk(copy))[number]
            before = ast.unparse(there)
            if not _mutate(there, change):
                break
            source = ast.unparse(ast.fix_missing_locations(copy))
            yield Mutant(path, getattr(node, "lineno", 0), before[:90], ast.unparse(there)[:90], source)


def _class_options(tree: ast.AST) -> set[ast.AST]:
    """`frozen=True` and its like: without it everything still works, and no test can tell."""
    options = [
        keyword for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for keyword in node.keywords
    ]
    return {inner for keyword in options for inner in ast.walk(keyword)}


def _mutate(node: ast.AST, change: int) -> bool:
    if isinstance(node, ast.Compare) and change < len(node.ops) and type(node.ops[change]) in _SWAPS:
        node.ops[change] = _SWAPS[type(node.ops[change])]()
        return True
    if change:
        return False
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _SWAPS:
        node.op = _SWAPS[type(node.op)]()
        return True
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        return True
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return True
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
        return True
    return False


def is_killed(mutant: Mutant, suites: list[list[str]]) -> bool:
    """Whether a test fails, or nothing ends, on a copy of the package with this change in it."""
    with tempfile.TemporaryDirectory(prefix="taskharbor-mutant-") as folder:
        package = Path(folder) / "taskharbor"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / mutant.path).write_text(mutant.source, "utf-8")
        env = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_MAX": "20"}
        return any(_fails(suite, env) for suite in suites)


def _fails(suite: list[str], env: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *suite]
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=1200, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    options = _options()
    chosen = [
        (mutant, suites)
        for paths, suites in GROUPS.values()
        for path in paths
        if options.only in path
        for mutant in mutants_of(path)
        if mutant.is_critical or not options.critical
    ]
    if options.sample and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    survivors = []
    for number, (mutant, suites) in enumerate(chosen, 1):
        killed = is_killed(mutant, suites)
        print(f"{number}/{len(chosen)} {'killed  ' if killed else 'SURVIVED'} {mutant}", flush=True)
        if not killed:
            survivors.append(mutant)
    score = 100 * (len(chosen) - len(survivors)) / max(len(chosen), 1)
    critical = sum(mutant.is_critical for mutant in survivors)
    print(f"{score:.1f} % of {len(chosen)} mutants killed, {critical} critical survivors")
    return 1 if score < 85 or critical else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--critical", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
