"""A worker that is killed: `python -m tests.integration.completion.process URL POINT`.

Its handler writes a row in ctx.transaction(). It kills its own process at the named point; `never` leaves
that to others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

from taskharbor.drivers import connect
from taskharbor.worker import Worker
from tests.integration.completion import ledger

POINTS = ("before", "begun", "written", "acked", "committed")


async def main(url: str, point: str) -> None:
    def die(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def handler(ctx, job):
        die("before")
        async with ctx.transaction() as connection:
            die("begun")
            await ledger.write(connection, job.id, url)
            die("written")
            if point == "acked":
                dies_at_commit()
        die("committed")

    async with connect(url) as driver:
        worker = Worker(driver, lease=timedelta(seconds=1), concurrency=3)
        worker.register("work", handler)
        await worker.arun()


def dies_at_commit() -> None:
    """The ack is in the transaction, the commit is next: from here on neither store gets that far."""
    import asyncpg.transaction

    from taskharbor.drivers.sqlite import ack_transaction

    def kill(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ack_transaction.translated = kill  # type: ignore[assignment,attr-defined]
    asyncpg.transaction.Transaction.commit = kill


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
