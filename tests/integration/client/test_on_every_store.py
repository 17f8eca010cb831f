"""The same program on every store: only the URL differs (R000-3)."""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor import Harbor, JobContext, JobFailed, RetryPolicy
from taskharbor.drivers.messages import CancelResult, EnqueueResult
from taskharbor.errors import InvalidArgument
from taskharbor.model.state import JobState
from taskharbor.testing.http_server import fresh_http_url

ROOT = Path(__file__).parents[3]
QUICK = RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0)


@pytest.fixture(params=["memory", "sqlite", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "http":
        return fresh_http_url(durable=True)
    return {"memory": f"memory://{tmp_path.name}", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}[request.param]


@pytest.fixture
def harbor(url: str) -> Iterator[Harbor]:
    with Harbor(url, retry=QUICK) as harbor:
        yield harbor


def test_a_whole_program_in_blocking_code(harbor):
    @harbor.task(queue="mail", max_attempts=3)
    def deliver(ctx: JobContext, letter: str) -> str:
        if ctx.attempt < 3:
            raise ConnectionError("the door is locked")
        return f"{letter} delivered"

    @harbor.task
    def fail() -> None:
        raise ValueError("always")

    letter = deliver.enqueue("a letter")
    failing = fail.using(max_attempts=1).enqueue()
    later = fail.using(delay="1h").enqueue()
    keyed = [deliver.using(key="box/7").enqueue(text) for text in ("one", "two")]
    once = [deliver.using(idempotency_key="order/1").enqueue("once") for _ in range(2)]
    assert later.state is JobState.SCHEDULED
    assert keyed[0].id == keyed[1].id
    assert once[1].enqueued.result is EnqueueResult.DUPLICATE
    assert later.cancel().result is CancelResult.CANCELLED

    while harbor.queue("*").counts().waiting:
        harbor.worker().run(until_idle=True)

    assert letter.result(timeout="5s") == "a letter delivered"
    assert keyed[1].result() == "two delivered"
    assert once[0].result() == "once delivered"
    with pytest.raises(JobFailed, match="ValueError: always"):
        failing.result()
    assert letter.refresh().record.attempts == 2


async def test_a_whole_program_in_async_code(url):
    async with Harbor(url) as harbor:

        @harbor.task
        async def square(n: int) -> int:
            return n * n

        jobs = await asyncio.gather(*(square.aenqueue(n) for n in range(50)))
        more = await harbor.aenqueue_many([square.call(n) for n in range(50, 60)])
        await harbor.worker().arun(until_idle=True)

        results = [await job.aresult(timeout=5) for job in [*jobs, *more]]
        assert results == [n * n for n in range(60)]
        assert (await harbor.queue("default").acounts()).completed == 60


async def test_a_result_is_awaited_while_a_worker_works(url):
    async with Harbor(url) as harbor:

        @harbor.task
        def add(a: int, b: int) -> int:
            return a + b

        worker = harbor.worker()
        working = asyncio.create_task(worker.arun())
        job = await add.aenqueue(1, 2)
        assert await job.aresult(timeout="10s") == 3
        worker.stop()
        await working


def test_blocking_and_async_code_share_a_store(url):
    with Harbor(url) as harbor:

        @harbor.task
        def task() -> str:
            return "done"

        job = task.enqueue()

        async def work() -> None:
            async with harbor:
                await harbor.worker().arun(until_idle=True)

        asyncio.run(work())
        assert job.result() == "done"


# ------------------------------------------------------------------ SQLite's own


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Harbor, sqlite3.Connection]]:
    with Harbor(f"sqlite:///{tmp_path}/shop.db") as harbor:
        connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        connection.execute("create table orders (name text)")
        yield harbor, connection
        connection.close()


@pytest.mark.parametrize(("end", "count"), [("commit", 2), ("rollback", 0)])
def test_a_job_in_the_callers_transaction_lives_and_dies_with_it(shop, end, count):
    harbor, connection = shop

    @harbor.task
    def confirm(order: str) -> None: ...

    connection.execute("begin immediate")
    connection.execute("insert into orders values ('a book')")
    confirm.using(tx=connection).enqueue("a book")
    harbor.enqueue_many([confirm.call("a boat")], tx=connection)
    connection.execute(end)

    assert harbor.queue("default").counts().ready == count
    assert connection.execute("select count(*) from orders").fetchone()[0] == count // 2


async def test_async_code_joins_a_transaction_too(tmp_path):
    async with Harbor(f"sqlite:///{tmp_path}/shop.db") as harbor:
        connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)

        @harbor.task
        def confirm(order: str) -> None: ...

        connection.execute("begin immediate")
        await confirm.using(tx=connection).aenqueue("a book")
        connection.execute("rollback")
        connection.execute("begin immediate")
        job = await confirm.using(tx=connection).aenqueue("a boat")
        connection.execute("commit")
        connection.close()

        assert [record.id for record in (await harbor.client.afind()).jobs] == [job.id]


def test_layers_surround_an_enqueue_in_a_transaction_in_the_callers_thread(shop):
    harbor, connection = shop

    @harbor.task
    def confirm(order: str) -> None: ...

    seen = []

    async def note(jobs, call_next):
        seen.append(len(jobs))
        return await call_next(jobs)

    harbor.client.use(note)
    connection.execute("begin immediate")
    confirm.using(tx=connection).enqueue("a book")
    connection.execute("commit")

    assert seen == [1]
    assert harbor.queue("default").counts().ready == 1


def test_a_transaction_of_another_kind_is_refused(shop):
    harbor, _ = shop

    @harbor.task
    def confirm(order: str) -> None: ...

    with pytest.raises(InvalidArgument, match=r"sqlite3\.Connection"):
        confirm.using(tx=object()).enqueue("a book")
    with pytest.raises(InvalidArgument, match="Django"):  # a text is the alias of one of its connections
        confirm.using(tx="a connection").enqueue("a book")


# ------------------------------------------------------------------ the program on the first page


def run(*args: str, folder: Path) -> str:
    """What a program prints; it must end well and say nothing else."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_of_the_readme_runs_as_pasted(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    [program] = re.findall(r"```python\n(# app\.py\n.*?)```", readme, re.DOTALL)
    (tmp_path / "app.py").write_text(program)
    assert len(program.splitlines()) <= 15

    job_id = run("app.py", folder=tmp_path).strip()
    run("-m", "taskharbor", "worker", "app:harbor", "--burst", folder=tmp_path)
    look = f"import app; job = app.harbor.get({job_id!r}); print(job.state, job.result())"

    assert run("-c", look, folder=tmp_path).strip() == "completed welcome, user 7"


def test_a_program_that_never_closes_its_harbor_ends_in_good_order(tmp_path):
    (tmp_path / "app.py").write_text(
        "import asyncio\n"
        "from taskharbor import Harbor\n"
        "harbor = Harbor('sqlite:///jobs.db')\n"
        "@harbor.task\n"
        "def task() -> None: ...\n"
        "task.enqueue()\n"
        "asyncio.run(task.aenqueue())\n"
        "print(harbor.queue('default').counts().ready)\n"
    )

    assert run("app.py", folder=tmp_path) == "2\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_puts_jobs_in_like_its_parent(tmp_path):
    (tmp_path / "app.py").write_text(
        "import os\n"
        "from taskharbor import Harbor\n"
        "harbor = Harbor('sqlite:///jobs.db')\n"
        "@harbor.task\n"
        "def task() -> None: ...\n"
        "task.enqueue()\n"
        "child = os.fork()\n"
        "task.enqueue()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "    print(harbor.queue('default').counts().ready)\n"
        "else:\n"
        "    harbor.close()\n"
        "    os._exit(0)\n"
    )

    assert run("app.py", folder=tmp_path) == "3\n"
