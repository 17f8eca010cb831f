"""The tutorial about workflows, on every store, by workers that are killed at random while it runs.

The code is that of the page, but for five things, without which a test of a minute would show nothing:

- the harbor has a store and workers of its own, where the page has an `InlineHarbor`;
- the log is a file that the workers share, and each line of it takes a moment, so that kills meet handlers;
- the hour of `cool down` is a moment;
- a job survives any number of killed workers, not three: they are killed for as long as it takes;
- a lease is two seconds long, so that a killed worker's job is soon taken over.

The approvals come after three kills, so no order can end before its workers were killed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskharbor import JobFailed
from taskharbor.drivers import connect
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_cluster_url, fresh_postgres_url, fresh_redis_url
from tests.examples.pages import ROOT, blocks

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "http": lambda _: fresh_http_url(),
    "cluster": lambda _: fresh_cluster_url(),
}
PAGE = "docs/start/workflow.md"
PATIENCE = 120.0
INLINE = "InlineHarbor(clock=SimulatedClock(), raises=False, retry=RetryPolicy(max_attempts=2))"
HEAD = """
import os
import time
from taskharbor import Harbor


class Log:
    def append(self, line):
        time.sleep(0.05)
        with open(os.environ["ORDER_LOG"], "a") as out:
            out.write(line + "\\n")
"""


def program() -> str:
    """The definitions of the page, with a real store, a log in a file, and an hour that is a moment."""
    python = [text for language, text in blocks(PAGE) if language == "python"]
    tasks, flow = python[0], python[1]
    [by_hand] = [text.partition("\n\n\njob =")[0] for text in python if "order_by_hand" in text]
    changes = {
        INLINE: 'Harbor(os.environ["ORDER_URL"], retry=RetryPolicy(max_attempts=2))',
        "log: list[str] = []": "log = Log()",
        '"cool down", "1h"': '"cool down", "100ms"',
    }
    text = "\n\n".join([HEAD, tasks, flow, by_hand])
    for old, new in changes.items():
        assert text.count(old) == 1, f"the page has changed: {old}"
        text = text.replace(old, new)
    # Workers are killed for as long as it takes: more often than the three times that a job survives.
    return text.replace("@harbor.task\n", "@harbor.task(max_stalls=0)\n")


class Workers:
    """Two workers; one of them is killed again and again, once it is at work."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.kills = 0
        self._folder = folder
        self._env = env
        self._count = 0
        self._is_over = threading.Event()
        self._chance = random.Random(1)
        self._there = [self._start(), self._start()]
        self._killer = threading.Thread(target=self._kill_again_and_again)
        self._killer.start()

    def _start(self) -> tuple[subprocess.Popen[bytes], Path]:
        self._count += 1
        path = self._folder / f"worker-{self._count}.log"
        command = [sys.executable, "-m", "taskharbor", "worker", "order:harbor", "--lease", "2s"]
        with path.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--sweep-every", "300ms"], cwd=self._folder, env=self._env, stdout=log, stderr=log
            )
        return process, path

    def _kill_again_and_again(self) -> None:
        # Each lives a little longer than the one before: a slow machine gets its jobs done, too.
        while not self._is_over.wait(self._chance.uniform(0.1, 0.8) * (1 + self.kills / 5)):
            place = self._chance.randrange(2)
            process, log = self._there[place]
            if b"serves" in log.read_bytes():
                process.kill()
                process.wait()
                self.kills += 1
                self._there[place] = self._start()

    def close(self) -> None:
        self._is_over.set()
        self._killer.join()
        for process, _ in self._there:
            process.kill()
            process.wait()


@contextmanager
def order_among_kills(url: str, folder: Path) -> Iterator[tuple[ModuleType, Workers]]:
    (folder / "order.py").write_text(program())
    env = {**os.environ, "ORDER_URL": url, "ORDER_LOG": str(folder / "log"), "PYTHONPATH": str(ROOT / "src")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDER_URL", url)
        patch.setenv("ORDER_LOG", str(folder / "log"))
        spec = importlib.util.spec_from_file_location("order", folder / "order.py")
        assert spec is not None
        assert spec.loader is not None
        order = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(order)
        workers = Workers(folder, env)
        try:
            yield order, workers
        finally:
            workers.close()
            order.harbor.close()


def until(is_so: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def has_workflows(url: str) -> bool:
    async def asked() -> bool:
        async with connect(url) as driver:
            return driver.capabilities.workflows

    return asyncio.run(asked())


@pytest.mark.more("kills workers for as long as it runs")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORES)
def test_an_order_is_shipped_or_refunded_although_workers_are_killed(name: str, tmp_path: Path) -> None:
    url = STORES[name](tmp_path)
    if not has_workflows(url):
        pytest.skip(f"{name} does not declare workflows")
    with order_among_kills(url, tmp_path) as (order, workers):
        lines = tmp_path / "log"
        good, bad = order.order_flow(42, 1999).enqueue(), order.order_flow(43, 20_000).enqueue()
        by_hand = order.order_by_hand.enqueue(44)
        until(
            lambda: lines.exists() and "packed with receipt-42" in lines.read_text(), "the box to be packed"
        )
        until(lambda: workers.kills >= 3, "three workers to be killed")
        assert good.refresh().counts.open > 0
        assert not by_hand.refresh().state.is_terminal
        good.send("approval", {"by": "Ada"})
        by_hand.send("approval", {"by": "Bob"})

        assert good.result(timeout=PATIENCE) == "1 box sent, approved by Ada"
        assert by_hand.result(timeout=PATIENCE) == "1 box sent, approved by Bob"
        with pytest.raises(JobFailed, match="children failed"):
            bad.result(timeout=PATIENCE)
        states = {child.record.type: child.state.value for child in bad.children()}
        assert (states["pay"], states["pack"], states["refund"]) == ("failed", "cancelled", "completed")
        log = lines.read_text().splitlines()
        assert "refunded 43" in log
        assert "refunded 42" not in log
        assert log.index("paid 1999") < log.index("packed with receipt-42")
        assert by_hand.refresh().steps == ["pay", "cool down"]
