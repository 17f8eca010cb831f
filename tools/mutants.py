"""Mutation testing: change one operator or number at a time, and see whether a test notices.

    python tools/mutants.py                    every comparison of tokens and ends, and 200 more by --seed
    python tools/mutants.py --sample 0         every comparison of tokens and ends, and nothing else
    python tools/mutants.py --all              every mutant of every file: hours
    python tools/mutants.py --only retry       of these files only
    python tools/mutants.py --narrow           of SQL only, judged by the cases of the kit about that file
    python tools/mutants.py --minutes 5        each suite begins no mutant after so long; the next run goes on
    python tools/mutants.py --write            write docs/operations/mutation-results.md from what is known

What was killed once is not run again while its file is unchanged; --again forgets that. The mutants that
no test can distinguish from the original are listed in tools/mutation/equivalent.toml with their reasons; one
that has survived once is not run again either.
Needs Python 3.12.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys

from mutation.changes import ROOT, Mutant
from mutation.report import Account, reason_for, summary, write
from mutation.suites import SUITES, Suite

_FOLDER = ROOT / "build" / "mutants"


def main() -> int:
    if sys.version_info < (3, 12):
        sys.exit("make mutants needs Python 3.12: older ones cannot see cheaply which test runs which line")
    options = _options()
    everything = {suite: suite.mutants() for suite in SUITES.values()}
    chosen = _chosen(everything, options)
    if options.again:
        for file in _FOLDER.glob("answers-*.jsonl"):
            file.unlink()
    if not options.write:
        for suite, mutants in everything.items():
            if options.suite in suite.name:
                wanted = [mutant for mutant in mutants if mutant in chosen]
                if options.narrow:
                    wanted = [mutant for mutant in wanted if not mutant.is_python]
                _judge(suite, wanted, options)
    known = _known()
    account = Account(everything, chosen, {one: known.get(one.stamp, "") for one in chosen}, options.seed)
    print(summary(account))
    if options.write:
        write(account)
    return 0 if account.is_good else 1


def _chosen(everything: dict[Suite, list[Mutant]], options: argparse.Namespace) -> set[Mutant]:
    """The critical ones and a sample of the others; --only narrows it afterwards, and changes no draw."""
    there = [mutant for mutants in everything.values() for mutant in mutants]
    others = [mutant for mutant in there if not mutant.is_critical]
    drawn = sorted(others, key=lambda mutant: _lot(mutant, options.seed))
    drawn = drawn if options.all else drawn[: options.sample]
    chosen = {*drawn, *(mutant for mutant in there if mutant.is_critical)}
    return {mutant for mutant in chosen if options.only in mutant.path}


def _lot(mutant: Mutant, seed: int) -> bytes:
    """Its place in the draw, by what it is and not by where it is: edits elsewhere redraw nothing."""
    name = f"{seed} {mutant.path} {mutant.function and mutant.function[0]} {mutant.before} {mutant.after}"
    return hashlib.sha256(name.encode()).digest()


def _judge(suite: Suite, mutants: list[Mutant], options: argparse.Namespace) -> None:
    """Have the mutants of one suite judged in a process of their own, which writes down what it finds."""
    known = _known()
    mutants = [mutant for mutant in mutants if not _is_settled(mutant, known.get(mutant.stamp, ""))]
    if not mutants:
        return
    print(f"{suite.name}: {len(mutants)} mutants", flush=True)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "mutation.runner", suite.name, str(_FOLDER / f"answers-{suite.name}.jsonl")],
        cwd=ROOT,
        env={**os.environ, **_environment(options)},
        input="\n".join(mutant.key for mutant in mutants),
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{suite.name}: pytest ended with {done.returncode}", flush=True)


def _environment(options: argparse.Namespace) -> dict[str, str]:
    return {
        "PYTHONPATH": str(ROOT / "tools"),
        "MUTANT_NARROW": "1" if options.narrow else "",
        "MUTANT_MINUTES": options.minutes,
    }


def _is_settled(mutant: Mutant, verdict: str) -> bool:
    """Whether another run brings nothing new: it was killed, or survived as its written reason says."""
    return verdict.startswith("killed") or (verdict == "survived" and reason_for(mutant) is not None)


def _known() -> dict[str, str]:
    """The newest verdict on every mutant that was ever run. A file that changes has new mutants."""
    files = sorted(_FOLDER.glob("answers-*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    return {answer["mutant"]: answer["verdict"] for answer in map(json.loads, lines)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suite", default="", help="one suite: " + ", ".join(SUITES))
    parser.add_argument("--only", default="", help="files with this in their path")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--minutes", default="", help="of each suite; after these no further mutant begins")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
