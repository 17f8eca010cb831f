"""What a handler may ask: a parameter annotated JobContext is filled in by the worker."""

import asyncio

from taskharbor import Harbor, JobContext
from taskharbor.errors import JobFailed

harbor = Harbor("sqlite:///context.db")


@harbor.task(timeout="1m")
async def count_to(ctx: JobContext, number: int) -> str:
    for n in range(number):
        ctx.progress(n / number, f"at {n}")
        await ctx.clock.sleep(0.01)
    return f"counted in attempt {ctx.attempt}"


async def main() -> None:
    async with harbor:
        short, long = await count_to.aenqueue(3), await count_to.aenqueue(1_000_000)
        worker = harbor.worker()
        working = asyncio.create_task(worker.arun())
        print(await short.aresult(timeout="10s"))
        print((await long.acancel()).result)
        try:
            await long.aresult(timeout="10s")
        except JobFailed as error:
            print(error.state)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
#   counted in attempt 1
#   requested
#   cancelled
