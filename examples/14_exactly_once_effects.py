"""A handler's own writes and the end of its job in one commit: the effect happens exactly once."""

import sqlite3
from contextlib import closing
from datetime import timedelta

from taskharbor import Harbor, JobContext, RetryPolicy

harbor = Harbor("sqlite:///bank.db", retry=RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0))


@harbor.task(max_attempts=3)
async def pay(ctx: JobContext, name: str, amount: int) -> None:
    async with ctx.transaction() as connection:
        connection.execute("insert into payments values (?, ?)", (name, amount))
        if ctx.attempt == 1:
            raise ConnectionError("the bank did not answer")  # the payment above never was
    print(f"paid {name} in attempt {ctx.attempt}")


if __name__ == "__main__":
    harbor.open()
    with closing(sqlite3.connect("bank.db")) as bank:
        bank.execute("drop table if exists payments")  # left by an earlier run
        bank.execute("create table payments (name text, amount integer)")
        job = pay.enqueue("Ada", 7)
        while not job.refresh().state.is_terminal:
            harbor.worker().run(until_idle=True)
        print(bank.execute("select * from payments").fetchall())

# Prints:
#   paid Ada in attempt 2
#   [('Ada', 7)]
