"""The kit as a user who may do what the page on Redis says, and nothing else."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.redis.rights import ON_CLUSTERS, allowed
from taskharbor.testing.servers import ValkeyCluster, ValkeyServer
from tests.contract.losses import from_cluster, from_redis
from tests.contract.tables import later_rows_are_more

SETTINGS = {"appendonly": "yes", "appendfsync": "everysec"}
_numbers = iter(range(1_000_000))


def let_in(port: int, *rights: str) -> None:
    with redis.Redis(port=port) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "resetchannels", *rights)


def refusals(port: int) -> list[Any]:
    """What a user was not allowed to do on this server."""
    with redis.Redis(port=port) as admin:
        found: list[Any] = admin.execute_command("ACL", "LOG")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A row needs the rights that the others of its table need."""
    kit = Path(__file__).parent / "test_conformance.py"
    later_rows_are_more(
        items, lambda item: str(item.callspec.params["driver_url"]) if item.path == kit else ""
    )


@pytest.fixture(scope="session")
def guarded_server() -> Iterator[ValkeyServer]:
    with ValkeyServer(settings=SETTINGS) as server:
        let_in(server.port, "~{kit-*", *allowed())
        yield server


@pytest.fixture(scope="session")
def guarded_cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(settings=SETTINGS) as cluster:
        for node in cluster.nodes:
            let_in(node.port, "~{kit-*", *allowed(*ON_CLUSTERS))
        yield cluster


# Of a cluster the topics in which it uses other commands than one server.
ON_BOTH = {"exchange", "failure_jobs", "limits", "orphans", "rates", "roles", "schedules", "wakeups"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames and metafunc.definition.path.name == "test_conformance.py":
        topic = metafunc.function.__module__.rpartition(".")[2]
        kinds = ["server", "cluster"] if topic in ON_BOTH else ["server"]
        metafunc.parametrize("driver_url", kinds, indirect=True)


@pytest.fixture
def driver_url(request: pytest.FixtureRequest) -> str:
    if request.param == "cluster":
        hosts = request.getfixturevalue("guarded_cluster").url.partition("//")[2]
        return f"redis+cluster://worker:secret@{hosts}?namespace=kit-{next(_numbers)}"
    port = request.getfixturevalue("guarded_server").port
    return f"redis://worker:secret@127.0.0.1:{port}/0?namespace=kit-{next(_numbers)}"


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        yield driver


@pytest.fixture
def other_namespace_url(driver_url: str) -> str:
    return f"{driver_url}-other"


@pytest.fixture
def lose_record(driver_url: str, request: pytest.FixtureRequest) -> Callable[[str], Awaitable[None]]:
    """By somebody who may do everything."""
    theirs = driver_url.replace("worker:secret@", "")
    lose = from_cluster if theirs.startswith("redis+cluster") else from_redis
    return lambda job_id: lose(theirs, job_id)
