"""Four processes and every pair of verbs on one job: the answers are those of some order, call after call.

Memory is not among the stores: other processes cannot open it. The kit races handles of one process on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from taskharbor.drivers.loading import connect
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_cluster_url, fresh_postgres_url, fresh_redis_url
from tests.contract.pairs.calls import Call
from tests.contract.pairs.race import Race
from tests.contract.pairs.racers import RACERS, Racers, Trouble
from tests.contract.pairs.verbs import Round, all_rounds

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "cluster": lambda _: fresh_cluster_url(),
    "http": lambda _: fresh_http_url(),
}
SHARE = 100
"""One of so many rounds is in `make test`, on every store another one."""

on_every_store = pytest.mark.parametrize("store", STORES)
by_each_clock = pytest.mark.parametrize("is_given", [True, False], ids=["given-clock", "own-clock"])


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    with Racers() as racers:
        yield racers


def test_a_call_that_fails_leaves_no_answer_for_the_next_one(racers: Racers, tmp_path: Path) -> None:
    racers.open(STORES["sqlite"](tmp_path))

    with pytest.raises(Trouble, match="no_such_verb"):
        racers.make([Call("no_such_verb"), *[Call("count")] * (RACERS - 1)], None)

    assert [one.call.verb for one in racers.make([Call("queues")] * RACERS, None)] == ["queues"] * RACERS
    racers.close()


@on_every_store
@by_each_clock
async def test_some_pairs_of_verbs_on_one_job(
    store: str, is_given: bool, racers: Racers, tmp_path: Path
) -> None:
    offset = 7 * [*STORES].index(store)

    await race(STORES[store](tmp_path), racers, is_given, lambda rounds: rounds[offset::SHARE])


@pytest.mark.more("hundreds of rounds on every store")
@pytest.mark.timeout(600)
@on_every_store
@by_each_clock
async def test_many_pairs_of_verbs_on_one_job(
    store: str, is_given: bool, racers: Racers, tmp_path: Path
) -> None:
    """A sixth of the rounds by each clock, and all that are about one instant; on a cluster half as many."""
    every = 12 if store == "cluster" else 6

    def some(rounds: list[Round]) -> list[Round]:
        return [one for one in rounds if one.number % every == every // 2 * is_given or one.start.is_now]

    await race(STORES[store](tmp_path), racers, is_given, some)


@pytest.mark.long
@pytest.mark.timeout(3600)
@on_every_store
@by_each_clock
async def test_every_pair_of_verbs_on_one_job_from_every_start(
    store: str, is_given: bool, racers: Racers, tmp_path: Path
) -> None:
    await race(STORES[store](tmp_path), racers, is_given, lambda rounds: rounds)


async def race(
    url: str, racers: Racers, is_given: bool, chosen: Callable[[list[Round]], list[Round]]
) -> None:
    before = deadlocks(url)
    async with connect(url) as driver:
        rounds = all_rounds(driver.capabilities, is_given=is_given)
        racers.open(url)
        try:
            await Race(driver, racers, is_given=is_given).run(chosen(rounds))
        finally:
            racers.close()
    assert deadlocks(url) == before


def deadlocks(url: str) -> int:
    """How many the server has seen, if it is one that counts them."""
    if not url.startswith("postgres"):
        return 0
    counted = 0
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        for _ in range(100):  # a session reports what it has counted when it ends
            [(open_sessions, counted)] = connection.execute(
                "select (select count(*) from pg_stat_activity"
                " where datname = current_database() and application_name = 'taskharbor'),"
                " (select deadlocks from pg_stat_database where datname = current_database())"
            ).fetchall()
            if not open_sessions:
                break
            time.sleep(0.02)
    return int(counted)
