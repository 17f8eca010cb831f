"""The kit as a user who may do what the page on Redis says, and nothing else."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.redis.acl import ON_CLUSTERS, allowed
from taskharbor.testing.servers import ValkeyCluster, ValkeyServer
from tests.contract.losses import from_cluster, from_redis

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


KIT = Path(__file__).parent / "test_conformance.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One row of each table: a row needs the rights that the others of its table need."""
    rows = [item for item in items if isinstance(item, pytest.Function) and item.path == KIT]
    first = {(item.originalname, item.callspec.params["driver_url"]): item for item in reversed(rows)}
    left_out = set(rows) - set(first.values())
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    for item in first.values():
        if _topic(item.function) not in ON_BOTH or item.callspec.params["driver_url"] == "cluster":
            item.add_marker(pytest.mark.more("the other topics of the kit, and a cluster, with rights"))


def _topic(case: Callable[..., Any]) -> str:
    return case.__module__.rpartition(".")[2]


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
ON_BOTH = {
    "enqueue_rates",
    "exchange",
    "failure_jobs",
    "limits",
    "orphans",
    "rates",
    "roles",
    "schedules",
    "wakeups",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames and metafunc.definition.path.name == "test_conformance.py":
        kinds = ["server", "cluster"] if _topic(metafunc.function) in ON_BOTH else ["server"]
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
