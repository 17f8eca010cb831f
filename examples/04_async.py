"""The same in async code: every blocking verb has a twin whose name starts with a."""

import asyncio

from taskharbor import Harbor

harbor = Harbor("sqlite:///async.db")


@harbor.task
async def square(n: int) -> int:
    return n * n


async def main() -> None:
    async with harbor:
        # Calls that are under way at the same time share one write to the store.
        jobs = await asyncio.gather(*(square.aenqueue(n) for n in range(5)))
        await harbor.worker().arun(until_idle=True)
        print([await job.aresult(timeout="5s") for job in jobs])


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
#   [0, 1, 4, 9, 16]
