"""Judges the mutants of one suite: `python -m mutation.runner SUITE ANSWERS < keys of mutants`.

pytest collects the tests once, runs them once to learn which lines each of them reaches, and then every
mutant is made in a fork of that warm process: the changed function gets its new code, and the tests that
reach the changed line run, the quickest first, until one fails.

What is decided while a module is imported cannot be changed afterwards; such a mutant gets a process
of its own, in which the module is changed before anything imports it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from mutation.changes import PACKAGE, ROOT, Mutant, mutated_code, mutated_text
from mutation.suites import JUDGES, SUITES, Suite

TESTS_AT_ONCE = int(os.environ.get("MUTANT_JOBS", "2"))
# A mutant that has outlived so many tests counts as a survivor, unless it touches a token or an end:
# then every test that comes by has its say.
MOST_TESTS = 300
_MOST_BYTES = 8 << 30  # of memory: a loop without an end may fill a list
_TOOL = 3  # of sys.monitoring: a number that no debugger, profiler or coverage takes
_COLD = "MUTANT"  # the environment variable that names the one mutant of this process
_IS_NARROW = bool(os.environ.get("MUTANT_NARROW"))
_MINUTES = float(os.environ.get("MUTANT_MINUTES") or "inf")  # after so many no further mutant begins
Lines = dict[str, set[int]]


class Runner:
    """A pytest plugin that takes the place of the usual loop over the tests."""

    def __init__(self, suite: Suite, wanted: set[str], answers: Path, cold: Mutant | None) -> None:
        self._suite = suite
        self._mutants = [mutant for mutant in suite.mutants() if mutant.key in wanted]
        # What matters most first, and what takes a process of its own last: a run may be cut short.
        self._mutants.sort(key=lambda mutant: (not mutant.is_critical, mutant.is_cold))
        self._stamps = {mutant: mutant.stamp for mutant in self._mutants}  # now: files may change meanwhile
        self._answers = answers
        self._cold = cold
        self.failure: str | None = None
        self._running: dict[int, tuple[Mutant, float, int]] = {}
        self._ends = time.monotonic() + 60 * _MINUTES

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._suite.judges(item.nodeid)]
        if _IS_NARROW:
            wanted = {case for mutant in self._mutants for case in _judges_of(mutant) or ()}
            items[:] = [item for item in items if _module_of(item) in wanted]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed(f"{session.testsfailed} errors while collecting")
        gc.unfreeze()  # tests/conftest.py hides all that was imported: here it is looked for and changed
        _start_server(self._suite.store)
        reach = Reach(self._suite, session, self)
        if self._cold is not None:
            self._say(self._cold, self._verdict_of(session, reach.tests_for(self._cold)))
            return True
        reach.learn()
        left = list(self._mutants)
        while left and time.monotonic() < self._ends:
            self._judge(session, left.pop(0), reach)
        while self._running:
            self._reap()
        if left:
            print(f"{len(left)} mutants are left for the next run", file=sys.stderr)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failure is None:
            self.failure = report.nodeid

    # -------------------------------------------------------------- one mutant

    def _judge(self, session: pytest.Session, mutant: Mutant, reach: Reach) -> None:
        tests = reach.tests_for(mutant)
        if not tests:
            self._say(mutant, "survived: no test comes here")
            return
        while len(self._running) >= TESTS_AT_ONCE:
            self._reap()
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            self._be_the_mutant(session, mutant, tests, writing)
        os.close(writing)
        self._running[pid] = (mutant, time.monotonic() + 180 + 8 * reach.seconds(tests), reading)

    def _be_the_mutant(
        self, session: pytest.Session, mutant: Mutant, tests: list[pytest.Item], writing: int
    ) -> None:
        verdict = "not run: the change could not be made"
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (240, 240))
            resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            session.config.pluginmanager.unregister(name="terminalreporter")
            if mutant.is_cold:
                verdict = _judged_cold(self._suite, mutant)
            else:
                _make(mutant)
                verdict = self._verdict_of(session, tests)
        except BaseException as error:  # noqa: BLE001 - nothing may escape into the loop of the first process
            verdict = f"{verdict}: {error!r}"
        finally:
            os.write(writing, verdict[:2000].encode())
            os._exit(0)

    def _verdict_of(self, session: pytest.Session, tests: list[pytest.Item]) -> str:
        self.failure = None
        session._setupstate.teardown_exact(tests[0])
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            try:
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            except BaseException as error:  # noqa: BLE001 - the change broke more than the test
                return f"killed: {error!r} in {test.nodeid}"
            if self.failure is not None:
                return f"killed: {self.failure}"
        return "survived: the tests that --narrow chose" if _IS_NARROW else "survived"

    def _reap(self) -> None:
        """Take in one answer, or end a mutant that goes on for ever."""
        pid, _ = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        late = [child for child, (_, deadline, _) in self._running.items() if deadline < now]
        for child in late:
            with contextlib.suppress(ProcessLookupError):  # it may be the one that has just ended
                os.killpg(child, signal.SIGKILL)
        if pid in self._running:
            mutant, _, reading = self._running.pop(pid)
            with os.fdopen(reading, "rb") as pipe:
                self._say(mutant, pipe.read().decode() or "killed: ran out of time")
        elif not late:
            time.sleep(0.02)

    def _say(self, mutant: Mutant, verdict: str) -> None:
        with self._answers.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutant": self._stamps[mutant], "verdict": verdict}) + "\n")


# ------------------------------------------------------------------ which tests


class Reach:
    """Which lines of the suite's files each test reaches, and how long it takes; kept between runs."""

    def __init__(self, suite: Suite, session: pytest.Session, runner: Runner) -> None:
        self._suite, self._session, self._runner = suite, session, runner
        self._items = {item.nodeid: item for item in session.items}
        self._file = ROOT / "build" / "mutants" / f"reach-{suite.name}-{_fingerprint(suite)}.json"
        self._known: dict[str, dict[str, Any]] = {}
        self._killers = _killers(self._file.parent)
        if self._file.exists():
            self._known = json.loads(self._file.read_text("utf-8"))

    def learn(self) -> None:
        """Run every test that is not known yet. The first always runs: it starts the servers."""
        unknown = [item for name, item in self._items.items() if name not in self._known]
        first = next(iter(self._items.values()))
        watch = _Watch(self._suite.paths)
        todo = [first, *(item for item in unknown if item is not first)]
        # The last one is followed by another too: what it has opened must be closed before the first fork.
        # Where only one test judges, nothing follows, and pytest closes everything.
        other = next((item for item in self._items.values() if item is not todo[-1]), None)
        for item, following in zip(todo, [*todo[1:], other], strict=True):
            before, found = time.monotonic(), watch.begin()
            self._runner.failure = None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._known[item.nodeid] = {
                "seconds": round(time.monotonic() - before, 3),
                "passes": self._runner.failure is None,
                "lines": {path: sorted(lines) for path, lines in found.items() if lines},
            }
        watch.end()
        if not any(found["lines"] for found in self._known.values()):
            raise RuntimeError(
                "no test has reached a line of the files that are changed: nothing was watched"
            )
        failing = [name for name in self._items if not self._known[name]["passes"]]
        if len(failing) > len(self._items) // 10:
            raise RuntimeError(f"{len(failing)} tests fail without any change, {failing[0]} among them")
        for name in failing:
            print(f"not used, because it fails without any change: {name}", file=sys.stderr)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._known), "utf-8")

    def tests_for(self, mutant: Mutant) -> list[pytest.Item]:
        """The tests that reach the change: those about its file first, then what has killed a mutant of any
        suite before, then the quickest."""
        usable = [name for name in self._items if self._known.get(name, {}).get("passes")]
        names = list(self._reaching(mutant, usable))
        judges = _judges_of(mutant) or (f"test_{Path(mutant.path).stem}",)
        if _IS_NARROW and _judges_of(mutant):
            names = [name for name in names if _module_of(self._items[name]) in judges]
        names.sort(
            key=lambda name: (
                _module_of(self._items[name]) not in judges,
                _case(name) not in self._killers,
                self._known[name]["seconds"],
            )
        )
        return [self._items[name] for name in names[: None if mutant.is_critical else MOST_TESTS]]

    def seconds(self, tests: list[pytest.Item]) -> float:
        return float(sum(self._known[test.nodeid]["seconds"] for test in tests))

    def _reaching(self, mutant: Mutant, names: list[str]) -> Iterable[str]:
        if not mutant.is_python:
            return self._using(mutant, names)
        if mutant.function is None:
            return [name for name in names if mutant.path in self._known[name]["lines"]] or names
        there = range(mutant.line, mutant.last_line + 1)
        return [
            name
            for name in names
            if not set(self._known[name]["lines"].get(mutant.path, ())).isdisjoint(there)
        ]

    def _using(self, mutant: Mutant, names: list[str]) -> list[str]:
        """The tests that reach a line of Python which names this statement or script; all, if none does.

        A function of Postgres is also called by other functions, so all are asked.
        """
        if "functions" in Path(mutant.path).parts:
            return names
        quoted = f'"{_statement_of(mutant)}"'
        lines = {path: _lines_with(quoted, path) for path in self._suite.paths if path.endswith(".py")}
        reached = [
            name
            for name in names
            if any(
                not lines[path].isdisjoint(there)
                for path, there in self._known[name]["lines"].items()
                if path in lines
            )
        ]
        return reached or names


def _statement_of(mutant: Mutant) -> str:
    """The name by which Python calls what is changed: that of its block, else of its file."""
    lines = (PACKAGE / mutant.path).read_text("utf-8").splitlines()[: mutant.line]
    blocks = [line.removeprefix("-- name: ").strip() for line in lines if line.startswith("-- name: ")]
    return blocks[-1] if blocks else Path(mutant.path).stem


def _judges_of(mutant: Mutant) -> tuple[str, ...] | None:
    """The modules of tests about a file of SQL or Lua; None: all have their say."""
    return None if mutant.is_python else JUDGES.get(Path(mutant.path).stem)


def _module_of(item: pytest.Item) -> str:
    return str(getattr(item, "function", item).__module__).rpartition(".")[2]


def _killers(folder: Path) -> set[str]:
    """The names of all tests that have killed a mutant so far: few kill most."""
    lines = [line for file in folder.glob("answers-*.jsonl") for line in file.read_text("utf-8").splitlines()]
    verdicts = [str(json.loads(line)["verdict"]) for line in lines]
    return {_case(verdict) for verdict in verdicts if verdict.startswith("killed: tests")}


def _case(name: str) -> str:
    """A test without its file and its parameters: a case of the kit has the same name on every store."""
    return name.partition("::")[2].partition("[")[0]


def _lines_with(text: str, path: str) -> set[int]:
    lines = (PACKAGE / path).read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if text in line}


class _Watch:
    """Notes every line of some files that is run; costs nothing anywhere else."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._files = {str(PACKAGE / path): path for path in paths if path.endswith(".py")}
        self._found: Lines = {}
        for path in self._files.values():  # drivers are imported by name, when the first store is opened
            importlib.import_module(f"taskharbor.{path.removesuffix('.py').replace('/', '.')}")
        self._codes = [code for code in _codes() if code.co_filename in self._files]
        sys.monitoring.use_tool_id(_TOOL, "mutants")
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, self._note)
        for code in self._codes:
            sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)

    def begin(self) -> Lines:
        self._found = {path: set() for path in self._files.values()}
        sys.monitoring.restart_events()
        return self._found

    def end(self) -> None:
        for code in self._codes:
            sys.monitoring.set_local_events(_TOOL, code, 0)
        sys.monitoring.free_tool_id(_TOOL)

    def _note(self, code: CodeType, line: int) -> Any:
        self._found[self._files[code.co_filename]].add(line)
        return sys.monitoring.DISABLE


def _codes() -> Iterator[CodeType]:
    """The code of every function that exists, with the functions inside it."""
    waiting = [thing.__code__ for thing in gc.get_objects() if isinstance(thing, FunctionType)]
    seen: set[int] = set()
    while waiting:
        code = waiting.pop()
        if id(code) not in seen:
            seen.add(id(code))
            waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
            yield code


def _fingerprint(suite: Suite) -> str:
    """Changes when the lines of a watched file may have moved."""
    texts = [(PACKAGE / path).read_bytes() for path in suite.paths if path.endswith(".py")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


# ------------------------------------------------------------------ making a mutant


def _make(mutant: Mutant) -> None:
    """Change the running program."""
    if mutant.is_python:
        _change_function(mutant)
    else:
        _change_text(mutant)
    _forget_cached_answers()


def _change_function(mutant: Mutant) -> None:
    file = str(PACKAGE / mutant.path)
    changed = {(code.co_qualname, code.co_firstlineno): code for code in _inside(mutated_code(mutant))}
    functions = [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, FunctionType)
        and thing.__code__.co_filename == file
        and (thing.__code__.co_qualname, thing.__code__.co_firstlineno) == mutant.function
    ]
    if not functions:
        raise LookupError(f"{mutant.function} of {file} is nowhere to be found")
    for function in functions:
        function.__code__ = changed[mutant.function]  # type: ignore[index]


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _inside(inner)


def _change_text(mutant: Mutant) -> None:
    """Have the file read again, with the change in it, by the module that keeps its text."""
    changed, file, read = mutated_text(mutant), PACKAGE / mutant.path, Path.read_text

    def read_text(self: Path, *args: Any, **kwargs: Any) -> str:
        return changed if self == file else read(self, *args, **kwargs)

    Path.read_text = read_text  # type: ignore[method-assign,assignment]
    driver = mutant.path.split("/")[1]
    if driver == "redis":
        from taskharbor.drivers.redis import scripts

        for name, script in scripts.load().items():
            scripts.SCRIPTS[name].source, scripts.SCRIPTS[name].digest = script.source, script.digest
    elif driver == "postgres":
        from taskharbor.drivers.postgres import schema, statements

        statements.FILES.__init__("taskharbor.drivers.postgres")  # type: ignore[misc]
        schema.MIGRATIONS = schema.find_migrations("taskharbor.drivers.postgres")
        schema.FUNCTIONS = schema.read_functions()
    else:
        from taskharbor.drivers.sqlite import step as of_sqlite

        of_sqlite._FILES.__init__("taskharbor.drivers.sqlite")  # type: ignore[misc]


def _forget_cached_answers() -> None:
    """What was computed before the change was made must not speak for it."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper):
            module = thing.__module__ or ""
            if module.startswith(("taskharbor.drivers", "taskharbor.model", "taskharbor.worker")):
                thing.cache_clear()


# ------------------------------------------------------------------ a process of its own


def _judged_cold(suite: Suite, mutant: Mutant) -> str:
    answers = ROOT / "build" / "mutants" / f"cold-{os.getpid()}.jsonl"
    environment = {**os.environ, _COLD: mutant.key}
    command = [sys.executable, "-m", "mutation.runner", suite.name, str(answers)]
    subprocess.run(command, env=environment, input="", text=True, stdout=subprocess.DEVNULL, check=False)
    if not answers.exists():
        return "killed: cannot be imported"
    verdict = json.loads(answers.read_text("utf-8").splitlines()[0])["verdict"]
    answers.unlink()
    return str(verdict)


def _change_before_import(mutant: Mutant) -> None:
    get_code = SourceFileLoader.get_code

    def changed(self: SourceFileLoader, fullname: str) -> CodeType | None:
        is_it = self.path == str(PACKAGE / mutant.path)
        return mutated_code(mutant) if is_it else get_code(self, fullname)

    SourceFileLoader.get_code = changed  # type: ignore[method-assign,assignment]


# ------------------------------------------------------------------ start


def main() -> int:
    suite, answers = SUITES[sys.argv[1]], Path(sys.argv[2])
    cold = None
    if name := os.environ.get(_COLD):
        cold = next(mutant for mutant in suite.mutants() if mutant.key == name)
        _change_before_import(cold)
    runner = Runner(suite, set(sys.stdin.read().splitlines()), answers, cold)
    with tempfile.TemporaryDirectory(prefix="taskharbor-mutants-") as folder:
        flags = ["-q", "-n0", "--no-header", "-p", "no:cacheprovider", "--timeout", "90"]
        places = ["--basetemp", f"{folder}/tests", "-o", "tmp_path_retention_policy=none"]
        if cold is not None:
            flags.append("--assert=plain")  # else pytest reads the package by itself, without the change
        return int(pytest.main([*flags, *places, *suite.tests], plugins=[runner]))


def _start_server(name: str) -> None:
    """One server for all forks; named in the environment, so that none of them empties it for the others."""
    from taskharbor.testing import servers

    if name == "redis":
        os.environ["TASKHARBOR_TEST_REDIS_URL"] = servers.redis_url()
    elif name == "postgres":
        os.environ["TASKHARBOR_TEST_POSTGRES_URL"] = servers.postgres_url()
    elif name == "cluster":
        servers.cluster_url()


if __name__ == "__main__":
    sys.exit(main())
