"""One `driver` fixture for the conformance kit: a fresh, empty store of every kind that exists."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_postgres_url, fresh_redis_url
from tests.contract.losses import LOSSES
from tests.contract.tables import later_rows_are_more

HERE = Path(__file__).parent


def own_file(request: pytest.FixtureRequest) -> str:
    """A copy of a migrated file. The kit is not about power cuts, so it need not wait for the disk."""
    copy = request.getfixturevalue("tmp_path") / "jobs.db"
    shutil.copy(request.getfixturevalue("migrated_file"), copy)
    return f"sqlite:///{copy}?durability=normal"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has nothing to ask.

    The toy driver of the docs page takes one row of each table: it shows that the page is whole, and the
    stores that users have walk every row. Lost records: see `lose_record`.
    """
    seen: set[str] = set()
    left_out = []
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if item.path.name == "test_toy_driver.py":
            if item.originalname in seen or _is_about_lost_records(item):
                left_out.append(item)
            seen.add(item.originalname)
        elif item.path.parent == HERE and _is_about_lost_records(item):
            scheme = item.callspec.params["driver_url"]
            if scheme not in LOSSES:
                left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    later_rows_are_more(items, _only_transport)


def _only_transport(item: pytest.Function) -> str:
    """HTTP, whose server keeps its jobs in memory: what it adds is not in the rows."""
    is_kit = item.path == HERE / "test_conformance.py"
    return "http" if is_kit and item.callspec.params["driver_url"] == "http" else ""


def _is_about_lost_records(item: pytest.Function) -> bool:
    module: str = item.function.__module__
    return module.endswith(".conformance.orphans")


# The package of the driver → the URL of a store that nobody else uses.
BACKENDS: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": own_file,
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "http": lambda _: fresh_http_url(),
}
THERE = [name for name in BACKENDS if find_spec(f"taskharbor.drivers.{name}")]


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store that nobody has used yet, made once: migrating takes longer than most cases."""
    path = tmp_path_factory.mktemp("migrated") / "jobs.db"

    async def make() -> None:
        async with connect(f"sqlite:///{path}"):
            pass

    asyncio.run(make())
    return path


@pytest.fixture(params=THERE)
def driver_url(request: pytest.FixtureRequest) -> str:
    """Where the store of the case is; other processes open it by this name."""
    return BACKENDS[request.param](request)


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        yield driver


@pytest.fixture
def other_namespace_url(driver_url: str) -> str:
    """A second harbor in the store of the case, for the kit to see that the two keep apart."""
    if driver_url.startswith(
        ("http", "redis")
    ):  # a server has one harbor under one path; redis: see fresh_redis_url
        return f"{driver_url}-other"
    return f"{driver_url}{'&' if '?' in driver_url else '?'}namespace=kit-other"


@pytest.fixture
def lose_record(driver_url: str) -> Callable[[str], Awaitable[None]] | None:
    """Takes the record of a job out of the store, as an accident would, and leaves what points to it.

    None where that cannot be: in memory a record is its own place, and behind a server nobody reaches it.
    """
    lose = LOSSES.get(driver_url.partition(":")[0])
    return None if lose is None else lambda job_id: lose(driver_url, job_id)
