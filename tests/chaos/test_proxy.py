"""The proxy of the chaos runs: it cuts where it says, and passes everything else on unchanged."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.chaos.framing import Framing, HttpFraming, PostgresFraming, RespFraming
from tests.chaos.proxy import Proxy

PING = b"*1\r\n$4\r\nPING\r\n"
SET = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"


class Echo:
    """A server that counts requests and answers each with +OK."""

    def __init__(self) -> None:
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                self.heard += data
                writer.write(b"+OK\r\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def proxied():
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname()[1], RespFraming) as proxy:
        yield echo, proxy


async def dial(proxy: Proxy):
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def ask(line, request: bytes) -> bytes:
    reader, writer = line
    writer.write(request)
    return await asyncio.wait_for(reader.read(100), 10)


async def test_what_is_sent_arrives_and_is_counted():
    async with proxied() as (echo, proxy):
        line = await dial(proxy)
        assert await ask(line, PING) == b"+OK\r\n"
        assert await ask(line, SET) == b"+OK\r\n"
        line[1].close()
    assert echo.heard == PING + SET
    assert proxy.requests == {"ping": 1, "set": 1}


async def test_a_cut_comes_after_the_server_has_acted_and_hits_one_request_only():
    async with proxied() as (echo, proxy):
        cut = proxy.cut_after("set")
        line = await dial(proxy)
        assert await ask(line, PING) == b"+OK\r\n"
        with pytest.raises(ConnectionResetError):
            await ask(line, SET)
        assert (echo.heard, cut.done) == (PING + SET, 1)
        again = await dial(proxy)
        assert await ask(again, SET) == b"+OK\r\n"
        again[1].close()


async def test_a_held_answer_comes_when_it_is_let_go():
    async with proxied() as (echo, proxy):
        held = proxy.hold_after("set")
        line = await dial(proxy)
        asking = asyncio.create_task(ask(line, SET))
        await asyncio.wait_for(held.has_sprung.wait(), 10)
        assert echo.heard == SET
        assert not asking.done()
        held.let_go.set()
        assert await asking == b"+OK\r\n"
        line[1].close()


async def test_a_black_hole_swallows_both_ways_and_says_nothing():
    async with proxied() as (echo, proxy):
        line = await dial(proxy)
        proxy.swallow()
        line[1].write(PING)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line[0].read(1), 0.2)
        assert echo.heard == b""
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            await line[0].read(1)


async def test_refused_connections_are_reset():
    async with proxied() as (_, proxy):
        proxy.refuses = True
        line = await dial(proxy)
        with pytest.raises(ConnectionResetError):
            await ask(line, PING)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def test_postgres_requests_are_named_by_the_function_they_call():
    framing = PostgresFraming()
    ssl, start = (8).to_bytes(4) + (80877103).to_bytes(4), (9).to_bytes(4) + (196608).to_bytes(4) + b"\0"
    parse = message(b"P", b'one\0select * from "s".exchange($1)\0\0\0')
    bind = message(b"B", b"\0one\0\0\0\0\0\0\0")
    assert framing.requests(ssl) == []
    assert framing.answers(b"N") == 0
    assert framing.requests(start[:5]) == []
    assert framing.requests(start[5:]) == ["startup"]
    assert framing.requests(parse + message(b"H", b"")) == []
    assert framing.requests(bind + message(b"E", b"\0\0\0\0\0") + message(b"S", b"")) == ["exchange"]
    assert framing.requests(message(b"Q", b"COMMIT;\0")) == ["commit"]
    assert framing.answers(message(b"C", b"x\0") + message(b"Z", b"I")[:3]) == 0
    assert framing.answers(message(b"Z", b"I")[3:]) == 1


def test_replies_of_valkey_are_counted_when_they_are_whole():
    framing = RespFraming()
    nested = b"*2\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n"
    assert framing.answers(b"+OK\r\n" + nested) == 2
    assert framing.answers(nested[:-3]) == 0
    assert framing.answers(nested[-3:]) == 1
    assert framing.answers(b">2\r\n+message\r\n+hint\r\n") == 0


@pytest.mark.parametrize(
    ("framing", "data", "names"),
    [
        (RespFraming(), PING + SET, ["ping", "set"]),
        (RespFraming(), SET[:10], []),
        (HttpFraming(), b"POST /api/driver/settle HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", ["settle"]),
        (HttpFraming(), b"POST /api/driver/settle HTTP/1.1\r\nContent-Length: 2\r\n\r\n{", []),
    ],
)
def test_requests_are_named_once_they_are_whole(framing: Framing, data, names):
    assert framing.requests(data) == names
