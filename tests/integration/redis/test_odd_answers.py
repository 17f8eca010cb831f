"""Servers, sentinels and clusters that say what no healthy one says: each is named, none is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import hiredis
import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.redis import faults
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.connection import connect as connection_to
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverClosed, DriverMisbehaved, DriverUnavailable, StoreFull, StoreRefused
from taskharbor.testing.servers import free_port

SLOW = 40.0
Says = Callable[[list[bytes]], bytes | None]
"""What a server answers to a command; None: it hangs up."""


class OddServer:
    """Answers every command as the test has set."""

    def __init__(self, says: Says) -> None:
        self._says = says
        self.heard: list[bytes] = []
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.wait_for(asyncio.gather(*self._serving), SLOW)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.append(writer)
        commands = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    self.heard.append(b" ".join(command[:2]).upper())
                    if (answer := self._says(command)) is None:
                        return
                    writer.write(answer)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def saying(says: Says | bytes | None) -> AsyncIterator[OddServer]:
    server = OddServer(says if callable(says) else lambda _: says)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def bulk(*texts: str) -> bytes:
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(t), t.encode()) for t in texts)


async def refusal_of(url: str) -> Exception:
    with pytest.raises((DriverUnavailable, StoreRefused, DriverMisbehaved)) as error:
        await asyncio.wait_for(connect(url).open(), SLOW)
    return error.value


# ------------------------------------------------------------------ one server


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"-LOADING the dataset\r\n", DriverUnavailable, "cannot answer for now"),
        (b"-ERR max number of clients reached\r\n", DriverUnavailable, "takes no more connections"),
        (b"-DENIED protected mode\r\n", StoreRefused, "protected mode"),
        (b"-MISCONF disk\r\n", DriverUnavailable, "cannot answer for now"),
        (b"-ERR what is this\r\n", DriverMisbehaved, "what is this"),
        (b"?nonsense\r\n", DriverUnavailable, "the connection was lost (ProtocolError)"),
        (b"+OK\r\n+OK\r\n+OK\r\n", DriverUnavailable, "the connection was lost"),
        (None, DriverUnavailable, "the connection was lost"),
    ],
    ids=["loading", "crowded", "protected", "disk", "unknown", "nonsense", "too much", "silence"],
)
async def test_what_a_server_says_instead_of_an_answer_is_named(answer, kind, words):
    async with saying(answer) as server:
        error = await refusal_of(f"redis://127.0.0.1:{server.port}/1")

    assert type(error) is kind
    assert words in str(error)


def test_a_full_server_and_a_lost_connection_say_what_was_done():
    assert type(faults.ours(Exception("OOM command not allowed"))) is StoreFull
    assert faults.lost(None, done=False).done is False
    assert "closed by the server" in str(faults.lost(None, done=None))


async def test_a_server_that_never_answers_the_greeting_is_not_waited_for():
    async with saying(b"") as server:
        error = await refusal_of(f"redis://127.0.0.1:{server.port}/1?connect_timeout=0.2")

    assert isinstance(error, DriverUnavailable)
    assert error.done is False


async def test_a_server_that_sends_us_to_itself_for_ever_is_left():
    def says(command: list[bytes]) -> bytes:
        return b"-MOVED 1 127.0.0.1:%d\r\n" % server.port

    async with saying(says) as server:
        asked = Primary(address_of(f"redis://127.0.0.1:{server.port}"), Keys("odd"), lambda: b"e")
        with pytest.raises(DriverUnavailable, match="round in circles") as error:
            await asyncio.wait_for(asked.command("PING"), SLOW)
        await asked.close()

    assert error.value.done is False


async def test_a_store_that_is_emptied_again_and_again_is_left():
    def says(command: list[bytes]) -> bytes:
        return {b"HSETNX": b":1\r\n", b"HGET": b"$1\r\ne\r\n"}.get(command[0], b"$5\r\nepoch\r\n")

    async with saying(says) as server:
        asked = Primary(address_of(f"redis://127.0.0.1:{server.port}"), Keys("odd"), lambda: b"e")
        with pytest.raises(DriverUnavailable, match="emptied again and again"):
            await asyncio.wait_for(asked.run_in_epoch("enqueue", []), SLOW)
        await asked.close()


async def test_a_connection_that_is_being_made_ends_with_its_user():
    async with saying(b"") as server:
        asked = Primary(address_of(f"redis://127.0.0.1:{server.port}/1"), Keys("odd"), lambda: b"e")
        calling = asyncio.create_task(asked.command("PING"))
        async with asyncio.timeout(SLOW):
            while not server.heard:
                await asyncio.sleep(0.005)
        await asked.close()

        with pytest.raises(DriverClosed):
            await asyncio.wait_for(calling, SLOW)
        with pytest.raises(DriverClosed):
            await asked.command("PING")


async def test_a_call_on_a_closed_connection_was_never_sent():
    async with saying(b"+PONG\r\n") as server:
        address = address_of(f"redis://127.0.0.1:{server.port}")
        link = await connection_to(address, address.hosts[0])
        assert link.peer() == "127.0.0.1"
        link.close()
        with pytest.raises(DriverUnavailable, match="nothing was written"):
            await link.call(("PING",))


# ------------------------------------------------------------------ sentinels


def sentinel(primary: OddServer | None) -> Says:
    """A sentinel that names this primary; None: it knows none."""
    return lambda _: b"*-1\r\n" if primary is None else bulk("127.0.0.1", str(primary.port))


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"*-1\r\n", DriverUnavailable, "knows no primary 'harbor'"),
        (b"-NOAUTH Authentication required\r\n", StoreRefused, "wants a password"),
    ],
)
async def test_a_sentinel_that_cannot_help_is_named(answer, kind, words):
    async with saying(answer) as server:
        error = await refusal_of(f"redis+sentinel://127.0.0.1:{server.port}/harbor")

    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (bulk("slave", "127.0.0.1"), "is not the primary any more"),
        (b"-LOADING the dataset\r\n", "cannot answer for now"),
    ],
)
async def test_what_a_sentinel_names_must_say_itself_that_it_is_the_primary(role, words):
    async with saying(role) as primary, saying(sentinel(primary)) as server:
        error = await refusal_of(f"redis+sentinel://127.0.0.1:{server.port}/harbor")

    assert isinstance(error, DriverUnavailable)
    assert words in str(error)


async def test_the_next_sentinel_is_asked_when_the_first_is_gone_or_knows_nothing():
    async with saying(sentinel(None)) as first, saying(sentinel(None)) as second:
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{first.port},127.0.0.1:{second.port}"
        error = await refusal_of(f"redis+sentinel://{hosts}/harbor")

    assert "does not accept connections" in str(error), "the first failure is reported"
    assert first.heard == second.heard == [b"SENTINEL GET-MASTER-ADDR-BY-NAME"]


# ------------------------------------------------------------------ clusters


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"*0\r\n", DriverUnavailable, "owns slot"),
        (
            b"-ERR This instance has cluster support disabled\r\n",
            DriverMisbehaved,
            "cluster support disabled",
        ),
    ],
)
async def test_a_cluster_that_is_none_or_has_a_gap_is_named(answer, kind, words):
    async with saying(answer) as server:
        asked = Primary(address_of(f"redis+cluster://127.0.0.1:{server.port}"), Keys("odd"), lambda: b"e")
        with pytest.raises(kind, match=words):
            await asyncio.wait_for(asked.command("PING"), SLOW)
        await asked.close()
