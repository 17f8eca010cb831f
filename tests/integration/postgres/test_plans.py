"""A claim finds its jobs by its index, whatever is beside them and whatever the planner believes.

The plans are made while the tables are empty, as in a worker that starts before its backlog, and
statistics are missing or say "empty". What is compared is the number of pages that a claim touches.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.settlement import Ack, Retry
from taskharbor.testing.conformance.kit import QUEUE, claim, new_job, new_jobs
from taskharbor.testing.servers import check_tallies

LIMIT = 100
A_DAY = 86_400_000_000  # a lease, in microseconds: filling the tables takes a while

SMALL = {"scheduled": 30_000, "blocked": 6_000, "finished": 30_000, "failed": 6_000}
LARGE = {"scheduled": 1_000_000, "blocked": 200_000, "finished": 1_000_000, "failed": 100_000}

BODY = """
        with body as (
            insert into job (id, seq, created_at, queue, type, payload)
            select gen_random_uuid(), nextval('job_seq'), now(), $1, 'beside', 'x' from generate_series(1,
            $2::int)
            returning id, seq
        )"""
FILL = {
    "scheduled": f"""{BODY}, state as (
            insert into job_state (id, seq, eligible_at, updated_at, state, is_timed, queue)
            select b.id, b.seq, now() + interval '1 day', now(), 0, true, $1 from body b
        )
        insert into waiting (id, seq, eligible_at, rank, is_timed, queue, lane, line)
        select b.id, b.seq, now() + interval '1 day', 0, true, $1, 'any', $1 || '/any/beside' from body b
        """,
    "blocked": f"""{BODY}, state as (
            insert into job_state (id, seq, eligible_at, updated_at, state, link_flags, queue, key,
            update_flags) select b.id, b.seq, now(), now(), 2, 1, $1, uuid_send(b.id), '111-' from body b
        )
        insert into job_key (queue, key, holder, next, next_seq)
        select $1, uuid_send(b.id), gen_random_uuid(), b.id, b.seq from body b
        """,
    "finished": f"""{BODY}, state as (
            insert into job_state (id, seq, eligible_at, updated_at, state, starts, queue, ends_at)
            select b.id, b.seq, now(), now(), 4, 1, $1, now() from body b
        )
        insert into finished (at, queue, state, ids) select now(), $1, 4, array_agg(b.id) from body b group
        by b.seq / 100
        """,
    "failed": f"""{BODY}, state as (
            insert into job_state (id, seq, eligible_at, updated_at, state, starts, attempts, queue, ends_at)
            select b.id, b.seq, now(), now(), 5, 1, 1, $1, now() from body b
        )
        insert into finished (at, queue, state, seq, ids) select now(), $1, 5, b.seq, array[b.id] from body b
        """,
}
TABLES = ("job", "job_state", "waiting", "job_key", "lease", "finished")
EMPTY = "; ".join(f"delete from {table}" for table in TABLES)


@pytest.fixture(autouse=True)
def filled_by_hand() -> Iterator[None]:
    """No step of ours put these rows there, so nothing has noted them."""
    yield
    check_tallies(is_right=False)


@pytest.fixture
async def session(driver: PostgresDriver, database_url: str) -> AsyncIterator[Any]:
    """A connection whose plans are as old as its first claims."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(f"set search_path = {driver.address.identifier}; analyze {', '.join(TABLES)}")
    for _ in range(8):
        await claimed_pages(connection, driver)
    yield connection
    await connection.execute(EMPTY)
    await connection.close()


async def claimed_pages(
    connection: Any, driver: PostgresDriver, queues: str = f"array['{QUEUE}']", types: str = "null"
) -> tuple[int, int]:
    """How many jobs one claim handed out, and how many pages it touched for that."""
    [row] = await connection.fetch(
        f"""
        explain (analyze, buffers, timing off, summary off, format json)
        select * from {driver.address.identifier}.exchange(
            null, null, null, null, null, null, null, null, {queues}, array['any'], 'w', {LIMIT},
            {A_DAY}, gen_random_uuid(), {types}, null, null, null)
        """
    )
    [explained] = json.loads(row[0])
    plan = explained["Plan"]
    return round(plan["Actual Rows"]) - 1, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize(
    "sizes", [SMALL, pytest.param(LARGE, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
async def test_a_claim_costs_the_same_beside_any_backlog(
    driver: PostgresDriver, session: Any, sizes: dict[str, int]
) -> None:
    await driver.enqueue(new_jobs(LIMIT))
    jobs, alone = await claimed_pages(session, driver)
    assert jobs == LIMIT

    for state, size in sizes.items():
        await session.fetch(FILL[state], QUEUE, size)
    found = []
    for _ in range(3):
        await driver.enqueue(new_jobs(LIMIT))
        found.append(await claimed_pages(session, driver))

    assert [jobs for jobs, _ in found] == [LIMIT] * 3
    # A vacuum or analyze of the server makes one of them plan again, which reads hundreds of pages.
    # A scan is in all of them.
    crowded = min(pages for _, pages in found)
    # Taller index trees cost a page or two per look-up; a scan would cost thousands.
    assert crowded <= alone * 1.5 + 100, (alone, crowded)


MANY_TYPES = "array(select 'kit.type' || n from generate_series(1, 20) n)"


@pytest.mark.parametrize("types", ["array['kit.job']", f"{MANY_TYPES} || array['kit.job']"])
async def test_jobs_of_other_types_cost_a_claim_nothing(
    driver: PostgresDriver, session: Any, types: str
) -> None:
    for _ in range(8):  # its plans are as old as the others
        await claimed_pages(session, driver, types=types)
    await driver.enqueue(new_jobs(LIMIT))
    jobs, alone = await claimed_pages(session, driver, types=types)
    assert jobs == LIMIT

    for _ in range(4):
        await driver.enqueue(new_jobs(5000, type="kit.other"))
    await driver.enqueue(new_jobs(LIMIT))
    jobs, behind = await claimed_pages(session, driver, types=types)
    assert jobs == LIMIT
    none, empty_handed = await claimed_pages(session, driver, types=types)
    assert none == 0

    # A look along the line of all, and then one per type; to walk over the others would cost thousands.
    assert behind <= alone * 3 + 300, (alone, behind)
    assert empty_handed <= 1000, empty_handed


async def test_types_cost_nothing_for_a_worker_that_knows_them_all(
    driver: PostgresDriver, session: Any
) -> None:
    types = f"{MANY_TYPES} || array['kit.job']"
    for _ in range(8):
        await claimed_pages(session, driver, types=types)
    await driver.enqueue([new_job(type=f"kit.type{n % 20 + 1}") for n in range(4 * LIMIT)])
    jobs, without = await claimed_pages(session, driver)
    assert jobs == LIMIT

    jobs, with_types = await claimed_pages(session, driver, types=types)

    assert jobs == LIMIT
    assert with_types <= without * 1.5 + 100, (without, with_types)


async def test_queues_where_nothing_is_cost_a_claim_nothing(driver: PostgresDriver, session: Any) -> None:
    few = f"array['{QUEUE}'] || array(select 'idle' || n from generate_series(1, 9) n)"
    many = f"array(select 'idle' || n from generate_series(1, 1999) n) || array['{QUEUE}']"
    for _ in range(8):
        await claimed_pages(session, driver, few)
        await claimed_pages(session, driver, many)
    await driver.enqueue(new_jobs(2 * LIMIT))

    with_few = await claimed_pages(session, driver, few)
    with_many = await claimed_pages(session, driver, many)
    idle_few = await claimed_pages(session, driver, few)
    idle_many = await claimed_pages(session, driver, many)

    assert with_few[0] == with_many[0] == LIMIT
    assert with_many[1] <= with_few[1] * 1.5 + 50, (with_few, with_many)
    assert idle_few[0] == idle_many[0] == 0
    assert idle_many[1] <= idle_few[1] + 50, (idle_few, idle_many)


async def test_an_idle_claim_marks_only_queues_whose_mark_was_taken(driver: PostgresDriver) -> None:
    queues = tuple(f"idle{number}" for number in range(2000))
    hints = driver.wakeups(queues, "w")
    await asyncio.wait_for(anext(hints), 30)
    sent: list[Any] = []
    rows = driver._connections.rows

    async def noted(statement: str, *arguments: Any, **options: Any) -> Any:
        if statement == driver._sql["exchange"]:
            sent.append(arguments[17])
        return await rows(statement, *arguments, **options)

    driver._connections.rows = noted  # type: ignore[method-assign]
    await driver.reserve(claim(queues=queues))
    await driver.enqueue([new_job(queue="idle7")])
    while (await asyncio.wait_for(anext(hints), 30)).queue != "idle7" or "idle7" not in (
        driver._signals.unmarked
    ):
        pass
    await driver.reserve(claim(queues=queues, limit=2))
    await driver.reserve(claim(queues=queues))

    assert sent == [None, ["idle7"], None]
    await hints.aclose()


VERBS = {
    "settle": lambda driver, jobs: driver.settle([Ack(job.lease) for job in jobs]),
    "settle with other ends": lambda driver, jobs: driver.settle([Retry(job.lease) for job in jobs]),
    "extend": lambda driver, jobs: driver.extend_leases([job.lease for job in jobs], claim().lease_for),
    "get": lambda driver, jobs: driver.get([job.id for job in jobs]),
    "cancel": lambda driver, jobs: driver.cancel([job.id for job in jobs]),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_verbs_about_known_jobs_look_them_up(driver: PostgresDriver, session: Any, verb: str) -> None:
    """Planned while the tables were empty; then they are not any more. One call reads what it names."""
    call: Any = VERBS[verb]
    for _ in range(8):
        await driver.enqueue(new_jobs(1))
        await call(driver, (await driver.reserve(claim())).jobs)
    await session.execute(EMPTY)
    for fill in FILL.values():
        await session.fetch(fill, QUEUE, 10_000)
    await driver.enqueue(new_jobs(10))
    taken = (await driver.reserve(claim(limit=10))).jobs
    before = await all_rows_read(driver, session)

    await call(driver, taken)

    assert await all_rows_read(driver, session) - before < 2000


async def all_rows_read(driver: PostgresDriver, session: Any) -> int:
    """The same, with those of the driver's session: it reports them once a second, at the end of a call."""
    await asyncio.sleep(1.2)
    await driver.get([new_jobs(1)[0].id])
    return await rows_read(session)


async def rows_read(session: Any) -> int:
    """How many rows and index entries of the big tables were read so far."""
    await session.execute("select pg_stat_force_next_flush()")
    await asyncio.sleep(0.1)  # the other session reports its numbers when its transaction is over
    await session.execute("select pg_stat_clear_snapshot()")
    return int(
        await session.fetchval(
            "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables"
            " where schemaname = current_schema() and relname = any ($1)",
            list(TABLES),
        )
    )


async def test_a_listing_reads_little_more_than_it_looks_at(driver: PostgresDriver, session: Any) -> None:
    """In a store that was just filled, too, of which the server has no statistics."""
    await session.execute(f"truncate {', '.join(TABLES)}")  # pages that other tests have left would count
    for _ in range(4):
        await driver.enqueue(new_jobs(5000))
    statement = driver._sql.directed("find_walk", newest_first=False)

    [row] = await driver._connections.rows(
        f"explain (analyze, buffers, format json) {statement}",
        *(None, None, [0, 1], -1, LIMIT, "kit.nobody", None, None, None, LIMIT, None),
    )

    [explained] = json.loads(row[0])
    plan = explained["Plan"]
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert pages <= LIMIT * 1.5, pages  # a page for each; all of them are on three times as many


@pytest.mark.parametrize("name", ["find_few", "find_ended"])
async def test_a_listing_over_many_queues_reads_the_jobs_of_its_page_only(
    driver: PostgresDriver, session: Any, name: str
) -> None:
    for number in range(20):
        await session.fetch(FILL["failed"], f"{QUEUE}{number}", LIMIT)
    latest = (datetime.now(UTC),) if name == "find_ended" else ()

    [row] = await driver._connections.rows(
        f"explain (analyze, format json) {driver._sql.directed(name, newest_first=True)}",
        *(None, None, [5], 1 << 62, LIMIT, None, None, None, None, LIMIT, None, *latest),
    )

    [explained] = json.loads(row[0])
    assert explained["Plan"]["Actual Rows"] == LIMIT
    assert jobs_read(explained["Plan"]) <= LIMIT * 2.5  # to filter and to show them; and the queues' names


def jobs_read(plan: dict[str, Any]) -> float:
    """How many rows of `job` a plan and its parts have read."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == "job" else 0
    return float(own) + sum(jobs_read(part) for part in plan.get("Plans", ()))
