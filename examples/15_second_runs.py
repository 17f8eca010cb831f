"""A run that takes far longer than usual gets a second one on another worker; the first to finish counts."""

import asyncio
import logging
from datetime import timedelta

from taskharbor import Harbor, JobContext, Speculate

logging.getLogger("taskharbor").setLevel(logging.ERROR)  # the slow run is stopped with a warning
harbor = Harbor("sqlite:///second_runs.db")
runs: list[str] = []


@harbor.task(speculate=Speculate(after=timedelta(seconds=0.5), factor=3.0))
async def resize(ctx: JobContext, path: str) -> str:
    runs.append(ctx.job.id)
    if len(runs) == 1:  # a disk that has gone to sleep, say
        await ctx.clock.sleep(3600)
    return f"small {path}, by run {len(runs)}"


async def main() -> None:
    async with harbor:
        workers = [harbor.worker(concurrency=1) for _ in range(2)]
        working = [asyncio.create_task(worker.arun()) for worker in workers]
        job = await resize.aenqueue("cat.png")
        print(await job.aresult(timeout="30s"))
        print(job.state)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
#   small cat.png, by run 2
#   completed
