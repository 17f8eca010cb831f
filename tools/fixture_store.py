"""The store of a release, kept for good: later releases must open it, bring it up and run its jobs.

    python tools/fixture_store.py        writes tests/fixtures/VERSION/jobs.db and jobs.sql

Run it once, when a release is cut, and never again for that version: a fixture that is written again shows
what the new code writes, not what users have. The program below is what the test expects to find. Copy src
and tools to a folder in /tmp and run it there: a traceback in the store names the file.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from taskharbor import Harbor, RateLimit, Retention, Task, __version__
from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import Claim
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.servers.postgres import PostgresServer, postgres_binaries

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
SCHEMA = "taskharbor"
LATER = datetime(2036, 1, 1, tzinfo=UTC)  # the farthest that is allowed is ten years


def program(url: str) -> tuple[Harbor, Task[[str], str], Task[[str], None]]:
    """The harbor and the tasks that the jobs of a fixture are for."""
    harbor = Harbor(url)

    @harbor.task(queue="mail", max_attempts=3)
    def send(to: str) -> str:
        return f"sent to {to}"

    @harbor.task(queue="mail", max_attempts=1)
    def broken(why: str) -> None:
        raise ValueError(why)

    harbor.cron("0 3 * * *", call=send.call("nightly@example.com"), name="nightly")
    return harbor, send, broken


async def fill(url: str) -> None:
    """A job in every state, one of each with a key, an idempotency key and headers, rules and a schedule."""
    harbor, send, broken = program(url)
    mail = harbor.queue("mail")
    async with harbor:
        await mail.aconfigure(
            max_running=50,
            execute_rate=RateLimit(1000, timedelta(minutes=1)),
            retention=Retention(completed=None, failed=None, cancelled=None),
        )
        await send.using(headers={"trace": "abc"}).aenqueue("done@example.com")
        await broken.aenqueue("the letter box is full")
        await harbor.worker().arun(until_idle=True)
        await harbor.schedules.aput("nightly", send.call("nightly@example.com"), cron="0 3 * * *")
        await send.using(key="customer/7").aenqueue("running@example.com")
        async with connect(url) as driver:
            await driver.reserve(Claim(queues=("mail",), worker_id="lost", lease_for=timedelta(seconds=5)))
        await send.using(key="customer/7").aenqueue("blocked@example.com")
        cancelled = await send.aenqueue("cancelled@example.com")
        await cancelled.acancel()
        await send.using(run_at=LATER, idempotency_key="order/1").aenqueue("later@example.com")
        await send.using(priority=5).aenqueue("ready@example.com")


def main() -> int:
    folder = FIXTURES / __version__
    if folder.exists():
        raise SystemExit(f"{folder.relative_to(ROOT)} is kept as it is")
    folder.mkdir(parents=True)
    asyncio.run(fill(f"sqlite:///{folder}/jobs.db"))
    for left in folder.glob("jobs.db-*"):
        left.unlink()
    shutil.rmtree(folder / "jobs.db.wake", ignore_errors=True)
    with PostgresServer() as server:
        url = f"{server.url}?schema={SCHEMA}"
        asyncio.run(_migrated(url))
        asyncio.run(fill(url))
        (folder / "jobs.sql").write_text(dump(server.url), "utf-8")
    return 0


async def _migrated(url: str) -> None:
    driver = await PostgresDriver.from_url(url).open_unmigrated()
    await driver.migrate()
    await driver.close()


def dump(url: str) -> str:
    """The schema and its rows as statements that any client can send."""
    words = [str(postgres_binaries() / "pg_dump"), "--no-owner", "--no-privileges", "--inserts"]
    text = subprocess.run(
        [*words, f"--schema={SCHEMA}", url], check=True, capture_output=True, text=True
    ).stdout
    # Commands of psql, and a setting that older servers do not know.
    return re.sub(r"^(?:\\|SET transaction_timeout).*\n", "", text, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
