"""What the HTTP driver makes of servers that cut, stall, say too much or talk nonsense once it is open."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from taskharbor.drivers import wire
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.http import blocking, calls, connections, wakeups
from taskharbor.drivers.http.address import Address
from taskharbor.drivers.http.driver import HttpDriver
from taskharbor.drivers.messages import Wakeup, WakeupKind
from taskharbor.errors import DriverClosed, DriverUnavailable, StoreRefused
from taskharbor.testing.conformance.kit import claim, new_jobs
from tests.integration.http.http_fixture import SLOW, http_answer

OURS = "TaskHarbor-Protocol: 1"
HELLO = wire.Hello(
    version="0",
    capabilities=Capabilities(wakeups=True),
    takes_now=False,
    max_body=1 << 20,
    max_payload=1 << 20,
)
NONSENSE = b"220 mail.example ESMTP ready\r\n"
STREAM = f"HTTP/1.1 200 OK\r\nContent-Type: application/jsonl\r\n{OURS}\r\nTransfer-Encoding: chunked\r\n\r\n"
CUT = None
SILENCE = b""


def ok(value: object, *more: str) -> bytes:
    return http_answer("200 OK", wire.encode(value), "application/json", OURS, *more)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class OddServer:
    """Says hello, counts for ever, and answers every other verb as the test has set, one by one.

    CUT: the connection is cut instead of an answer. SILENCE: nothing comes, and the connection stays.
    """

    def __init__(self) -> None:
        self.script: dict[str, deque[bytes | None]] = {}
        self.seen: list[tuple[int, str]] = []
        """The number of the connection and the verb of every call."""
        self.news = asyncio.Condition()
        self.connections = 0
        self.ended = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def will(self, verb: str, *answers: bytes | None) -> None:
        self.script.setdefault(verb, deque()).extend(answers)

    async def until(self, verb: str, times: int = 1) -> None:
        """Wait until the verb was called so often."""
        async with asyncio.timeout(SLOW), self.news:
            await self.news.wait_for(lambda: [name for _, name in self.seen].count(verb) >= times)

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(SLOW), self.news:
            await self.news.wait_for(lambda: self.ended >= count)

    async def start(self, tls: ssl.SSLContext | None = None) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        place = "http://127.0.0.1" if tls is None else "https://localhost"
        return f"{place}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.wait_for(asyncio.gather(*self._serving), SLOW)

    def refuse(self) -> None:
        """Take no new connections; the old ones stay."""
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        number = self.connections
        self.writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._one(number, reader, writer):
                pass
        writer.transport.abort()
        self.writers.discard(writer)
        async with self.news:
            self.ended += 1
            self.news.notify_all()

    async def _one(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        verb = head.split(b" ", 2)[1].rpartition(b"/")[2].decode()
        async with self.news:
            self.seen.append((number, verb))
            self.news.notify_all()
        answer = self._answer(verb)
        if answer is CUT:
            return False
        writer.write(answer)
        return True

    def _answer(self, verb: str) -> bytes | None:
        if self.script.get(verb):
            return self.script[verb].popleft()
        return ok({"hello": HELLO, "count": {}}.get(verb, []))


@asynccontextmanager
async def odd_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[OddServer, str]]:
    server = OddServer()
    url = await server.start(tls)
    try:
        yield server, url
    finally:
        await server.stop()


def impatient(address: Address) -> Address:
    """For calls that get no answer at all: a hello on a busy machine may take longer than this."""
    return msgspec.structs.replace(address, timeout_seconds=0.05)


async def enqueue_nothing(driver: HttpDriver) -> None:
    """A call of blocking code that the server answers with an empty list."""
    assert driver._blocking is not None
    await asyncio.to_thread(driver._blocking.call, "enqueue", b"{}")


def connections_of(server: OddServer, verb: str) -> list[int]:
    return [number for number, name in server.seen if name == verb]


# ------------------------------------------------------------------ lines that are used again


async def test_a_connection_is_used_again_until_the_server_wants_to_close_it():
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("count", ok({}), ok({}, "Connection: close"), ok({}))
        for _ in range(3):
            assert await driver.count() == {}

        assert connections_of(server, "count") == [1, 1, 2]


async def test_a_server_that_says_more_than_it_was_asked_is_left_and_called_again():
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("count", ok({}) + NONSENSE)
        with pytest.raises(StoreRefused, match="more came than was announced"):
            await driver.count()

        assert await driver.count() == {}
        assert connections_of(server, "count") == [1, 2]


async def test_a_connection_that_waited_for_too_long_is_not_trusted(monkeypatch):
    """Something in between may have forgotten it without a word."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        await driver.count()
        await driver.count()

        assert connections_of(server, "count") == [2, 3]


async def test_nonsense_instead_of_an_answer_is_named_and_the_next_call_works():
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("count", NONSENSE)
        with pytest.raises(StoreRefused, match="no HTTP server"):
            await driver.count()

        assert await driver.count() == {}


async def test_a_call_that_waits_for_a_line_ends_with_the_driver(monkeypatch):
    monkeypatch.setattr(calls, "_HEAR_OUT_SECONDS", 0.05)
    async with odd_server() as (server, url):
        driver = await HttpDriver.from_url(f"{url}?connections=1").open()
        server.will("count", SILENCE)
        first = asyncio.create_task(driver.count())
        await server.until("count")
        second = asyncio.create_task(driver.count())
        await asyncio.sleep(0)
        first.cancel()
        await driver.close()

        answers = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), SLOW)
        assert [type(answer) for answer in answers] == [asyncio.CancelledError, DriverClosed]
        assert len(connections_of(server, "count")) == 1


# ------------------------------------------------------------------ calls that were given up


async def give_up_a_claim(server, driver):
    server.will("reserve", SILENCE)
    giving_up = asyncio.create_task(driver.reserve(claim()))
    await server.until("reserve")
    giving_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_up


@pytest.mark.parametrize("end", [CUT, NONSENSE])
async def test_a_call_that_was_given_up_may_end_badly_and_nobody_suffers(end):
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        await give_up_a_claim(server, driver)
        for writer in server.writers:
            if end is CUT:
                writer.transport.abort()
            else:
                writer.write(end)

        assert await asyncio.wait_for(driver.count(), SLOW) == {}
        assert connections_of(server, "count") == [2]


async def test_what_was_given_up_and_never_answers_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(calls, "_HEAR_OUT_SECONDS", 0.05)
    async with odd_server() as (server, url):
        async with HttpDriver.from_url(url) as driver:
            await give_up_a_claim(server, driver)

        await server.until_ended(1)


async def test_after_a_long_silence_no_call_waits_and_no_old_connection_is_used(monkeypatch):
    """What killed one connection silently has often killed all of them."""
    monkeypatch.setattr(calls, "_SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(calls, "_ORDER_SECONDS", 10 * SLOW)
    monkeypatch.setattr(calls, "_HEAR_OUT_SECONDS", 10 * SLOW)
    async with odd_server() as (server, url):
        driver = await HttpDriver.from_url(url).open()
        await asyncio.gather(driver.count(), driver.count())
        idle = set(connections_of(server, "count"))
        await give_up_a_claim(server, driver)

        await asyncio.wait_for(driver.count(), SLOW)

        assert len(idle) == 2
        assert connections_of(server, "count")[-1] not in idle
        for writer in server.writers:
            writer.transport.abort()
        await driver.close()


# ------------------------------------------------------------------ blocking callers


async def test_blocking_calls_share_a_connection_until_the_server_wants_to_close_it():
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("enqueue", ok([]), ok([], "Connection: close"), ok([]))
        for _ in range(3):
            await enqueue_nothing(driver)

        numbers = connections_of(server, "enqueue")
        assert numbers[0] == numbers[1] != numbers[2]


async def test_a_blocking_connection_that_waited_for_too_long_is_not_trusted(monkeypatch):
    monkeypatch.setattr(blocking, "IDLE_SECONDS", 0.0)
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        for _ in range(2):
            await enqueue_nothing(driver)

        first, second = connections_of(server, "enqueue")
        assert first != second


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        ([SILENCE], DriverUnavailable, "no answer within 0.05 s"),
        ([NONSENSE], StoreRefused, "no HTTP server"),
        ([CUT, CUT], DriverUnavailable, "the connection broke"),
    ],
    ids=["silence", "nonsense", "cut twice"],
)
async def test_a_blocking_call_may_be_answered_badly(answers, kind, words):
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        if answers == [SILENCE]:
            assert driver._blocking is not None
            driver._blocking._address = impatient(driver._address)
        server.will("enqueue", *answers)
        with pytest.raises(kind, match=words) as error:
            await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))

        assert getattr(error.value, "done", None) is None
        assert len(connections_of(server, "enqueue")) == len(answers)


async def test_a_blocking_call_that_was_cut_may_have_been_done_although_the_server_is_gone_now():
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        await enqueue_nothing(driver)
        server.will("enqueue", CUT)
        server.refuse()

        with pytest.raises(DriverUnavailable, match="it may have been done") as error:
            await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))

        assert error.value.done is None


async def test_a_blocking_call_without_a_server_says_that_nothing_was_done():
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.refuse()

        with pytest.raises(DriverUnavailable, match="nothing was done") as error:
            await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))

        assert error.value.done is False


async def test_a_blocking_call_goes_over_tls_too_and_checks_whom_it_talks_to():
    certificate = Path(__file__).with_name("localhost.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with odd_server(tls) as (server, url), HttpDriver.from_url(f"{url}?ca={certificate}") as driver:
        await enqueue_nothing(driver)
        assert len(connections_of(server, "enqueue")) == 1

        async with driver.another() as other:
            assert other._blocking is not None
            other._blocking._tls = ssl.create_default_context()
            with pytest.raises(StoreRefused, match="is not trusted"):
                await enqueue_nothing(other)

        assert len(connections_of(server, "enqueue")) == 1


# ------------------------------------------------------------------ wake-ups


HINT = Wakeup(WakeupKind.WORK, "mail")


async def test_a_stream_of_hints_that_breaks_is_asked_for_again():
    begun = STREAM.encode() + chunk(wire.encode(HINT) + b"\n\n")
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", CUT, http_answer("502 Bad", b"<html>", "text/html"), begun)
        listening = driver.wakeups(("mail",), "w-1")

        assert await asyncio.wait_for(anext(listening), SLOW) == HINT
        assert len(connections_of(server, "wakeups")) == 3
        await listening.aclose()


async def test_a_stream_that_ends_in_good_order_is_asked_for_again():
    line = chunk(wire.encode(HINT) + b"\n")
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", STREAM.encode() + line + b"0\r\n\r\n", STREAM.encode() + line)
        listening = driver.wakeups(("mail",), "w-1")

        assert [await asyncio.wait_for(anext(listening), SLOW) for _ in range(2)] == [HINT, HINT]
        await listening.aclose()


REFUSAL = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\n"
    b"Content-Length: 64\r\nTaskHarbor-Protocol: 1\r\n\r\n"
)
PROBLEM = b'{"type":"urn:taskharbor:problem:forbidden","detail":"not yours"}'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (REFUSAL + PROBLEM, "does not allow this: not yours"),
        (REFUSAL + PROBLEM + b"and more", "more came than was announced"),
        (NONSENSE, "it began with"),
    ],
    ids=["refused", "refused and more", "nonsense"],
)
async def test_a_listener_that_will_never_be_served_is_refused_with_the_reason(answer, words):
    assert len(PROBLEM) == 64
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", answer)
        listening = driver.wakeups(("mail",), "w-1")

        with pytest.raises(StoreRefused, match=words):
            await asyncio.wait_for(anext(listening), SLOW)


@pytest.mark.parametrize("rest", [b"HTTP nonsense", b"", PROBLEM[10:]])
async def test_a_refusal_that_comes_in_pieces_is_heard_out(rest):
    """The rest comes later, never, or is no rest at all; a refusal it is in any case."""
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", REFUSAL + PROBLEM[:10])
        listening = driver.wakeups(("mail",), "w-1")
        await server.until("wakeups")
        for writer in list(server.writers):
            writer.write(rest * (9 if rest.startswith(b"HTTP") else 1))
            if not rest:
                writer.close()

        with pytest.raises(StoreRefused):
            await asyncio.wait_for(anext(listening), SLOW)


async def test_a_silent_stream_is_given_up_and_asked_for_again(monkeypatch):
    monkeypatch.setattr(wakeups, "SILENCE_SECONDS", 0.05)
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", SILENCE, SILENCE)
        listening = driver.wakeups(("mail",), "w-1")

        await server.until("wakeups", times=2)
        await listening.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(listening)


@pytest.mark.parametrize("more", [b"", chunk(b"x" * 1000)], ids=["at once", "bit by bit"])
async def test_a_line_of_hints_without_an_end_is_not_collected_for_ever(more):
    begun = chunk(b"x" * (wakeups.LONGEST_LINE + 1 - 1000 * bool(more)))
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", STREAM.encode() + begun + more)
        listening = driver.wakeups(("mail",), "w-1")

        with pytest.raises(StoreRefused, match="a line of it has no end"):
            await asyncio.wait_for(anext(listening), SLOW)


async def test_a_line_as_long_as_it_may_be_is_read():
    line = b" " * (wakeups.LONGEST_LINE - len(wire.encode(HINT))) + wire.encode(HINT)
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        server.will("wakeups", STREAM.encode() + chunk(line) + chunk(b"\n"))
        listening = driver.wakeups(("mail",), "w-1")

        assert await asyncio.wait_for(anext(listening), SLOW) == HINT
        await listening.aclose()


def cancels(count: int) -> list[Wakeup]:
    return [Wakeup(WakeupKind.CANCEL, job_id=f"job-{number}") for number in range(count)]


async def unread(server: OddServer, driver: HttpDriver, hints: list[Wakeup]) -> list[Wakeup]:
    """What a listener finds who reads nothing until all of these have come."""
    lines = b"".join(wire.encode(hint) + b"\n" for hint in hints)
    server.will("wakeups", STREAM.encode() + chunk(lines) + b"0\r\n\r\n", SILENCE)
    listening = driver.wakeups(("mail",), "w-1")
    assert isinstance(listening, wakeups.RemoteWakeups)
    await server.until("wakeups", times=2)  # it asks again once it has heard the first stream to its end
    found = [await anext(listening) for _ in range(len(listening._unread))]
    await listening.aclose()
    return found


async def test_of_too_many_unread_hints_the_oldest_are_dropped():
    hints = cancels(wakeups.MOST_UNREAD + 5)
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        assert await unread(server, driver, hints) == hints[5:]


async def test_an_unread_hint_that_comes_again_drops_no_other():
    hints = cancels(wakeups.MOST_UNREAD)
    async with odd_server() as (server, url), HttpDriver.from_url(url) as driver:
        assert await unread(server, driver, [*hints, hints[-1], hints[7]]) == hints
