"""TaskHarbor as one of the queues of flow_peers.py: a group with `then`, a chain, graphs, steps."""

import asyncio

from flow_base import BEFORE, CHILD_SECONDS, URL, exec_worker, line_of, main

from taskharbor import Harbor, JobContext

SETTINGS = "worker -c 100, defaults else: leases, heartbeats, results kept"
harbor = Harbor(URL)


@harbor.task(name="child")
async def child(run: int, number: int) -> dict[str, int]:
    if CHILD_SECONDS:
        await asyncio.sleep(CHILD_SECONDS)
    line_of(run, f"child {number}")
    return {"number": number}


@harbor.task(name="callback")
async def callback(run: int) -> None:
    line_of(run, "callback")


@harbor.task(name="link")
async def link(before: list[int]) -> list[int]:
    run, number = before
    line_of(run, f"child {number}")
    return [run, number + 1]


@harbor.task(name="last")
async def last(before: list[int]) -> None:
    line_of(before[0], "callback")


def group(run: int, children: int) -> None:
    harbor.group([child.call(run, number) for number in range(children)], then=callback.call(run)).enqueue()


def links(run: int, count: int) -> None:
    harbor.chain(link.call([run, 0]), *(link for _ in range(count - 1)), last).enqueue()


@harbor.task(name="node")
async def node(run: int, number: int) -> None:
    line_of(run, f"child {number}")


@harbor.task(name="steps")
async def of_steps(ctx: JobContext, run: int, count: int) -> None:
    for number in range(count):
        await ctx.astep(f"step {number}", line_of, run, f"child {number}")
    await ctx.astep("callback", line_of, run, "callback")


def graphs(run: int, count: int) -> None:
    for first in range(0, 9 * count, 9):
        flow, made = harbor.workflow("graph"), []
        for number, before in enumerate(BEFORE):
            made.append(flow.add(node.call(run, first + number), after=[made[one] for one in before]))
        flow.add(callback.call(run), after=made[-2:])
        flow.enqueue()


def steps(run: int, count: int) -> None:
    of_steps.enqueue(run, count)


def worker() -> None:
    flags = ["-c", "100", "--log-level", "warning"]
    exec_worker("-m", "taskharbor", "worker", "flow_taskharbor:harbor", *flags)


if __name__ == "__main__":
    if URL.startswith("postgres"):
        from taskharbor.testing.servers.postgres import migrate_blocking

        migrate_blocking(URL)
    main(worker, group=group, chain=links, graph=graphs, steps=steps)
