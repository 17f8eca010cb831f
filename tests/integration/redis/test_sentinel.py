"""Through sentinels to the primary, before and after a failover."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from taskharbor.drivers import connect
from taskharbor.drivers.redis.acl import WITH_SENTINELS, allowed
from taskharbor.errors import DriverUnavailable, StoreRefused
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import START, get_one, new_job, running, settle_one
from taskharbor.testing.servers import ValkeyServer

PATIENCE = 60.0


class Sentinel(ValkeyServer):
    """One sentinel that watches one primary."""

    name = "sentinel"

    def __init__(self, primary: ValkeyServer) -> None:
        super().__init__()
        self._file: Path = self.folder / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor harbor 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds harbor 500\nsentinel failover-timeout harbor 5000\n"
        )

    def _command(self) -> list[str]:
        program = super()._command()[0]
        return [program, str(self._file), "--sentinel"]


@pytest.fixture
def watched() -> Iterator[tuple[ValkeyServer, ValkeyServer, Sentinel]]:
    """A primary, its replica, and the sentinel that knows both."""
    quick = {"repl-diskless-sync-delay": "0"}
    with ValkeyServer(settings=quick) as primary, ValkeyServer(settings=quick) as replica:
        with redis.Redis(port=replica.port) as client:
            client.replicaof("127.0.0.1", primary.port)
        with Sentinel(primary) as sentinel:
            yield primary, replica, sentinel


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.05)


def knows_replica(sentinel: ValkeyServer, replica: ValkeyServer) -> bool:
    with redis.Redis(port=sentinel.port) as client, redis.Redis(port=replica.port) as second:
        found: Any = client.execute_command("SENTINEL", "REPLICAS", "harbor")
        return bool(found) and second.info("replication").get("master_link_status") == "up"


async def test_the_primary_is_found_and_found_again_after_a_failover(watched, caplog):
    primary, replica, sentinel = watched
    await until(lambda: asyncio.to_thread(knows_replica, sentinel, replica))
    async with connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/harbor") as driver:
        assert f":{sentinel.port}" in (await driver.info()).location
        job = await running(driver)
        await until(lambda: asyncio.to_thread(has_job, replica))
        primary.kill()

        await until(lambda: takes(driver))

        assert (await get_one(driver, job.id)).id == job.id
        with redis.Redis(port=replica.port) as client:
            promoted = client.info("replication")
        assert promoted["role"] == "master"
        offset = promoted["second_repl_offset"] - 1
        [logged] = [record.getMessage() for record in caplog.records if "taken over" in record.getMessage()]
        assert f"up to offset {offset} " in logged
        assert f"offset {offset}" in (await driver.info()).details["took_over"]


def has_job(replica: ValkeyServer) -> bool:
    with redis.Redis(port=replica.port) as client:
        return bool(client.zcard("{taskharbor}:q:kit:leases"))


async def takes(driver):
    try:
        await driver.enqueue([new_job()], now=START)
    except DriverUnavailable:
        return False
    return True


async def test_a_name_that_no_sentinel_knows_is_reported(watched):
    _, _, sentinel = watched

    with pytest.raises(DriverUnavailable, match="knows no primary 'other'"):
        await connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/other").open()


async def test_the_documented_rights_are_enough_through_a_sentinel(watched):
    primary, _, sentinel = watched
    with redis.Redis(port=primary.port) as admin:
        rights = [*allowed(), *(f"+{command}" for command in WITH_SENTINELS)]
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~{taskharbor}:*", *rights)
    url = f"redis+sentinel://worker:secret@127.0.0.1:{sentinel.port}/harbor"

    async with connect(url) as driver:
        await settle_one(driver, Ack((await running(driver)).lease))

    with redis.Redis(port=primary.port) as admin:
        refused = {entry[b"object"] for entry in admin.execute_command("ACL", "LOG")}
    assert refused <= {b"config|get"}  # asked for to show how the server flushes, and not needed


async def test_a_user_without_the_right_for_sentinels_learns_which_it_is(watched):
    primary, _, sentinel = watched
    with redis.Redis(port=primary.port) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~{taskharbor}:*", *allowed())

    with pytest.raises(StoreRefused, match="role"):
        await connect(f"redis+sentinel://worker:secret@127.0.0.1:{sentinel.port}/harbor").open()
