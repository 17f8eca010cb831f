"""What can be between a program and its server: each has an error of its own, which says what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import CancelResult, Query
from taskharbor.drivers.wire import Role
from taskharbor.errors import DriverMisbehaved, DriverUnavailable, InvalidArgument, JobNotFound, StoreRefused
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.secrets import masked
from taskharbor.testing.conformance.kit import START, claim, new_job, new_jobs
from taskharbor.testing.http_server import HttpServer, fresh_http_url
from taskharbor.testing.servers import free_port
from taskharbor.web.tokens import TokenFile, new_token
from tests.integration.http.http_fixture import http_answer, server_that_says

CERTIFICATE = Path(__file__).with_name("localhost.pem")
HTML = b"<html><body>Welcome to nginx!</body></html>"


async def refusal_of(url: str) -> Exception:
    with pytest.raises((DriverUnavailable, StoreRefused, DriverMisbehaved)) as error:
        await connect(url).open()
    return error.value


# ------------------------------------------------------------------ who answers


async def test_no_server_means_unavailable_and_that_nothing_was_done():
    error = await refusal_of(f"http://127.0.0.1:{free_port()}")

    assert isinstance(error, DriverUnavailable)
    assert error.done is False
    assert "no server can be reached at http://127.0.0.1" in str(error)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (http_answer("200 OK", HTML, "text/html"), StoreRefused, "no TaskHarbor server"),
        (http_answer("404 Not Found", HTML, "text/html"), StoreRefused, "no TaskHarbor server"),
        (http_answer("200 OK", b"{}"), StoreRefused, "no TaskHarbor server"),
        (http_answer("301 Moved", b"", "text/html", "Location: https://x"), StoreRefused, "check host, port"),
        (http_answer("502 Bad Gateway", HTML, "text/html"), DriverUnavailable, "may have been done"),
        (http_answer("503 Unavailable", HTML, "text/html"), DriverUnavailable, "may have been done"),
        (http_answer("429 Slow", HTML, "text/html"), DriverUnavailable, "asks for less"),
        (b"220 mail.example ESMTP\r\n", StoreRefused, "no HTTP server"),
        (b"", DriverUnavailable, "did not answer"),
    ],
    ids=["a page", "a missing page", "another API", "a redirect", "502", "503", "429", "SMTP", "silence"],
)
async def test_what_is_no_taskharbor_server_is_named(answer, kind, words):
    async with server_that_says(answer) as url:
        error = await refusal_of(url)

    assert isinstance(error, kind)
    assert words in str(error)
    assert url in str(error)


async def test_another_version_of_the_protocol_is_named():
    problem = b'{"type":"urn:taskharbor:problem:validation","detail":"this server speaks protocol 2"}'
    answer = http_answer("422 No", problem, "application/problem+json", "TaskHarbor-Protocol: 2")
    async with server_that_says(answer) as url:
        error = await refusal_of(url)

    assert isinstance(error, StoreRefused)
    assert "speaks protocol 2, this program protocol 1" in str(error)


async def test_a_server_refuses_a_protocol_that_it_does_not_speak():
    url = fresh_http_url()
    head = "Host: localhost\r\nContent-Type: application/json\r\nTaskHarbor-Protocol: 7\r\nConnection: close"
    path = url.removeprefix("http://").partition("/")[2]
    port = int(url.split(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(
            f"POST /{path}/api/driver/hello HTTP/1.1\r\n{head}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        )
        answer = await asyncio.to_thread(caller.makefile("rb").read)

    assert answer.startswith(b"HTTP/1.1 422")
    assert b"speaks protocol 1, the caller '7'" in answer


async def test_a_server_that_does_not_answer_in_time_may_have_done_it():
    async with server_that_says(None) as url:
        error = await refusal_of(f"{url}?timeout=0.05")

    assert isinstance(error, DriverUnavailable)
    assert error.done is None
    assert "no answer within 0.05 s" in str(error)


# ------------------------------------------------------------------ TLS


@pytest.fixture
async def tls_url() -> AsyncIterator[str]:
    """Something that speaks TLS and says that it is no TaskHarbor server: who hears it has come through."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with server_that_says(http_answer("200 OK", HTML, "text/html"), context) as url:
        yield url.replace("127.0.0.1", "localhost")


async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(tls_url):
    error = await refusal_of(tls_url)

    assert isinstance(error, StoreRefused)
    assert "certificate" in str(error)
    assert "?ca=FILE" in str(error)


async def test_a_certificate_of_an_authority_of_ones_own_is_trusted(tls_url):
    error = await refusal_of(f"{tls_url}?ca={CERTIFICATE}")

    assert "no TaskHarbor server" in str(error)


async def test_a_certificate_is_good_for_its_name_only(tls_url):
    error = await refusal_of(f"{tls_url.replace('localhost', '127.0.0.1')}?ca={CERTIFICATE}")

    assert isinstance(error, StoreRefused)
    assert "certificate" in str(error)


async def test_https_to_a_server_without_tls_is_named():
    error = await refusal_of(fresh_http_url().replace("http://", "https://"))

    assert isinstance(error, StoreRefused)
    assert "Is it an http:// server?" in str(error)


# ------------------------------------------------------------------ tokens and roles


class Tokens:
    """A server with a token for every role, and one of each for the queue `mine` alone."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokens.json"
        kept = TokenFile(path, SystemClock())
        self.texts: dict[str, str] = {}
        roles: tuple[Role, ...] = ("viewer", "producer", "worker", "operator", "admin")
        for role in roles:
            for name, queues in ((role, None), (f"{role} of mine", ("mine",))):
                text, token = new_token(Entropy(), role, SystemClock().now(), queues=queues)
                kept.add(token)
                self.texts[name] = text
        self.server = HttpServer(f"sqlite:///{folder}/jobs.db?durability=normal", tokens=path)

    def url(self, name: str) -> str:
        return self.server.url.replace("://", f"://{self.texts[name]}@")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    tokens = Tokens(tmp_path_factory.mktemp("tokens"))
    with tokens.server:
        yield tokens


async def test_a_token_is_asked_for(tokens):
    error = await refusal_of(tokens.server.url)

    assert isinstance(error, StoreRefused)
    assert "set TASKHARBOR_TOKEN" in str(error)


async def test_a_wrong_token_is_named_as_that_and_not_shown(tokens):
    wrong = "taskharbor_000000000000_" + "0" * 64
    error = await refusal_of(tokens.server.url.replace("://", f"://{wrong}@"))

    assert isinstance(error, StoreRefused)
    assert "does not take this token" in str(error)
    assert wrong not in str(error)


async def test_the_token_of_the_environment_is_used(tokens, monkeypatch):
    monkeypatch.setenv("TASKHARBOR_TOKEN", tokens.texts["viewer"])

    async with connect(tokens.server.url) as driver:
        assert await driver.queues() is not None


async def test_a_role_that_is_too_small_is_named(tokens):
    async with connect(tokens.url("viewer")) as driver:
        with pytest.raises(StoreRefused, match="enqueue needs the role producer or worker"):
            await driver.enqueue(new_jobs(1))
        with pytest.raises(StoreRefused, match="this caller has the role viewer"):
            await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("viewer", "find", "enqueue"),
        ("producer", "enqueue", "reserve"),
        ("worker", "reserve", "configure"),
        ("operator", "configure", "reserve"),
        ("admin", "reserve", "nothing"),
    ],
)
async def test_each_role_may_what_it_is_for(tokens, role, may, may_not):
    async with connect(tokens.url(role)) as driver:
        calls = {
            "find": lambda: driver.find(Query()),
            "enqueue": lambda: driver.enqueue(new_jobs(1, queue="roles")),
            "reserve": lambda: driver.reserve(claim(queues=("roles",))),
            "configure": lambda: driver.configure_queue(QueueSettings(queue="roles", paused=False)),
        }
        await calls[may]()
        if may_not in calls:
            with pytest.raises(StoreRefused):
                await calls[may_not]()


async def test_a_worker_can_do_all_that_a_worker_does(tokens):
    """Put jobs in, store the schedules of its harbor, keep time, report, look at its own jobs."""
    schedule = Schedule(name="nightly", template=new_job(id="", queue="w"), cron="@daily")
    async with connect(tokens.url("worker")) as driver:
        await driver.enqueue(new_jobs(1, queue="w"))
        await driver.put_schedule(schedule)
        assert (await driver.hold_role("kit", "me", timedelta(seconds=30))).is_mine
        [job] = (await driver.reserve(claim(queues=("w",)))).jobs
        assert (await driver.get([job.id]))[0] is not None
        wakeups = driver.wakeups(("w",), "me")
        await asyncio.wait_for(anext(wakeups), 40)
        await wakeups.aclose()


async def test_a_token_for_one_queue_does_not_see_the_others(tokens):
    async with connect(tokens.url("admin")) as everything:
        foreign, own = new_job(queue="theirs"), new_job(queue="mine")
        await everything.enqueue([foreign, own])
        async with connect(tokens.url("admin of mine")) as driver:
            assert [job and job.id for job in await driver.get([foreign.id, own.id])] == [None, own.id]
            assert {job.queue for job in (await driver.find(Query())).jobs} == {"mine"}
            assert set(await driver.count()) == {"mine"}
            assert {info.queue for info in await driver.queues()} == {"mine"}
            answers = await driver.cancel([foreign.id, own.id])
            assert [answer.result for answer in answers] == [CancelResult.NOT_FOUND, CancelResult.CANCELLED]
            assert [answer.id for answer in answers] == [foreign.id, own.id]
            refused, deleted = await driver.delete([foreign.id, own.id])
            assert isinstance(refused, JobNotFound)
            assert refused.job_id == foreign.id
            assert not isinstance(deleted, Exception)
            assert not (await driver.hold_role("other", "me", timedelta(seconds=30))).is_mine
        assert (await everything.get([foreign.id]))[0] is not None


@pytest.mark.parametrize("verb", ["enqueue", "reserve", "find", "count", "configure", "schedule"])
async def test_a_token_for_one_queue_cannot_name_another(tokens, verb):
    schedule = Schedule(name="theirs", template=new_job(id="", queue="theirs"), cron="@daily")
    async with connect(tokens.url("admin of mine")) as driver:
        calls = {
            "enqueue": lambda: driver.enqueue([new_job(queue="mine"), new_job(queue="theirs")]),
            "reserve": lambda: driver.reserve(claim(queues=("mine", "theirs"))),
            "find": lambda: driver.find(Query(queue="theirs")),
            "count": lambda: driver.count(["theirs"]),
            "configure": lambda: driver.configure_queue(QueueSettings(queue="*", paused=True)),
            "schedule": lambda: driver.put_schedule(schedule),
        }
        with pytest.raises(StoreRefused):
            await calls[verb]()


async def test_viewers_do_not_see_payloads(tokens):
    job = new_job(queue="secrets", payload=b'{"password": "x"}')
    async with connect(tokens.url("admin")) as driver:
        await driver.enqueue([job])
    async with connect(tokens.url("viewer")) as driver:
        [shown] = await driver.get([job.id])
        page = await driver.find(Query(queue="secrets"))

    assert shown is not None
    assert {shown.payload, *(found.payload for found in page.jobs)} == {b'"***"'}


async def test_a_token_is_never_shown(tokens, caplog):
    caplog.set_level(logging.DEBUG)
    secret, url = tokens.texts["viewer"], tokens.url("viewer")
    async with connect(url) as driver:
        shown = [repr(driver), str(vars(driver)), str(await driver.info()), masked(url)]
        with pytest.raises(StoreRefused) as error:
            await driver.enqueue(new_jobs(1))

    assert not [text for text in (*shown, str(error.value), caplog.text) if secret in text]


# ------------------------------------------------------------------ what a server does not take


async def test_a_message_that_is_too_large_is_refused_before_it_is_sent():
    async with connect(fresh_http_url()) as driver:
        jobs = new_jobs(20, payload=b"x" * 1_000_000)
        with pytest.raises(InvalidArgument, match="send it in parts"):
            await driver.enqueue(jobs)
        with pytest.raises(InvalidArgument, match="send it in parts"):
            await asyncio.to_thread(driver.enqueue_blocking, jobs)
        assert await driver.count() == {}


async def test_an_explicit_now_is_for_servers_under_test_only(tmp_path):
    port = free_port()
    arguments = ["server", "--url", f"sqlite:///{tmp_path}/jobs.db", "--port", str(port), "--no-scheduler"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "taskharbor", *arguments)
    try:
        driver = connect(f"http://127.0.0.1:{port}")
        async with asyncio.timeout(40):
            while not driver.is_open:
                try:
                    await driver.open()
                except DriverUnavailable:
                    await asyncio.sleep(0.05)
        with pytest.raises(StoreRefused, match="uses its own clock"):
            await driver.enqueue(new_jobs(1), now=START)
        await driver.enqueue(new_jobs(1))
        assert (await driver.count())["kit"].ready == 1
        await driver.close()
    finally:
        process.terminate()
        await process.wait()


async def test_bytes_of_every_value_arrive_as_they_were():
    every = bytes(range(256)) * 4
    async with connect(fresh_http_url()) as driver:
        job = new_job(payload=every, key=every[:255], headers={"ü": "🐍\u2028"})
        await driver.enqueue([job])
        [taken] = (await driver.reserve(claim())).jobs

    assert (taken.payload, taken.key, taken.headers) == (every, every[:255], {"ü": "🐍\u2028"})


async def test_an_answer_that_makes_no_sense_is_the_servers_fault():
    nonsense = msgspec.json.encode({"version": 1})
    async with server_that_says(
        http_answer("200 OK", nonsense, "application/json", "TaskHarbor-Protocol: 1")
    ) as url:
        error = await refusal_of(url)

    assert isinstance(error, DriverMisbehaved)
