"""Rights in the database: what others plant is never run by us, and each role can do its part and no more.

The statements that make the roles are those of docs/reference/postgres.md, word for word.
"""

# ruff: noqa: E501 - SQL reads better unbroken

import asyncio
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import Query, Resolution, Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.statements import FILES
from taskharbor.drivers.wire import VERBS
from taskharbor.errors import StoreRefused
from taskharbor.model.job import NewJob, Note, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.logbook import LogEntry, LogKey
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail, Park, Release, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import LEASE, MINUTE, QUEUE, WORKER, claim, new_job, new_jobs
from taskharbor.testing.conformance.relatives import after, bound, children
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking

MANUAL = Path(__file__).parents[3] / "docs" / "reference" / "postgres.md"

# Every operator and function of the server, once more in `public`, for arguments that fit our calls better
# than the server's own. To call one raises, and so does a call that the server cannot decide between.
TRAPS = """
create function public.sprung() returns void language plpgsql as $$
begin
    raise exception 'code of a stranger, run by %', current_user;
end $$;
do $$
declare
    v_types text[] := array['smallint', 'integer', 'bigint', 'numeric', 'text', 'varchar', 'name',
    'timestamptz', 'interval', 'boolean', 'uuid', 'bytea', 'json', 'text[]', 'integer[]']; v_name text;
    v_left text; v_right text; v_count integer := 0;
begin
    for v_name, v_left, v_right in
        select o, l, r from unnest(array['+', '-', '*', '/', '=', '<>', '<', '<=', '>', '>=', '||', '&', '|',
        '>>', '&&']) o, unnest(v_types) l, unnest(v_types) r where not exists (select from pg_operator p
        where p.oprname = o and p.oprleft = l::regtype and p.oprright = r::regtype)
    loop
        v_count := v_count + 1;
        execute format('create function public.trap_%s(%s, %s) returns %s language sql as ''select
        public.sprung(); select null::%s''', v_count, v_left, v_right, v_left, v_left); execute
        format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.trap_%s)', v_name,
        v_left, v_right, v_count);
    end loop;
    for v_name, v_left in
        select distinct p.proname, string_agg(case t.typ
            when 'bigint'::regtype then 'integer' when 'double precision'::regtype then 'bigint'
            when 'numeric'::regtype then 'integer' when 'name'::regtype then 'text' when '"any"'::regtype
            then 'text' when 'regclass'::regtype then 'text' when 'text'::regtype then 'varchar' else
            t.typ::regtype::text end, ', ' order by t.ord)
        from pg_proc p cross join unnest(p.proargtypes::oid[]) with ordinality as t(typ, ord)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and p.proname = any (%s)
        group by p.oid, p.proname
    loop
        begin
            execute format('create function public.%I(%s) returns bigint language sql as ''select
            public.sprung(); select 1::bigint''', v_name, v_left);
        exception when others then null;  -- types that no such function can have
        end;
    end loop;
end $$;
"""


# `hello` is a call of the HTTP driver; the others belong to the role that migrates, and the fixture calls them.
OF_OTHERS = {"hello", "migrate", "pending_migrations"}


def statements_in_the_manual(title: str) -> str:
    """The SQL block under a bold title."""
    found = re.search(rf"\*\*{title}.*?```sql\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, title
    return found[1]


def called_names() -> list[str]:
    """Every word in our SQL that is followed by a bracket, which is more than the functions we call."""
    texts = [
        path.read_text()
        for path in Path(MANUAL.parents[2], "src/taskharbor/drivers/postgres/sql").rglob("*.sql")
    ]
    assert len(texts) > len(FILES.names())
    return sorted({name for text in texts for name in re.findall(r"\b([a-z_0-9]+)\(", text)})


def plant(server: PostgresServer, database: str) -> None:
    names = "array[" + ", ".join(f"'{name}'" for name in called_names()) + "]"
    with psycopg.connect(url_of(server, "stranger", database), autocommit=True) as connection:
        connection.execute(TRAPS.replace("any (%s)", f"any ({names})").encode())
        [planted] = connection.execute(
            "select count(*) from pg_proc where pronamespace = 'public'::regnamespace"
        ).fetchone() or (0,)
        assert planted > 1000


def url_of(server: PostgresServer, role: str, database: str) -> str:
    return f"postgresql://{role}@127.0.0.1:{server.port}/{database}"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A database with a stranger who may create things in `public`, and has; and the roles of the manual."""
    with PostgresServer() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create role stranger login")
            connection.execute("create database shop")
        with psycopg.connect(url_of(server, "postgres", "shop"), autocommit=True) as connection:
            connection.execute("grant create on schema public to stranger")
            plant(server, "shop")
            connection.execute(statements_in_the_manual("Before").encode())
        migrate_blocking(url_of(server, "harbor_migrate", "shop"))
        with psycopg.connect(url_of(server, "harbor_migrate", "shop"), autocommit=True) as connection:
            connection.execute(statements_in_the_manual("After").encode())
        yield server


@pytest.mark.parametrize(
    "call",
    [
        "hashtextextended('a', 21)",
        "1::bigint * interval '1 second'",
        "extract(epoch from now()) * 1000",
    ],
)
def test_the_traps_are_set(server: PostgresServer, call: str) -> None:
    """Where names are looked up as usual, such calls go to the stranger."""
    with (
        psycopg.connect(url_of(server, "harbor_work", "shop")) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="code of a stranger, run by harbor_work"),
    ):
        connection.execute(f"select {call}".encode())


async def every_verb(driver: PostgresDriver) -> None:
    """Do what workers, schedulers and operators do, each at least once."""
    second = timedelta(seconds=1)
    await driver.configure_queue(
        QueueSettings(
            queue=QUEUE, max_running=100, execute_rate=RateLimit(1000, second), fail_queue="failures"
        )
    )
    await driver.configure_queue(QueueSettings(queue="limited", enqueue_rate=RateLimit(1000, second)))
    await driver.enqueue(new_jobs(3))
    await driver.enqueue([new_job(queue="limited"), new_job(delay=second), new_job(priority=5)])
    await driver.enqueue([new_job(key=b"k"), new_job(idempotency_key=b"i"), new_job(key=b"k")])
    await driver.enqueue([new_job(delay=timedelta(microseconds=1))])
    taken = (await driver.reserve(claim(limit=4, types=("kit.job",), rate=RateLimit(1000, second)))).jobs
    assert len(taken) == 4
    answers = await driver.extend_leases(
        [job.lease for job in taken], LEASE, progress={taken[0].id: Progress(0.5, "half")}
    )
    assert len(answers) == 4
    await driver.speculate(taken[3].id)
    async with driver.transaction(taken[3].lease) as connection:
        await connection.fetchval("select 1")
    await driver.settle([Retry(taken[0].lease, second), Fail(taken[1].lease, "no")])
    taken = (await driver.exchange([Release(taken[2].lease)], claim(limit=2))).claimed
    taken = (await driver.exchange([Ack(job.lease, b"1") for job in taken], claim(limit=1))).claimed
    await driver.cancel([job.id for job in taken])
    await driver.cancel_waiting(QUEUE, b"k")
    failed = (await driver.find(Query(states=(JobState.FAILED,)))).jobs
    await driver.requeue([job.id for job in failed])
    await driver.cancel([job.id for job in failed])
    await driver.delete([job.id for job in failed])
    await driver.find(Query())
    await driver.find(Query(states=(JobState.COMPLETED,)))
    await driver.get([job.id for job in taken])
    await driver.count()
    await driver.queues()
    await driver.info()
    await driver.report_worker(WorkerReport(worker_id=WORKER), [Sample("kit.job", second)], LEASE)
    await driver.workers()
    await driver.types()
    await driver.forget_worker(WORKER)
    await driver.hold_role("scheduler", WORKER, LEASE)
    await driver.release_role("scheduler", WORKER)
    entry = await driver.put_schedule(
        Schedule(name="nightly", template=NewJob(id="", type="kit.job"), every=MINUTE)
    )
    await driver.advance_schedule("nightly", entry.last_tick_at + MINUTE)
    await driver.schedules()
    await driver.delete_schedule("nightly")
    cell = LogEntry(book="kit", at=entry.created_at, by=WORKER, data=b"cell", until=entry.created_at + MINUTE)
    await driver.write_log([cell], instead_of=[LogKey("kit", entry.created_at)])
    await driver.read_log("kit", entry.created_at, entry.created_at + MINUTE)
    await driver.promote()
    await driver.reclaim()
    await driver.prune()
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)
    await hints.aclose()
    await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))
    await asyncio.to_thread(driver.enqueue_blocking, new_jobs(3))
    await asyncio.to_thread(driver.enqueue_blocking, [new_job(key=b"b")])
    await driver.ring([QUEUE])
    await every_verb_of_families(driver)


async def every_verb_of_families(driver: PostgresDriver) -> None:
    """A parent that remembers, parks for its child and goes on, a job after it, and one done by a call."""
    parent, gate = new_job(queue="family"), bound(done_by="call", queue="family")
    last = after(parent, gate, queue="family")
    await driver.enqueue([parent, gate, last])
    wanted = claim(queues=("family",), limit=10)
    [job] = (await driver.reserve(wanted)).jobs
    [child] = children(parent, 1, queue="family")
    await driver.enqueue([child], by=job.lease)
    await driver.note([Note("step", b"1", lease=job.lease)])
    await driver.settle([Park(job.lease, (child.id,))])
    await driver.resolve([Resolution(id=gate.id, result=b"1")])
    for wanted_id in (child.id, parent.id, last.id):
        while (await driver.promote()).count:
            pass
        [job] = (await driver.reserve(wanted)).jobs
        assert job.id == wanted_id
        [settled] = await driver.settle([Ack(job.lease)])
        assert isinstance(settled, Settled)


def test_every_verb_of_the_contract_is_called() -> None:
    """A new verb is tried with the rights of each role, too."""
    texts = inspect.getsource(every_verb) + inspect.getsource(every_verb_of_families)
    called = set(re.findall(r"\bdriver\.(\w+)\(", texts))

    assert sorted(set(VERBS) - called - OF_OTHERS) == []


@pytest.mark.parametrize("role", ["harbor_work", "harbor_migrate"])
async def test_no_verb_runs_what_a_stranger_has_planted(server: PostgresServer, role: str) -> None:
    async with PostgresDriver.from_url(url_of(server, role, "shop")) as driver:
        await every_verb(driver)


async def test_no_verb_behind_a_pooler_does_either(server: PostgresServer) -> None:
    async with PostgresDriver.from_url(
        url_of(server, "harbor_work", "shop") + "?pooler=transaction"
    ) as driver:
        await every_verb(driver)


@pytest.mark.parametrize("path", ["public", "''", "public, pg_catalog"])
async def test_an_enqueue_in_a_callers_transaction_runs_nothing_of_a_strangers(
    server: PostgresServer, path: str
) -> None:
    """A caller with such a search_path may be trapped by its own statements; ours are not."""
    url = url_of(server, "harbor_enqueue", "shop")
    jobs = [
        new_job(key=b"k", queue="path"),
        new_job(idempotency_key=b"i", queue="path"),
        new_job(delay=MINUTE),
    ]
    async with PostgresDriver.from_url(url) as driver:
        with psycopg.connect(url, options=f"-c search_path={path.replace(' ', '')}") as connection:
            assert len(driver.enqueue_blocking(jobs, tx=connection)) == 3
        connection = await asyncpg.connect(url, server_settings={"search_path": path})
        async with connection.transaction():
            again = await driver.enqueue_in(jobs, tx=connection)
            assert [answer.result.value for answer in again] == ["duplicate"] * 3
        await connection.close()


async def test_a_handlers_transaction_has_the_names_of_its_role_and_our_ack_has_ours(
    server: PostgresServer,
) -> None:
    async with PostgresDriver.from_url(url_of(server, "harbor_work", "shop")) as driver:
        await driver.enqueue([new_job(queue="tx") for _ in range(2)])
        for _ in range(2):  # the second one gets the connection that the first one spoiled
            [job] = (await driver.reserve(claim(queues=("tx",)))).jobs
            async with driver.transaction(job.lease) as connection:
                path = await connection.fetchval("select pg_catalog.current_setting('search_path')")
                await connection.execute("set search_path = public")
            assert path == '"$user", public'
        await every_verb(driver)


async def test_locks_are_the_same_whatever_the_search_path_of_the_caller(server: PostgresServer) -> None:
    ids = set()
    for path in ("public", "''", "pg_catalog", "taskharbor"):
        with psycopg.connect(
            url_of(server, "harbor_work", "shop"), options=f"-c search_path={path}"
        ) as connection:
            ids.add(connection.execute("select taskharbor.lock_id('key', 'q', 'k')").fetchone())

    assert len(ids) == 1
    assert ids != {(None,)}


async def test_every_function_of_ours_has_fixed_names_and_none_is_everybodys(server: PostgresServer) -> None:
    with psycopg.connect(url_of(server, "postgres", "shop")) as connection:
        loose = connection.execute(
            "select proname from pg_proc where pronamespace = 'taskharbor'::regnamespace and prosqlbody is null"
            " and not coalesce(proconfig, '{}')::text like '%search_path=taskharbor, pg_temp%'"
        ).fetchall()
        everybodys = connection.execute(
            "select proname from pg_proc where pronamespace = 'taskharbor'::regnamespace"
            " and has_function_privilege('stranger', oid, 'execute')"
        ).fetchall()

    assert (loose, everybodys) == ([], [])


# ------------------------------------------------------------------ what each role may not do


async def test_a_role_that_may_only_enqueue_can_enqueue_in_every_way(server: PostgresServer) -> None:
    async with PostgresDriver.from_url(url_of(server, "harbor_enqueue", "shop")) as driver:
        await driver.enqueue(new_jobs(1))
        await driver.enqueue(new_jobs(20))
        await driver.enqueue([new_job(key=b"only"), new_job(delay=MINUTE), new_job(idempotency_key=b"only")])
        await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))
        await asyncio.to_thread(driver.enqueue_blocking, new_jobs(2))


async def test_a_role_that_may_only_enqueue_can_do_nothing_else(server: PostgresServer) -> None:
    url = url_of(server, "harbor_enqueue", "shop")
    async with PostgresDriver.from_url(url) as driver:
        for verb in (
            driver.reserve(claim()),
            driver.find(Query()),
            driver.count(),
            driver.cancel([new_job().id]),
            driver.prune(),
            driver.configure_queue(QueueSettings(queue=QUEUE, paused=True)),
        ):
            with pytest.raises(StoreRefused, match="permission denied"):
                await verb
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select payload from taskharbor.job")


async def test_a_worker_cannot_change_the_schema(server: PostgresServer) -> None:
    with (
        psycopg.connect(url_of(server, "harbor_work", "shop")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("alter table taskharbor.job add column x integer")
    with (
        psycopg.connect(url_of(server, "harbor_work", "shop")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("delete from taskharbor.migration")
