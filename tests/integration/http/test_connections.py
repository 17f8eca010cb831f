"""Callers who hold connections and do not use them well: they must not keep others out."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable

import pytest

from taskharbor import Harbor
from taskharbor.web.app import App, create_app
from taskharbor.web.config import ServerConfig
from tests.integration.http.api import GENEROUS_SECONDS, make_token, served, talk, token_file

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'c\r\n{"type":"x"}\r\n'


def app(**config: object) -> App:
    return create_app(
        Harbor("memory://"),
        ServerConfig(**config),  # type: ignore[arg-type]
        local_callers_are_admin="tokens" not in config,
    )


def is_live(port: int) -> bool:
    return talk(port, LIVE + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GENEROUS_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ends(caller: socket.socket) -> None:
    """Waits for the other side to close."""
    caller.settimeout(GENEROUS_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while caller.recv(65536):
            pass


@contextlib.contextmanager
def callers(port: int, count: int, sent: bytes = b""):
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=GENEROUS_SECONDS))
            for _ in range(count)
        ]
        for caller in found:
            caller.sendall(sent)
        yield found


# ------------------------------------------------------------------ room


@pytest.mark.parametrize("sent", [b"", LIVE, LIVE + b"\r\n", POST + b"Content-Length: 12\r\n\r\n{"])
def test_callers_who_keep_the_server_waiting_make_room_for_others(sent: bytes) -> None:
    one = app(max_connections=5, request_seconds=60)
    with served(one) as port, callers(port, 5, sent) as waiting:
        wait_until(lambda: len(one.service.connections) == 5)

        assert is_live(port)

        ends(waiting[0])
    assert one.service.connections.dropped["made_room"] >= 1


def test_one_connection_too_many_is_asked_to_come_back_where_all_are_busy() -> None:
    one = app(max_connections=2, metrics=True)
    wait = b"GET /api/jobs/%s/result?wait_s=30 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(one) as port:
        made = talk(port, POST + b"Connection: close\r\nContent-Length: 12\r\n\r\n" + b'{"type":"x"}')
        job_id = made.partition(b'"id":"')[2][:36]
        wait_until(lambda: len(one.service.connections) == 0)
        with callers(port, 2, wait % job_id):
            wait_until(lambda: len(one.service.connections) == 2 and not one.service.connections._waiting)

            answer = talk(port, b"")

            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1")
        wait_until(lambda: is_live(port))
        metrics = talk(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        counted = re.search(rb'connections_dropped_total{reason="full"} (\d+)', metrics)
        assert counted is not None
        assert int(counted[1]) >= 1


def test_one_address_has_no_more_than_its_share() -> None:
    one = app(max_connections=10, max_connections_per_address=3)
    with served(one) as port, callers(port, 3) as waiting:
        wait_until(lambda: len(one.service.connections) == 3)
        assert is_live(port)
        ends(waiting[0])
        assert len(one.service.connections) <= 3


# ------------------------------------------------------------------ reading


def test_a_caller_who_never_reads_is_let_go() -> None:
    """Long answers, asked for again and again: they fill what the machine keeps for a connection, then us."""
    one = app(write_seconds=0.5, max_wait_seconds=1)
    ask = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(one) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.setblocking(False)
        deadline = time.monotonic() + GENEROUS_SECONDS
        while not one.service.connections.dropped["unread"]:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                caller.send(ask)
            assert time.monotonic() < deadline
            time.sleep(0.002)
        wait_until(lambda: len(one.service.connections) == 0)


def test_a_caller_who_does_not_read_gets_no_further_work_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty long answers, asked for at once: those that nothing could be written of are not even made."""
    made: list[str] = []
    handle = App.__call__

    async def counted(one: App, scope, receive, send) -> None:
        made.append(scope.get("path", ""))
        await handle(one, scope, receive, send)

    monkeypatch.setattr(App, "__call__", counted)

    ask = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(app()) as port, callers(port, 1, ask * 40):
        wait_until(lambda: made.count("/api/openapi.json") > 0)
        for _ in range(10):
            assert is_live(port)
        assert made.count("/api/openapi.json") <= 5  # 19 where the system kept all it could


def test_a_caller_who_reads_at_leisure_gets_all_of_it() -> None:
    one = app(write_seconds=1.0)
    ask = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n"
    with served(one) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.settimeout(GENEROUS_SECONDS)
        caller.sendall((ask + b"\r\n") * 40 + ask + b"Connection: close\r\n\r\n")
        answers = bytearray()
        while piece := caller.recv(256 * 1024):
            answers += piece
            time.sleep(0.02)

    assert answers.count(b"HTTP/1.1 200 OK") == 41  # of the whole: a piece may end in the middle of one


# ------------------------------------------------------------------ beside a body


@pytest.mark.parametrize(
    "trailers",
    [
        b"0\r\nX-A: b\r\n\r\n",
        b"0\r\nAuthorization: Bearer %(token)b\r\n\r\n",
        b"0\r\nSec-Fetch-Site: same-origin\r\n\r\n",
        b"0\r\n" + b"X-A: b\r\n" * 1000,
        b"0\r\n" + b"x" * 400_000,
        b"0\r\nX-A: " + b"x" * 400_000,
        b"1;" + b"x" * 400_000,
        b"1\r\n \r\n" * 100_000,
    ],
)
def test_what_follows_a_body_is_refused_and_counted(trailers: bytes, tmp_path) -> None:
    """With the body complete in a piece of its own: what follows must not be taken for a part of the head."""
    file = token_file(tmp_path)
    token = make_token(file, "admin").encode()
    one = app(tokens=tmp_path / "tokens.json", request_seconds=5)
    with served(one) as port, callers(port, 1, CHUNKED) as [caller]:
        with contextlib.suppress(ConnectionError):
            caller.sendall(BODY)
            caller.sendall(trailers.replace(b"%(token)b", token))
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := caller.recv(65536):
                answer += piece
        assert b"HTTP/1.1 2" not in answer
        assert one.service.connections.dropped["malformed"] + one.service.connections.dropped["slow"] <= 1
        assert is_live(port)


@pytest.mark.parametrize("in_one_piece", [True, False])
def test_an_admins_token_after_the_body_opens_nothing(in_one_piece: bool, tmp_path) -> None:
    file = token_file(tmp_path)
    token = make_token(file, "admin").encode()
    one = app(tokens=tmp_path / "tokens.json")
    trailer = b"0\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    pieces = [CHUNKED + BODY + trailer] if in_one_piece else [CHUNKED, BODY, trailer]
    with served(one) as port, callers(port, 1) as [caller]:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                caller.sendall(piece)
                time.sleep(0.02)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := caller.recv(65536):
                answer += piece

    assert b" 201 " not in answer
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))


def test_a_body_in_small_chunks_of_an_honest_client_is_taken() -> None:
    body = b'{"type":"x","payload":"' + b"a" * 100_000 + b'"}'
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[at : at + 64]), body[at : at + 64]) for at in range(0, len(body), 64)
    )
    with served(app()) as port:
        answer = talk(
            port, CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + chunks + b"0\r\n\r\n"
        )

    assert answer.startswith(b"HTTP/1.1 201")


def test_a_body_that_goes_on_after_its_answer_is_cut_off() -> None:
    with served(app(request_seconds=60)) as port, callers(port, 1) as [caller]:
        caller.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        assert caller.recv(65536).startswith(b"HTTP/1.1 404")
        with pytest.raises(ConnectionError):
            caller.sendall(b"x" * 99_000_000)


def test_requests_far_ahead_of_their_answers_are_refused() -> None:
    one, ask = app(), b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(one) as port, callers(port, 1, ask * 3000) as [caller]:
        ends(caller)

    assert one.service.connections.dropped["malformed"] == 1
