"""What a driver says before it starts work: the server it cannot use, and why."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis

from taskharbor.cli.main import run
from taskharbor.drivers import connect
from taskharbor.errors import ConfigurationError, DriverUnavailable, StoreRefused
from taskharbor.testing.conformance.kit import START, new_job
from taskharbor.testing.servers import ValkeyServer, free_port


async def refusal(url: str) -> str:
    with pytest.raises(StoreRefused) as error:
        await connect(url).open()
    return str(error.value)


def at(server: ValkeyServer, user: str = "", options: str = "") -> str:
    return f"redis://{user}127.0.0.1:{server.port}/0{options}"


async def test_a_wrong_password_is_reported_and_is_in_no_message(own_server, admin):
    admin.config_set("requirepass", "right")
    try:
        message = await refusal(at(own_server, ":wr0ng@"))
        assert "does not let us in" in message
        assert "wr0ng" not in message
        assert "wants a password" in await refusal(at(own_server))
        async with connect(at(own_server, ":right@")) as driver:
            assert "right" not in (await driver.info()).location
    finally:
        admin.config_set("requirepass", "")


async def test_a_user_without_scripting_rights_is_refused_at_start(own_server, admin):
    admin.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-@scripting")

    message = await refusal(at(own_server, "poor:secret@"))

    assert "may not do this" in message
    assert "EVALSHA" in message


async def test_a_database_that_does_not_exist_is_named(own_server):
    with pytest.raises(StoreRefused, match="no such database"):
        await connect(f"redis://127.0.0.1:{own_server.port}/4000").open()


async def test_an_eviction_policy_that_throws_jobs_away_is_refused(own_server, admin):
    admin.config_set("maxmemory-policy", "allkeys-lru")

    message = await refusal(own_server.url)

    assert "allkeys-lru" in message
    assert "noeviction" in message
    async with connect(f"{own_server.url}?unsafe=true") as driver:
        assert (await driver.info()).details["maxmemory_policy"] == "allkeys-lru"


async def test_a_replica_is_refused(own_server, admin):
    admin.replicaof("127.0.0.1", free_port())

    assert "read-only replica" in await refusal(f"{own_server.url}?unsafe=true")


@pytest.mark.parametrize(
    ("settings", "durability"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "D3"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "D2"),
        ({"appendonly": "yes", "appendfsync": "no"}, "D1"),
        ({"appendonly": "no", "save": "3600 1"}, "D1"),
        ({"appendonly": "no", "save": ""}, "D0"),
    ],
)
async def test_the_durability_class_follows_from_the_servers_settings(
    own_server, admin, settings, durability
):
    for name, value in settings.items():
        admin.config_set(name, value)

    async with connect(own_server.url) as driver:
        assert (await driver.info()).durability == durability
        assert driver.capabilities.durable == (durability != "D0")


async def test_a_weaker_class_than_asked_for_is_refused(own_server, admin):
    admin.config_set("appendfsync", "everysec")

    message = await refusal(f"{own_server.url}?durability=D3")

    assert "D2" in message
    assert "appendfsync always" in message
    async with (
        connect(f"{own_server.url}?durability=D2"),
        connect(f"{own_server.url}?durability=D3&unsafe=true"),
    ):
        pass


async def test_a_server_that_is_not_there_can_be_tried_again():
    with pytest.raises(DriverUnavailable) as error:
        await connect(f"redis://127.0.0.1:{free_port()}/0").open()

    assert error.value.done is False


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://host/zero", "must be a number"),
        ("redis://host/0?namespace=a{b", "namespace"),
        ("redis://host/0?durability=D9", "durability"),
        ("redis://host/0?colour=red", "no option"),
        ("redis://host:99999/0", "host:port"),
        ("redis://host/0?tls_ca=ca.pem", "rediss://"),
        ("redis://host/0?timeout=soon", "timeout"),
        ("redis+sentinel://host", "names the primary"),
        ("redis+cluster://host/3", "only database 0"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_before_anything_is_connected(url, message):
    with pytest.raises(ConfigurationError, match=message):
        connect(url)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@asynccontextmanager
async def behind_tls(port: int, certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    """A port that speaks TLS in front of a server that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        front.close()


async def test_tls_is_spoken_and_the_certificate_is_checked(own_server, certificate):
    async with behind_tls(own_server.port, certificate) as port:
        place = f"rediss://localhost:{port}/0"

        assert "not trusted" in await refusal(place)
        async with connect(f"{place}?tls_ca={certificate[0]}") as driver:
            assert (await driver.info()).durability == "D3"
            job = new_job()
            await asyncio.to_thread(driver.enqueue_blocking, [job], now=START)
            assert await driver.get([job.id], now=START) != [None]
        async with connect(f"{place}?tls_verify=false"):
            pass


@pytest.mark.parametrize(("save", "kept"), [("", "D0"), ("3600 1", "D1")])
async def test_a_server_that_may_lose_jobs_is_warned_about_once_with_what_helps(save, kept, caplog):
    with ValkeyServer(settings={"save": save}) as server, caplog.at_level("INFO", "taskharbor.drivers.redis"):
        for _ in range(3):
            async with connect(at(server)) as driver, driver.another():
                assert (await driver.info()).durability == kept

    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"class {kept}" in warning
    assert "`appendonly yes`" in warning
    assert f"durability={kept}" in warning


async def test_a_caller_that_asked_for_that_class_or_only_looks_is_not_warned(caplog):
    with ValkeyServer() as server:
        async with await connect(at(server)).open_to_look() as driver:
            assert await driver.count() == {}
        with redis.Redis(port=server.port) as admin:
            assert admin.dbsize() == 0, "and looking leaves an empty server empty"
        async with connect(at(server, options="?durability=D0")):
            pass

    assert not caplog.records


async def test_doctor_says_what_to_set_on_the_server(capsys):
    with ValkeyServer() as server:
        code = await asyncio.to_thread(run, ["doctor", "--json", "--url", at(server)])

    [store] = [item for item in json.loads(capsys.readouterr().out)["items"] if item["check"] == "store"]
    assert (code, store["level"]) == (0, "warn")
    assert "appendonly yes" in store["fix"]
