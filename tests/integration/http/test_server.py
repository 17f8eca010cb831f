"""The server on a real socket: slow and broken callers, and how it stops."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.errors import ConfigurationError
from taskharbor.web.app import App, create_app
from taskharbor.web.config import ServerConfig
from taskharbor.web.server import bind, refuse_open_address
from tests.integration.http.api import GENEROUS_SECONDS, make_token, served, talk, token_file

JOB = b'{"type":"x"}'
HEAD = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def app(**config: object) -> App:
    return create_app(Harbor("memory://"), ServerConfig(**config), local_callers_are_admin=True)  # type: ignore[arg-type]


def test_a_request_in_pieces_is_put_together() -> None:
    with served(app()) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.settimeout(GENEROUS_SECONDS)
        for piece in (HEAD, b"Content-Length: 12\r\n\r\n", JOB[:5], JOB[5:]):
            caller.sendall(piece)
            time.sleep(0.01)
        assert caller.recv(65536).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 12\r\nContent-Length: 13\r\n\r\n" + JOB,
        b"GET http://evil.example/api/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_its_connection_closed(
    request_bytes: bytes,
) -> None:
    with served(app()) as port:
        assert talk(port, request_bytes).startswith(b"HTTP/1.1 400")


def test_a_foreign_host_is_refused_over_the_wire_too() -> None:
    with served(app()) as port:
        answer = talk(port, b"GET /livez HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "trickle",
    [
        [b"GET /livez", *[b"z"] * 40],
        [b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: ", *[b"x"] * 40],
        [HEAD + b"Content-Length: 1000\r\n\r\n", *[b" "] * 40],
        [b""],
    ],
)
def test_a_caller_who_sends_a_byte_now_and_then_is_closed_at_the_limit(trickle: list[bytes]) -> None:
    with served(app(request_seconds=0.5)) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.settimeout(GENEROUS_SECONDS)
        try:
            for piece in trickle:
                caller.sendall(piece)
                time.sleep(0.05)
            while caller.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
    # A server that waited would have let the last recv run into its own timeout.


def test_a_quiet_connection_that_was_used_is_kept_for_the_next_request() -> None:
    with served(app(request_seconds=1.0)) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.settimeout(GENEROUS_SECONDS)
        for _ in range(2):
            caller.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _until(caller, b'{"status":"ok"}').startswith(b"HTTP/1.1 200")
            time.sleep(1.2)


LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "statuses"),
    [
        (LIVE + b"Connection: close\r\n\r\n", [200]),
        (b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n", [200]),
        (LIVE.replace(b"GET", b"HEAD") + b"Connection: close\r\n\r\n", [200]),
        (LIVE + b"\r\n" + LIVE + b"\r\n" + LIVE + b"Connection: close\r\n\r\n", [200, 200, 200]),
        (HEAD + b"Content-Length: 12\r\n\r\n" + JOB + LIVE + b"Connection: close\r\n\r\n", [201, 200]),
        (
            HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nc\r\n" + JOB + b"\r\n0\r\n\r\n",
            [201],
        ),
        (
            HEAD + b"Expect: 100-continue\r\nContent-Length: 12\r\n\r\n" + JOB + LIVE
            + b"Connection: close\r\n\r\n",
            [100, 201, 200],
        ),
        (HEAD + b"Content-Length: 3\r\n\r\n{}}" + LIVE + b"Connection: close\r\n\r\n", [400, 200]),
    ],
)  # fmt: skip
def test_requests_one_behind_the_other_are_answered_in_order_each_in_its_own_way(
    request_bytes: bytes, statuses: list[int]
) -> None:
    with served(app()) as port:
        answer = talk(port, request_bytes)

    assert [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)] == statuses
    for head in answer.split(b"HTTP/1.1 ")[1:]:
        if not head.startswith(b"100"):
            names = [
                line.partition(b":")[0].lower() for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
            ]
            assert len(names) == len(set(names))
            assert {b"date", b"x-request-id", b"content-length", b"x-content-type-options"} <= set(names)


def test_an_answer_is_the_same_whether_our_server_is_below_or_another(tmp_path: Path) -> None:
    one, path = app(), "/api/jobs/nothing"
    with served(one) as port:
        raw = talk(
            port,
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r\r\n\r\n".encode(),
            until_closed=False,
        )
    head, _, body = raw.partition(b"\r\n\r\n")
    ours = {tuple(line.lower().split(b": ", 1)) for line in head.split(b"\r\n")[1:]}

    async def elsewhere() -> tuple[set[tuple[bytes, ...]], bytes]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": b"", "client": ("127.0.0.1", 1),
            "headers": [(b"host", b"localhost"), (b"x-request-id", b"r")],
        }  # fmt: skip
        await app()(scope, receive, send)
        return {(name, value.lower()) for name, value in sent[0]["headers"]}, sent[1]["body"]

    theirs, their_body = asyncio.run(elsewhere())
    assert {header for header in ours if header[0] != b"date"} == theirs
    assert body == their_body


def test_endless_headers_are_cut_off() -> None:
    with served(app()) as port:
        answer = talk(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 70_000)

    assert b"431" in answer.split(b"\r\n")[0]


def test_headers_of_sixty_four_kibibytes_are_too_large() -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(62))
    with served(app()) as port:
        answer = talk(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 431")


def test_a_body_that_is_announced_too_large_is_answered_unread_and_closed() -> None:
    with served(app()) as port:
        answer = talk(port, HEAD + b"Content-Length: 99999999\r\n\r\n" + b"{")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413")
    assert json.loads(body)["type"] == "urn:taskharbor:problem:payload-too-large"


def test_a_socket_upgrade_is_answered_like_any_request() -> None:
    with served(app()) as port:
        answer = talk(
            port,
            b"GET /api/events2 HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade, close\r\n"
            b"Upgrade: websocket\r\n\r\n",
        )

    assert answer.startswith(b"HTTP/1.1 404")


# ------------------------------------------------------------------ stopping


def test_a_server_that_serves_has_loaded_what_a_stream_needs() -> None:
    """The first stream would load it otherwise, and nobody else would be answered meanwhile."""
    started = (
        "import asyncio, sys, anyio\n"
        "from taskharbor import Harbor\n"
        "from taskharbor.web.app import create_app\n"
        "async def start():\n"
        "    async with create_app(Harbor('memory://'), local_callers_are_admin=True).running():\n"
        "        before = set(sys.modules)\n"
        "        async with anyio.create_task_group(): pass\n"
        "        print(sorted(set(sys.modules) - before))\n"
        "asyncio.run(start())\n"
    )

    done = subprocess.run([sys.executable, "-c", started], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_stop_ends_open_streams_and_long_waits_soon() -> None:
    found = app()
    with served(found, grace_seconds=60) as port:
        job = json.loads(
            talk(port, HEAD + b"Connection: close\r\nContent-Length: 12\r\n\r\n" + JOB).partition(
                b"\r\n\r\n"
            )[2]
        )
        callers = []
        for path in ("/api/events", f"/api/jobs/{job['id']}/result?wait_s=60"):
            caller = socket.create_connection(("127.0.0.1", port), timeout=GENEROUS_SECONDS)
            caller.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            callers.append(caller)
        assert b"snapshot" in _until(callers[0], b"snapshot")
    # `served` fails when its thread goes on. With a grace of a minute it is we who ended it.
    rest = [_rest(caller) for caller in callers]
    assert rest[0].endswith(b"0\r\n\r\n")
    assert b'"is_over":false' in rest[1]


def _rest(caller: socket.socket) -> bytes:
    with caller:
        return b"".join(iter(lambda: caller.recv(65536), b""))


def _until(caller: socket.socket, mark: bytes) -> bytes:
    read = b""
    while mark not in read:
        part = caller.recv(65536)
        assert part, read
        read += part
    return read


# ------------------------------------------------------------------ starting


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_a_token_only_loopback_is_listened_on(host: str, tmp_path: Path) -> None:
    file = token_file(tmp_path)
    with pytest.raises(ConfigurationError, match="tokens create"):
        refuse_open_address(app(), host)
    with pytest.raises(ConfigurationError, match="tokens create"):
        refuse_open_address(app(tokens=tmp_path / "tokens.json"), host)
    make_token(file, "viewer")
    refuse_open_address(app(tokens=tmp_path / "tokens.json"), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_token(host: str) -> None:
    refuse_open_address(app(), host)


def test_a_port_that_is_taken_is_reported_in_words() -> None:
    taken = bind("127.0.0.1", 0)
    taken.listen()
    try:
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            bind("127.0.0.1", taken.getsockname()[1])
    finally:
        taken.close()
