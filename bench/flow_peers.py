"""Groups, chains and steps of other queues, beside ours; and the same queues in the trial of callbacks.

The peers live in an environment of their own (`BENCH_PEERS_HOME`, by default a temporary folder), which the
first run makes: pip into `flows`, npm into `node`. Not there: Absurd, whose package has no schema with it,
pg-boss before its version 12, which knows no dependencies, and what needs a paid licence or a server of its
own.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taskharbor.testing.servers import PostgresServer, ValkeyServer

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("BENCH_PEERS_HOME", Path(tempfile.gettempdir()) / "peers"))
PIP = ("celery[redis]", "rq", "dramatiq[redis]", "huey", "redis", "hiredis", "dbos", "psycopg[binary]")
NPM = ("bullmq", "ioredis")
GIVEN_UP_SECONDS = 60.0


@dataclass(frozen=True)
class Kind:
    store: str = "redis"
    script: str = ""
    chain_is: str = "chain"


OURS = {
    "taskharbor-redis": Kind(script="flow_taskharbor.py"),
    "taskharbor-postgres": Kind(store="postgres", script="flow_taskharbor.py"),
}
PEERS = {
    "celery": Kind(),
    "rq": Kind(),
    "dramatiq": Kind(),
    "huey": Kind(),
    "bullmq": Kind(script="flow_bullmq.cjs"),
    "dbos": Kind(store="postgres", chain_is="steps of a workflow"),
}


def install(names: Sequence[str]) -> None:
    """Only what is not there yet."""
    HOME.mkdir(parents=True, exist_ok=True)
    venv = HOME / "flows"
    if not (venv / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin" / "pip"), "install", "-q", *PIP], check=True)
    if "bullmq" in names and not (HOME / "node" / "node_modules" / "bullmq").exists():
        (HOME / "node").mkdir(exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", str(HOME / "node"), *NPM], check=True)


class Peer:
    """One other queue: its server, its workers and its producer. A contestant of the trial of callbacks."""

    worker_count = 2
    patience = GIVEN_UP_SECONDS

    def __init__(self, name: str, child_seconds: float = 0.0) -> None:
        self.name = name
        self.kind = (PEERS | OURS)[name]
        self._seconds = child_seconds
        self._server: PostgresServer | ValkeyServer | None = None
        self._folder = Path()
        self._producer: subprocess.Popen[str] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def settings(self) -> str:
        """The line of its adapter that says them."""
        found = re.search(r'SETTINGS = "(.+)"', self._script.read_text("utf-8"))
        return found[1] if found else ""

    @property
    def _script(self) -> Path:
        return HERE / "peers" / (self.kind.script or f"flow_{self.name}.py")

    async def begin(self, folder: Path) -> None:
        self._folder = folder
        self._server = (
            PostgresServer(durable=True) if self.kind.store == "postgres" else ValkeyServer(durable=True)
        )
        self._server.start()
        command = [*self._command(), "produce"]
        self._producer = subprocess.Popen(
            command, env=self._env("producer"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._producer.stdout is not None
        assert self._producer.stdout.readline().strip() == "ready", f"{self.name} cannot produce"

    def worker(self) -> subprocess.Popen[bytes]:
        """In the place of one that is dead, if there is one: some queues take up what their own id left."""
        dead = [slot for slot, process in self._workers.items() if process.poll() is not None]
        slot = dead[0] if dead else len(self._workers)
        with (self._folder / "workers.log").open("ab") as log:
            self._workers[slot] = subprocess.Popen(
                [*self._command(), "worker"],
                env=self._env(str(slot)),
                cwd=HERE / "peers",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._workers[slot]

    async def store_group(self, run: int, children: int) -> None:
        await asyncio.to_thread(self.send, "group", run, children)

    def send(self, what: str, run: int, count: int) -> float:
        """Seconds until it was stored."""
        producer = self._producer
        assert producer is not None
        assert producer.stdin is not None
        assert producer.stdout is not None
        producer.stdin.write(f"{what} {run} {count}\n")
        producer.stdin.flush()
        answer = producer.stdout.readline().split()
        assert answer[:1] == ["ok"], f"{self.name}: {what} was not stored"
        return float(answer[1])

    async def restart_store(self) -> bool:
        assert self._server is not None
        self._server.kill()
        self._server.start()
        return True

    async def looked_at(self, runs: Sequence[int], children: int) -> list[str]:
        return []

    async def end(self) -> None:
        if self._producer is not None:
            self._producer.kill()
            self._producer.wait()
        if self._server is not None:
            self._server.close()

    def _command(self) -> list[str]:
        if self._script.suffix == ".cjs":
            return ["node", str(self._script)]
        own = sys.executable if self.name in OURS else str(HOME / "flows" / "bin" / "python")
        return [own, str(self._script)]

    def _env(self, slot: str) -> dict[str, str]:
        assert self._server is not None
        url = (
            self._server.url if self.kind.store == "postgres" else f"redis://127.0.0.1:{self._server.port}/0"
        )
        return {
            **os.environ,
            "TRIAL_URL": url,
            "TRIAL_FOLDER": str(self._folder),
            "TRIAL_SLOT": slot,
            "TRIAL_CHILD_SECONDS": str(self._seconds),
            "BENCH_NODE_HOME": str(HOME / "node"),
            "PYTHONPATH": str(HERE / "peers"),
        }


# ------------------------------------------------------------------ speed


async def measured(name: str, children: int, links: int, rounds: int) -> list[str]:
    """One row: children and links a second, from the first line of a handler to the callback."""
    peer = Peer(name)
    with tempfile.TemporaryDirectory(prefix="taskharbor-peers-") as folder:
        await peer.begin(Path(folder))
        worker = None
        try:
            worker = peer.worker()
            peer.send("group", 0, 20)
            assert await _called_back(Path(folder, "run-0")), "no callback"
            groups = [await _timed(peer, Path(folder), "group", 1 + n, children) for n in range(rounds)]
            chains = [await _timed(peer, Path(folder), "chain", 101 + n, links) for n in range(rounds)]
        finally:
            if worker is not None:
                os.killpg(worker.pid, 9)
                worker.wait()
            await peer.end()
    return [
        name,
        f"{children / statistics.median(groups):,.0f}" if all(groups) else "no callback",
        f"{links / statistics.median(chains):,.0f} ({peer.kind.chain_is})" if all(chains) else "no callback",
        peer.settings,
    ]


async def _timed(peer: Peer, folder: Path, what: str, run: int, count: int) -> float:
    """Seconds from the call that stores it to its callback; 0: it never came."""
    began = time.perf_counter()
    peer.send(what, run, count)
    return time.perf_counter() - began if await _called_back(folder / f"run-{run}") else 0.0


async def _called_back(path: Path) -> bool:
    size, since = -1, time.monotonic()
    while time.monotonic() - since < GIVEN_UP_SECONDS:
        now = path.stat().st_size if path.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
            if path.exists() and "callback" in path.read_text():
                return True
        await asyncio.sleep(0.002)
    return False


def compare(names: Sequence[str], *, is_kept: bool, children: int = 2000, links: int = 200) -> None:
    """All of them and TaskHarbor on the same kinds of servers, and a section of RESULTS.md."""
    from results import table, write_section

    install(names)
    rounds, lines = 2, []
    for name in (*OURS, *names):
        try:
            line = asyncio.run(measured(name, children, links, rounds))
        except AssertionError as error:
            line = [name, f"failed: {error}", "", ""]
        lines.append(line)
        print(" | ".join(line), flush=True)
    settings = (
        f"One worker process; groups of {children:,} children with results and a callback, chains of {links} "
        "links; from the call that stores it to the callback, median of 2 rounds. Valkey with an append-only "
        f"file flushed at every write, Postgres with fsync. Load {os.getloadavg()[0]:.1f} at the end."
    )
    if is_kept:
        body = table(["queue", "children a second", "links a second", "settings"], lines)
        write_section("Workflows beside other queues", f"{settings}\n\n{body}")
