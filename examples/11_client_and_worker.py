"""Without a harbor: a driver, a client and a worker, and handlers that read their payload themselves."""

import asyncio
from datetime import timedelta

from taskharbor import Client, Job, JobContext, JobRequest, JsonCodec, Worker
from taskharbor.drivers import connect
from taskharbor.middleware import CallNext


async def send_email(ctx: JobContext, job: Job) -> str:
    payload = JsonCodec().decode(job.payload)
    print(f"to {payload['to']}")
    return "sent"


async def loudly(ctx: JobContext, job: Job, call_next: CallNext) -> object:
    print(f"before {job.type}")
    try:
        return await call_next(ctx, job)
    finally:
        print(f"after {job.type}")


async def main() -> None:
    async with connect("memory://") as driver:
        client = Client(driver, default_queue="mail")
        job = await client.aenqueue(JobRequest(type="email.send", payload={"to": "a@b.c"}, max_attempts=5))

        worker = Worker(driver, queues=["mail"], concurrency=4, lease=timedelta(seconds=30))
        worker.register("email.send", send_email)
        worker.use(loudly)
        await worker.arun(until_idle=True)
        print(await job.aresult())


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
#   before email.send
#   to a@b.c
#   after email.send
#   sent
