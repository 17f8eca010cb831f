"""The documented rights are enough, and none of them reaches beyond the keys of the harbor."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from taskharbor.drivers.loading import connect
from taskharbor.drivers.redis.acl import COMMANDS, ON_CLUSTERS, WITH_SENTINELS, allowed
from taskharbor.errors import StoreRefused
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import running, settle_one
from taskharbor.testing.servers import ValkeyServer
from tests.integration.redis.rights.conftest import let_in, refusals

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "redis.md"
FORBIDDEN = [
    "FLUSHDB", "FLUSHALL", "SWAPDB 0 1", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE",
    "CONFIG GET requirepass", "CONFIG SET appendonly no", "CONFIG REWRITE", "ACL LIST",
    "ACL SETUSER other on", "ACL GETUSER default", "SHUTDOWN", "SAVE", "BGSAVE", "REPLICAOF NO ONE",
    "CLIENT LIST", "CLIENT KILL TYPE normal", "MONITOR", "SUBSCRIBE c", "PUBLISH c m", "EVAL return(1) 0",
    "SCRIPT FLUSH", "FUNCTION FLUSH", "MODULE LIST", "MIGRATE h 1 k 0 1", "LATENCY RESET", "SLOWLOG GET",
    "CLUSTER RESET", "MOVE k 1", "COPY a b",
]  # fmt: skip


@pytest.fixture
def harbors_user(own_server: ValkeyServer) -> str:
    """The user as the page makes it."""
    line = next(line for line in PAGE.read_text("utf-8").splitlines() if "ACL SETUSER" in line)
    with redis.Redis(port=own_server.port) as admin:
        admin.execute_command(*re.sub(r"\s+", " ", line.strip()).split(" "), *allowed())
    return f"redis://taskharbor:secret@127.0.0.1:{own_server.port}/0"


def test_the_page_lists_every_command_and_no_other() -> None:
    block = PAGE.read_text("utf-8").partition("## Rights")[2].partition("\n## ")[0]
    first, _, rest = block.partition("On a cluster")

    assert re.findall(r"\+([a-z|]+)", first) == list(COMMANDS)
    commands = set(re.findall(r"\+([a-z|]+)", rest))
    assert commands == {*ON_CLUSTERS, *WITH_SENTINELS, "config|get", "memory|usage"}


@pytest.mark.parametrize("command", FORBIDDEN)
def test_what_reaches_beyond_the_harbor_is_refused(harbors_user: str, command: str) -> None:
    with redis.Redis.from_url(harbors_user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split(" "))


def test_keys_of_others_are_out_of_reach(harbors_user: str) -> None:
    with redis.Redis.from_url(harbors_user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.get("somebody-elses")


async def test_a_job_lives_its_life_and_nothing_is_asked_for_in_vain(
    harbors_user: str, own_server: ValkeyServer
) -> None:
    async with connect(harbors_user) as driver:
        await settle_one(driver, Ack((await running(driver)).lease))

    asked = {entry[b"object"] for entry in refusals(own_server.port)}
    assert asked == {b"config|get"}, "which is asked for, and shown, and not needed"


@pytest.mark.parametrize("words", [(), ("--mix",)], ids=["verbs", "mix"])
def test_bench_runs_with_these_rights(harbors_user: str, words: tuple[str, ...]) -> None:
    answer = _bench(harbors_user, *words)

    assert answer.returncode == 0, answer.stderr
    assert "of memory beyond its payload" not in answer.stderr


def test_bench_shows_the_memory_of_a_job_to_a_user_who_may_ask(
    harbors_user: str, own_server: ValkeyServer
) -> None:
    with redis.Redis(port=own_server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "taskharbor", "+memory|usage")

    answer = _bench(harbors_user)

    assert answer.returncode == 0, answer.stderr
    assert "of memory beyond its payload" in answer.stderr


def _bench(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taskharbor", "bench", "--jobs", "20", "--url", url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


async def test_what_the_user_may_not_see_of_durability_is_logged_once(
    own_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    let_in(own_server.port, "~{taskharbor}:*", *allowed())
    url = f"redis://worker:secret@127.0.0.1:{own_server.port}/0"
    with caplog.at_level(logging.INFO, "taskharbor.drivers.redis"):
        seen = ""
        for _ in range(3):
            async with connect(url) as driver:
                seen = (await driver.info()).durability

    assert seen == "D2", "how often it flushes is not shown, so no more than that is believed"
    assert sum("config|get" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(StoreRefused, match=r"config\|get"):
        await connect(f"{url}?durability=D3").open()
