"""anyio on asyncio: handlers with its task groups, threads and time limits, and programs that it runs."""

from __future__ import annotations

import anyio
import anyio.from_thread
import anyio.to_thread
import structlog

from taskharbor import Harbor, JobContext


def test_a_program_of_anyio_enqueues_and_works() -> None:
    seen: list[str] = []

    async def main() -> list[str]:
        async with Harbor("memory://") as harbor:

            @harbor.task
            async def gather(names: list[str]) -> int:
                async with anyio.create_task_group() as group:
                    for name in names:
                        group.start_soon(note, name)
                with anyio.fail_after(30):
                    return await anyio.to_thread.run_sync(len, names)

            @harbor.task
            def from_thread(ctx: JobContext) -> str:
                return ctx.job.type

            async def note(name: str) -> None:
                await anyio.lowlevel.checkpoint()
                seen.append(name)

            async with anyio.create_task_group() as group:
                worker = harbor.worker(scheduler=False)
                group.start_soon(worker.arun)
                gathered, threaded = await gather.aenqueue(["a", "b"]), await from_thread.aenqueue()
                results = [str(await gathered.aresult(timeout="30s")), await threaded.aresult(timeout="30s")]
                worker.stop()
            return results

    assert anyio.run(main) == ["2", "from_thread"]
    assert sorted(seen) == ["a", "b"]


def test_a_time_limit_of_the_job_ends_a_task_group() -> None:
    ended: list[str] = []

    async def main() -> str | None:
        async with Harbor("memory://") as harbor:

            @harbor.task(timeout="0.1s", max_attempts=1)
            async def hang() -> None:
                async with anyio.create_task_group() as group:
                    group.start_soon(forever)
                    await anyio.sleep_forever()

            async def forever() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.append("child")

            job = await hang.aenqueue()
            await harbor.worker(scheduler=False).arun(until_idle=True)
            return (await job.arefresh()).record.failure_kind

    assert anyio.run(main) == "timeout"
    assert ended == ["child"]


def test_an_error_group_is_an_error_with_all_its_parts() -> None:
    async def main() -> tuple[int, str]:
        async with Harbor("memory://") as harbor:

            @harbor.task(max_attempts=1)
            async def both() -> None:
                async with anyio.create_task_group() as group:
                    group.start_soon(fail, "one")
                    group.start_soon(fail, "two")

            async def fail(name: str) -> None:
                raise ValueError(name)

            job = await both.aenqueue()
            await harbor.worker(scheduler=False).arun(until_idle=True)
            record = (await job.arefresh()).record
            return record.attempts, record.history[-1].error or ""

    attempts, trace = anyio.run(main)
    assert attempts == 1
    assert "ValueError: one" in trace
    assert "ValueError: two" in trace


def test_threads_of_anyio_know_the_job_in_structlog_too() -> None:
    """They copy the context of the handler."""
    seen: list[str] = []

    async def main() -> str:
        async with Harbor("memory://") as harbor:

            @harbor.task
            async def handler() -> None:
                def in_thread() -> None:
                    seen.append(structlog.contextvars.get_contextvars()["taskharbor_job_id"])
                    anyio.from_thread.run(in_loop)

                await anyio.to_thread.run_sync(in_thread)

            async def in_loop() -> None:
                seen.append(structlog.contextvars.get_contextvars()["taskharbor_job_id"])

            job = await handler.aenqueue()
            await harbor.worker(scheduler=False).arun(until_idle=True)
            return job.id

    job_id = anyio.run(main)
    assert seen == [job_id, job_id]
