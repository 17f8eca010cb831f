"""A workflow and a durable handler from beginning to end, on every store that has workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, JobContext, JobState
from taskharbor.testing.servers import fresh_cluster_url, fresh_postgres_url, fresh_redis_url

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "cluster": lambda _: fresh_cluster_url(),
}


@pytest.fixture(params=STORES)
def harbor(request: pytest.FixtureRequest, tmp_path: Path) -> Harbor:
    made = Harbor(STORES[request.param](tmp_path))
    assert made.driver.capabilities.workflows
    return made


async def worked(harbor: Harbor) -> None:
    await asyncio.wait_for(harbor.worker(concurrency=8, scheduler=False).arun(until_idle=True), 60)


async def test_an_order_with_an_approval_a_map_and_a_durable_handler(harbor: Harbor) -> None:
    ran: list[str] = []

    @harbor.task(max_attempts=1)
    async def pay(order: int) -> str:
        if order < 0:
            raise ValueError("card declined")
        return f"receipt-{order}"

    @harbor.task
    async def weigh(item: int) -> int:
        return 2 * item

    @harbor.task
    async def ship(receipt: str, weights: list[int], approval: dict[str, str]) -> str:
        return f"{receipt} {sum(weights)} {approval['by']}"

    @harbor.task
    async def items(order: int) -> list[int]:
        return [1, 2, 3]

    @harbor.task
    async def refund(order: int) -> None:
        ran.append(f"refund {order}")

    def five() -> int:
        ran.append("step")
        return 5

    @harbor.task
    async def audit(ctx: JobContext, order: int) -> int:
        first = await ctx.astep("first", five)
        weights = await ctx.agather([weigh.call(n) for n in (1, 2)])
        many = await ctx.amap(weigh, range(30))
        answer: int = await ctx.aevent("more", int, timeout="1h")
        total: int = first + sum(weights) + sum([one async for one in many.aresults()]) + answer
        return total

    def flow_of(order: int) -> Any:
        flow = harbor.workflow("order", deadline="1h")
        paid = flow.add(pay.call(order))
        listed = flow.add(items.call(order), after=[paid])
        weights = flow.map(weigh, over=listed.out)
        approval = flow.event("approval", after=[paid], timeout="1h")
        flow.add(ship.call(paid.out, weights.out, approval.out))
        flow.on_failure(refund.call(order))
        return flow

    async with harbor:
        good, bad = await flow_of(1).aenqueue(), await flow_of(-1).aenqueue()
        durable = await audit.aenqueue(1)
        await good.asend("approval", {"by": "Ada"})
        await worked(harbor)
        await durable.asend("more", 100)
        await worked(harbor)

        assert await good.aresult(timeout=30) == "receipt-1 12 Ada"
        assert (await bad.arefresh()).state is JobState.FAILED
        assert await durable.aresult(timeout=30) == 5 + 6 + 2 * sum(range(30)) + 100
        assert sorted(ran) == ["refund -1", "step"]
