"""A trial of callbacks: groups of children among workers that are killed, and stores that are restarted.

    python -m tests.chaos.callbacks --store sqlite --runs 5

In every run a group is stored, some of its children end, and a worker is killed with `kill -9` at a moment
drawn from the seed: between a twentieth of the children and the last of them. In every fifth run the store
is killed and started again as well; where the store is a file, all workers are. Another worker takes the
place of each that was killed, or that found its store away. A callback that fires once per run is what is
asked for: never lost, never doubled. A callback whose own worker was killed runs again, as any job does, and
is counted apart.

Other queues take part in the same trial as a `Contestant` of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

SILENT_SECONDS = 5.0
"""Without a line, before a contestant is asked whether any job is left."""


class Contestant(Protocol):
    """A queue on a store, with workers that are processes."""

    name: str
    worker_count: int
    patience: float
    """Seconds without a new line after which a callback counts as lost."""

    async def begin(self, folder: Path) -> None:
        """Start what it needs; lines go into this folder."""

    def worker(self) -> subprocess.Popen[bytes]:
        """A worker in a session of its own."""

    async def store_group(self, run: int, children: int) -> None:
        """Store this many children, and a callback that comes after all of them."""

    async def restart_store(self) -> bool:
        """Kill the store and start it again; False where there is nothing to restart but the workers."""

    async def has_work_left(self) -> bool:
        """Whether any job is queued, or held by a worker; True of one that cannot say."""

    async def looked_at(self, runs: Sequence[int], children: int) -> list[str]:
        """What the store itself says against it."""

    async def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Size:
    runs: int = 100
    children: int = 1000
    restarted_every: int = 5
    """One run in so many restarts the store."""
    seed: int = 1


@dataclass
class Tally:
    """What a trial came to."""

    runs: int = 0
    children: int = 0
    kills: int = 0
    restarts: int = 0
    fired: int = 0
    """Runs whose callback ran."""
    twice: list[int] = field(default_factory=list)
    """Runs whose callback ran more than once although no worker that ran it was killed."""
    again: int = 0
    """Runs of a callback beyond the first, after the worker of the first was killed."""
    lost: list[int] = field(default_factory=list)
    """Runs whose callback never came."""
    missing: int = 0
    """Children that never ran."""
    repeated: int = 0
    """Runs of a child beyond its first: those that a killed worker held."""
    complaints: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        bad = self.twice or self.lost or self.missing or self.complaints
        return not bad and self.fired == self.runs

    def __str__(self) -> str:
        text = (
            f"{self.fired} of {self.runs} callbacks fired, {len(self.lost)} lost, {len(self.twice)} twice, "
            f"{self.again} again after their worker was killed; {self.kills} workers killed, "
            f"{self.restarts} restarts of the store; {self.missing} children never ran, "
            f"{self.repeated} ran again; {self.seconds:.0f} s"
        )
        return "\n".join([text, *self.complaints[:5]])


class Trial:
    """Runs one contestant through all its runs."""

    def __init__(self, contestant: Contestant, folder: Path, size: Size) -> None:
        self.contestant = contestant
        self.folder = folder
        self.size = size
        self.tally = Tally()
        self._chance = random.Random(size.seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()
        """Process groups."""

    async def run(self) -> Tally:
        began = time.monotonic()
        one = self.contestant
        await one.begin(self.folder)
        try:
            self._workers = [one.worker() for _ in range(one.worker_count)]
            for number in range(self.size.runs):
                await self._run_one(number)
            await self._count()
        finally:
            for worker in self._workers:
                _kill_group(worker)
            await one.end()
        self.tally.seconds = time.monotonic() - began
        return self.tally

    async def _run_one(self, number: int) -> None:
        count = self.size.children
        self.tally.runs += 1
        self.tally.children += count
        kill_at = self._chance.randrange(count // 20, count)
        is_restarted = (number + 1) % self.size.restarted_every == 0
        restart_at = self._chance.randrange(count // 20, count) if is_restarted else count + 1
        await self.contestant.store_group(number, count)
        for what, at in sorted([("kill", kill_at), ("restart", restart_at)], key=lambda turn: turn[1]):
            if at <= count and await self._reached(number, at):
                await (self._kill_one(number) if what == "kill" else self._restart())
        await self._reached(number, None)

    async def _reached(self, number: int, children: int | None) -> bool:
        """Until so many children have ended, or the callback has; False when nothing more is to come."""
        size, since = -1, time.monotonic()
        path = self.folder / f"run-{number}"
        while True:
            now = path.stat().st_size if path.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
                lines = _lines(path)
                if "callback" in (line[0] for line in lines):
                    return True
                if children is not None and len(lines) >= children:
                    return True
            elif await self._is_over(time.monotonic() - since):
                return False
            self._start_again()
            await asyncio.sleep(0.002 if time.monotonic() - since < 1 else 0.2)

    async def _is_over(self, silent: float) -> bool:
        """After a long time without a line; earlier where the contestant says that no job is left."""
        if silent > self.contestant.patience:
            return True
        return silent > SILENT_SECONDS and not await self.contestant.has_work_left()

    def _start_again(self) -> None:
        """As a service manager does: a worker that begins while its store is away exits."""
        for place, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self._workers[place] = self.contestant.worker()

    async def _kill_one(self, number: int) -> None:
        """The worker that wrote the last line: it holds jobs."""
        last = _lines(self.folder / f"run-{number}")[-1]
        group = self._group_of(int(last[-1]))
        victims = [worker for worker in self._workers if worker.pid == group] or self._workers[:1]
        self._replace(victims[0])

    async def _restart(self) -> None:
        self.tally.restarts += 1
        if not await self.contestant.restart_store():
            for worker in list(self._workers):
                self._replace(worker)

    def _replace(self, worker: subprocess.Popen[bytes]) -> None:
        self._killed.add(worker.pid)
        _kill_group(worker)
        self.tally.kills += 1
        self._workers[self._workers.index(worker)] = self.contestant.worker()

    def _group_of(self, pid: int) -> int:
        try:
            return os.getpgid(pid)
        except ProcessLookupError:
            return pid

    async def _count(self) -> None:
        """Late ones, and second ones, have had the time to come."""
        await asyncio.sleep(min(self.contestant.patience / 4, 5.0))
        for number in range(self.size.runs):
            lines = _lines(self.folder / f"run-{number}")
            callbacks = [line for line in lines if line[0] == "callback"]
            runs = [line[1] for line in lines if line[0] == "child"]
            self.tally.fired += bool(callbacks)
            self.tally.missing += self.size.children - len(set(runs))
            self.tally.repeated += len(runs) - len(set(runs))
            if not callbacks:
                self.tally.lost.append(number)
            first = [int(line[-1]) for line in callbacks[:-1]]
            if all(pid in self._killed for pid in first):
                self.tally.again += len(first)
            else:
                self.tally.twice.append(number)
        self.tally.complaints += await self.contestant.looked_at(range(self.size.runs), self.size.children)


def _lines(path: Path) -> list[list[str]]:
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def tried(contestant: Contestant, size: Size) -> Tally:
    with tempfile.TemporaryDirectory(prefix="taskharbor-trial-") as folder:
        return await Trial(contestant, Path(folder), size).run()


def main() -> int:
    from tests.chaos.callbacks_ours import STORES, contestants

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--children", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    size = Size(runs=options.runs, children=options.children, seed=options.seed)
    is_good = True
    with contestants(options.store) as ours:
        for one in ours:
            tally = asyncio.run(tried(one, size))
            is_good = is_good and tally.is_good
            sys.stdout.write(f"{one.name}: {tally}\n")
            sys.stdout.flush()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
