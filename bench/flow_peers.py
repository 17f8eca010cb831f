"""Groups, chains, graphs and steps of other queues, beside ours; and these queues in the trial of callbacks.

The peers live in an environment of their own (`BENCH_PEERS_HOME`, by default a temporary folder), which the
first run makes: pip into `flows`, npm into `flows-node`. pg-boss asks for Node.js 22 from its version 12 on,
which knows dependencies; 12.35 runs on 20 as well. Not there: what needs a paid licence or a server of its
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
NODE_HOME = HOME / "flows-node"
PIP = ("celery[redis]", "rq", "dramatiq[redis]", "huey", "redis", "hiredis", "dbos", "psycopg[binary]")
PIP += ("absurd-sdk", "absurdctl")
NPM = ("bullmq", "ioredis", "pg-boss@12.35.0")
GIVEN_UP_SECONDS = 60.0
WORK = ("group", "graph", "chain", "steps")


@dataclass(frozen=True)
class Kind:
    store: str = "redis"
    script: str = ""
    does: tuple[str, ...] = ("group", "chain")
    """The commands of its adapter."""
    says_left: bool = True
    """It can say that no job is queued or held any more."""
    most_links: int = 1000


OURS = {
    "taskharbor-redis": Kind(script="flow_taskharbor.py", does=WORK, says_left=False),
    "taskharbor-postgres": Kind(store="postgres", script="flow_taskharbor.py", does=WORK, says_left=False),
}
PEERS = {
    "celery": Kind(),
    "rq": Kind(does=("group", "graph", "chain")),
    "dramatiq": Kind(),
    "huey": Kind(),
    "bullmq": Kind(script="flow_bullmq.cjs"),
    "pg-boss": Kind(
        store="postgres",
        script="flow_pgboss.cjs",
        does=("group", "graph", "chain"),
        says_left=False,
        most_links=20,  # more than a second each
    ),
    "dbos": Kind(store="postgres", does=("group", "steps"), says_left=False),
    "absurd": Kind(store="postgres", does=("group", "steps"), says_left=False),
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of one round of each kind of work."""

    group: int = 2000
    graph: int = 100
    chain: int = 200
    steps: int = 200
    rounds: int = 2

    def of(self, what: str, kind: Kind) -> int:
        count: int = getattr(self, what)
        return min(count, kind.most_links) if what == "chain" else count


def install(names: Sequence[str]) -> None:
    """Only what is not there yet."""
    HOME.mkdir(parents=True, exist_ok=True)
    venv = HOME / "flows"
    if not (venv / "bin" / "absurdctl").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin" / "pip"), "install", "-q", *PIP], check=True)
    in_node = any(PEERS[name].script.endswith(".cjs") for name in names)
    if in_node and not (NODE_HOME / "node_modules" / "pg-boss").exists():
        NODE_HOME.mkdir(exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", str(NODE_HOME), *NPM], check=True)


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
        return self._ask(f"{what} {run} {count}")

    def _ask(self, command: str) -> float:
        producer = self._producer
        assert producer is not None
        assert producer.stdin is not None
        assert producer.stdout is not None
        producer.stdin.write(f"{command}\n")
        producer.stdin.flush()
        answer = producer.stdout.readline().split()
        assert answer[:1] == ["ok"], f"{self.name}: no answer to {command}"
        return float(answer[1])

    async def has_work_left(self) -> bool:
        """Also of one that cannot say."""
        return not self.kind.says_left or await asyncio.to_thread(self._ask, "left") > 0

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
            "BENCH_NODE_HOME": str(NODE_HOME),
            "PYTHONPATH": str(HERE / "peers"),
        }


# ------------------------------------------------------------------ speed


async def measured(name: str, sizes: Sizes) -> list[str]:
    """One row: children, nodes, links and steps a second, from the call that stores them to the callback."""
    peer = Peer(name)
    with tempfile.TemporaryDirectory(prefix="taskharbor-peers-") as folder:
        await peer.begin(Path(folder))
        worker = None
        try:
            worker = peer.worker()
            peer.send("group", 0, 20)
            assert await _called_back(Path(folder, "run-0")), "no callback"
            rates = [await _rate(peer, Path(folder), what, sizes) for what in WORK]
        finally:
            if worker is not None:
                os.killpg(worker.pid, 9)
                worker.wait()
            await peer.end()
    return [name, *rates, peer.settings]


async def _rate(peer: Peer, folder: Path, what: str, sizes: Sizes) -> str:
    if what not in peer.kind.does:
        return "–"
    count = sizes.of(what, peer.kind)
    first = 1 + 100 * WORK.index(what)
    times = [await _timed(peer, folder, what, first + n, count) for n in range(sizes.rounds)]
    nodes = count * (10 if what == "graph" else 1)
    return f"{nodes / statistics.median(times):,.0f}" if all(times) else "no callback"


async def _timed(peer: Peer, folder: Path, what: str, run: int, count: int) -> float:
    """Seconds from the call that stores it to its callback, or to those of all graphs; 0: it never came."""
    began = time.perf_counter()
    peer.send(what, run, count)
    is_there = await _called_back(folder / f"run-{run}", count if what == "graph" else 1)
    return time.perf_counter() - began if is_there else 0.0


async def _called_back(path: Path, times: int = 1) -> bool:
    size, since = -1, time.monotonic()
    while time.monotonic() - since < GIVEN_UP_SECONDS:
        now = path.stat().st_size if path.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
            if path.exists() and path.read_text().count("callback") >= times:
                return True
        await asyncio.sleep(0.002)
    return False


def compare(names: Sequence[str], sizes: Sizes, *, is_kept: bool) -> None:
    """All of them and TaskHarbor on the same kinds of servers, and a section of RESULTS.md."""
    from results import table, write_section

    install(names)
    lines = []
    for name in (*OURS, *names):
        try:
            line = asyncio.run(measured(name, sizes))
        except AssertionError as error:
            line = [name, f"failed: {error}", *[""] * len(WORK)]
        lines.append(line)
        print(" | ".join(line), flush=True)
    settings = (
        f"One worker process; groups of {sizes.group:,} children with results and a callback, "
        f"{sizes.graph} graphs of 10 nodes and 14 edges, a call each, chains of {sizes.chain} links "
        f"({PEERS['pg-boss'].most_links} with pg-boss), {sizes.steps} steps of one handler. From the call "
        f"that stores it to the callback, median of {sizes.rounds} rounds; –: it has no such thing. Valkey "
        "with an append-only file flushed at every write, Postgres with fsync. Load "
        f"{os.getloadavg()[0]:.1f} at the end."
    )
    if is_kept:
        head = ["queue", "children a second", "nodes a second", "links a second", "steps a second"]
        write_section("Workflows beside other queues", f"{settings}\n\n{table([*head, 'settings'], lines)}")
