"""Options about TLS reach the database libraries, and what they ask for is what happens.

The server from the wheel speaks no TLS. A listener in front of it does, with a certificate that it has signed
itself: it answers the request for TLS as a server does, and passes on what it has decrypted.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from taskharbor.drivers.loading import connect
from taskharbor.errors import DriverError, StoreRefused
from taskharbor.testing.conformance.kit import claim, new_job

CERTIFICATES = Path(__file__).with_name("certificates")
SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


class Front:
    """The listener; `encrypted` counts the connections that went on in TLS."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._behind = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(CERTIFICATES / "server.crt", CERTIFICATES / "server.key")
        self.encrypted = 0
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
                return  # no TLS, no service
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(self._tls)
            self.encrypted += 1
            behind, to_behind = await asyncio.open_connection(*self._behind)
            await asyncio.gather(_pass_on(reader, to_behind), _pass_on(behind, writer))
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture
async def front(store_url: str) -> AsyncIterator[Front]:
    front = Front(store_url)
    async with front.listening():
        yield front


def url_through(front: Front, store_url: str, **options: str) -> str:
    parts = urlsplit(store_url)
    asked = "".join(f"&{name}={quote(value)}" for name, value in options.items())
    return f"postgresql://{parts.username}@localhost:{front.port}{parts.path}?{parts.query}{asked}"


def known(name: str) -> str:
    return str(CERTIFICATES / f"{name}.crt")


@pytest.mark.parametrize(
    "options",
    [{"sslmode": "require"}, {"sslmode": "verify-full", "sslrootcert": known("server")}],
    ids=["require", "verify-full"],
)
async def test_async_and_blocking_callers_speak_tls(
    front: Front, store_url: str, options: dict[str, str]
) -> None:
    async with connect(url_through(front, store_url, **options)) as driver:
        first = front.encrypted
        assert first > 0
        await driver.enqueue([new_job()])
        await asyncio.to_thread(driver.enqueue_blocking, [new_job()])

        assert front.encrypted > first  # the blocking caller has a connection of its own
        assert len((await driver.reserve(claim(limit=5))).jobs) == 2


async def test_a_certificate_that_nobody_vouches_for_is_refused(front: Front, store_url: str) -> None:
    url = url_through(front, store_url, sslmode="verify-full", sslrootcert=known("stranger"))

    with pytest.raises(StoreRefused, match="certificate"):
        async with connect(url):
            pass


async def test_a_server_without_tls_is_refused_where_tls_is_asked_for(store_url: str) -> None:
    with pytest.raises(StoreRefused, match="TLS"):
        async with connect(f"{store_url}&sslmode=require"):
            pass


async def test_who_does_not_ask_for_tls_is_not_served_by_this_front(front: Front, store_url: str) -> None:
    """Otherwise the tests above would prove nothing."""
    with pytest.raises(DriverError):
        async with connect(url_through(front, store_url, sslmode="disable")):
            pass
    assert front.encrypted == 0
