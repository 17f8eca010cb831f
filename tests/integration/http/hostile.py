"""Hostile callers for a real server, and what the server was like meanwhile.

For test_hostile_callers.py and bench/bench_hostile.py. All of it goes to 127.0.0.1, and has an end.
"""

from __future__ import annotations

import collections
import contextlib
import json
import re
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskharbor.web.config import ServerConfig
from tests.integration.http.api import GENEROUS_SECONDS, make_token, token_file

MOST_MEMORY = 256 * 1024 * 1024
HELD = 1200
"""Connections that this side keeps open at once: more than the server holds."""
LONGEST_SECONDS = 90.0
ENOUGH = 21
"""Answers of /livez that say something; on a quick machine the attacks begin again until it has them."""
MOST_FILES = ServerConfig().max_connections + 100
"""Of a server: its connections, its store, its log, the event loop, and callers it is about to refuse."""

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def enough_files() -> Iterator[None]:
    """Files for the connections that this side holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HELD + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"this process may open {hard} files, and the test needs {wanted}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Server:
    def __init__(self, port: int, pid: int, log: Path, producer: bytes, viewer: bytes) -> None:
        self.port, self.pid, self.log = port, pid, log
        self.producer, self.viewer = producer, viewer
        self.made = self.most_files = 0
        """Connections that `never_read` made, and the most files that the server had open meanwhile."""

    @property
    def peak(self) -> int:
        status = Path(f"/proc/{self.pid}/status")
        if not status.exists():
            pytest.skip("this machine does not show how much memory a process had")
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        assert found is not None
        return int(found[1]) * 1024

    def files(self) -> int:
        folder = Path(f"/proc/{self.pid}/fd")
        return sum(1 for _ in folder.iterdir()) if folder.exists() else 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=GENEROUS_SECONDS)

    def ask(self, *pieces: bytes) -> bytes:
        """The answer; nothing where the server hangs up."""
        with self.connect() as caller, contextlib.suppress(ConnectionError):
            for piece in pieces:
                caller.sendall(piece)
            return caller.recv(65536)
        return b""


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Server]:
    """`taskharbor server` on a SQLite store in this folder."""
    tokens = token_file(folder)
    producer, viewer = make_token(tokens, "producer").encode(), make_token(tokens, "viewer").encode()
    log = folder / "log"
    command = [
        sys.executable, "-m", "taskharbor", "server", "--port", "0", "--no-scheduler", "--rate", "0",
        "--driver-rate", "0", "--tokens", str(folder / "tokens.json"), "--url", f"sqlite:///{folder}/jobs.db",
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        deadline = time.monotonic() + GENEROUS_SECONDS
        while (found := re.search(rb"serving on http://127.0.0.1:(\d+)", log.read_bytes())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Server(int(found[1]), process.pid, log, producer, viewer)
    finally:
        process.kill()
        process.wait()


PROBE = """
import select, socket, sys, time
port, enough = int(sys.argv[1]), int(sys.argv[2])
slowest, answered, refused = 0.0, 0, 0
while not select.select([sys.stdin], [], [], 0.02)[0]:
    begun = time.monotonic()
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
            caller.sendall(b"GET /livez HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
            answer = caller.recv(65536)
    except ConnectionError:
        pass
    slowest = max(slowest, time.monotonic() - begun)
    answered, refused = answered + (b" 200 OK" in answer), refused + (b" 200 OK" not in answer)
    if answered + refused == enough:
        print("enough", flush=True)
print(slowest, answered, refused)
"""


class Prober:
    """Asks /livez again and again, and keeps how long the slowest answer took.

    A process of its own: in this one it would wait for the attackers, who share its interpreter lock.
    """

    def __init__(self, server: Server) -> None:
        command = [sys.executable, "-c", PROBE, str(server.port), str(ENOUGH)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answered = self.refused = 0
        self.slowest = 0.0

    def has_enough(self) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def stop(self) -> None:
        printed, _ = self._process.communicate("stop\n", GENEROUS_SECONDS)
        slowest, answered, refused = printed.splitlines()[-1].split()
        self.slowest, self.answered, self.refused = float(slowest), int(answered), int(refused)


def authorized(token: bytes) -> bytes:
    return b"Authorization: Bearer " + token + b"\r\n"


def never_read(
    connections: int, others: list[threading.Thread], server: Server, is_late: Callable[[], bool]
) -> None:
    """Connections that ask for much and read nothing, ask for nothing, or never end their request.

    The last of them stay until the other attacks are over.
    """
    ask = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    kinds = (ask * 8, LIVE + b"\r\n", LIVE, b"")
    held: collections.deque[socket.socket] = collections.deque()
    try:
        for number in range(connections):
            if is_late():
                return
            caller = server.connect()
            held.append(caller)
            with contextlib.suppress(OSError):
                caller.sendall(kinds[number % len(kinds)])
            if len(held) > HELD:
                held.popleft().close()
            server.made = number + 1
            if number % 50 == 0:
                server.most_files = max(server.most_files, server.files())
        for other in others:
            other.join(0.1)
            server.most_files = max(server.most_files, server.files())
            other.join()
    finally:
        for caller in held:
            caller.close()


def hostile_json(server: Server, is_late: Callable[[], bool]) -> None:
    """A mebibyte each: equal keys at the end, very many values, deep nesting, a long key with children."""
    size = 1024 * 1024
    keys = ",".join(f'"k{number}":1' for number in range(size // 12))
    bodies = [
        f'{{"type":"x","payload":{{{keys},"a":1,"a":1}}}}',
        '{"type":"x","payload":[' + ",".join(["[]"] * (size // 3 - 50)) + "]}",
        '{"type":"x","payload":[' + ", ".join(["{}"] * (size // 4 - 50)) + "]}",
        "[" * size,
        '{"type":"x","payload":{"' + "k" * (size // 2) + '":[' + ",".join(["[1]"] * (size // 10)) + "]}}",
    ]
    for _ in range(3):
        for body in bodies:
            if is_late():
                return
            head = POST % b"/api/jobs" + authorized(server.producer)
            server.ask(head + b"Content-Length: %d\r\n\r\n" % len(body) + body.encode())


def trailers(server: Server, is_late: Callable[[], bool]) -> None:
    """Without a token: headers after the body, without an end."""
    head = POST % b"/api/jobs" + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    for _ in range(40):
        if is_late():
            return
        with server.connect() as caller, contextlib.suppress(OSError):
            caller.sendall(head)
            for _ in range(64):
                caller.sendall(b"x-a: b\r\n" * 8192)


def repeated_ids(server: Server, is_late: Callable[[], bool]) -> None:
    """One job of a megabyte, asked for hundreds of times at once."""
    job = json.dumps({"type": "x", "payload": "x" * 1_000_000}).encode()
    made = server.ask(
        POST % b"/api/jobs" + authorized(server.producer) + b"Content-Length: %d\r\n\r\n" % len(job), job
    )
    found = re.search(rb'"id":"([0-9a-f-]{36})"', made)
    assert found is not None, made
    body = json.dumps({"ids": [found[1].decode()] * 10_000}).encode()
    for _ in range(20):
        if is_late():
            return
        server.ask(
            POST % b"/api/driver/get" + authorized(server.viewer) + b"Content-Length: %d\r\n\r\n" % len(body),
            body,
        )


def attacked(server: Server, connections: int) -> Prober:
    """All attacks at once; how /livez answered meanwhile."""
    prober = Prober(server)
    deadline = time.monotonic() + LONGEST_SECONDS

    def is_late() -> bool:
        return time.monotonic() > deadline

    def until_enough(attack: Callable[[Server, Callable[[], bool]], None]) -> None:
        attack(server, is_late)
        while not (prober.has_enough() or is_late()):
            attack(server, is_late)

    attacks = [
        threading.Thread(target=until_enough, args=(attack,))
        for attack in (hostile_json, trailers, repeated_ids)
    ]
    for attack in attacks:
        attack.start()
    never_read(connections, attacks, server, is_late)
    for attack in attacks:
        attack.join()
    prober.stop()
    return prober
