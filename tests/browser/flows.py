"""A store with workflows: open, failed, completed, with a large family, and waiting for a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from taskharbor.client.client import Client
from taskharbor.client.groups import Group
from taskharbor.client.workflow import NodeOptions, Workflow
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.harbor import Harbor
from taskharbor.model.clock import SystemClock
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import WorkerReport
from taskharbor.model.settlement import Ack, Fail, Park
from taskharbor.model.workflow import WAIT_TYPE
from taskharbor.tasks.request import Call
from taskharbor.testing import SimulatedClock

ERROR = "TimeoutError: the printer does not answer"
_S = timedelta(seconds=1)


class Hands:
    """Enqueues workflows and runs their jobs at the instants of a clock that is moved by hand."""

    def __init__(self, driver: Driver, now: datetime) -> None:
        self.driver = driver
        self.clock = SimulatedClock(now)
        self.client = Client(driver, clock=self.clock)

    def flow(self, name: str, queue: str) -> Workflow[Any]:
        return Workflow(self.client, name, options=NodeOptions(queue=queue))

    async def take(self, queue: str, worker: str = "web-1") -> list[JobRecord]:
        claim = Claim(queues=(queue,), worker_id=worker, lease_for=3600 * _S, limit=100)
        return (await self.driver.reserve(claim, now=self.clock.now())).jobs

    async def run(self, queue: str, *, fails: tuple[str, ...] = (), seconds: float = 1.0) -> None:
        """Run what is ready, one after the other; what waits for an event goes on waiting."""
        for job in await self.take(queue):
            if job.type == WAIT_TYPE:
                await self._settle(Park(job.lease, delay=86400 * _S))
                continue
            self.clock.advance(seconds)
            await self._settle(Fail(job.lease, ERROR) if job.type in fails else Ack(job.lease, b"1"))

    async def _settle(self, end: Any) -> None:
        await self.driver.settle([end], now=self.clock.now())


def call(type: str, **payload: Any) -> Call[Any]:
    return Call(type=type, payload=payload)


def order(hands: Hands, queue: str, number: int) -> Workflow[Any]:
    flow = hands.flow("order", queue)
    charge = flow.add(call("charge_card", order=number), name="charge")
    pack = flow.add(call("pack_box", order=number), name="pack", after=[charge])
    label = flow.add(call("print_label", order=number), name="label", after=[charge], optional=True)
    approval = flow.event("approval", after=[charge], timeout="3d")
    flow.add(call("ship_box", order=number), name="ship", after=[pack, label, approval])
    flow.on_failure(call("refund", order=number), name="refund")
    flow.always(call("write_invoice", order=number), name="invoice")
    return flow


async def fill(url: str, now: datetime | None = None) -> dict[str, str]:
    """Fill the store; the ids of the workflows by name."""
    harbor = Harbor(url)
    try:
        driver = await harbor.client.adriver()
        hands = Hands(driver, (now or SystemClock().now()) - timedelta(minutes=5))
        ids = {
            "completed": await _completed(hands),
            "failed": await _failed(hands),
            "group": await _group(hands),
            "order": await _open(hands),
        }
        for name in ("web-1", "web-2"):
            report = WorkerReport(worker_id=name, name=name, concurrency=8, host="node-1", pid=7)
            await driver.report_worker(report, ttl=3600 * _S)
        return ids
    finally:
        await harbor.aclose()


async def _completed(hands: Hands) -> str:
    flow = hands.flow("import_feed", "feeds")
    fetched = flow.add(call("fetch"))
    flow.add(call("store"), after=[flow.add(call("parse"), after=[fetched])])
    handle = await flow.aenqueue()
    for _ in range(3):
        await hands.run("feeds", seconds=4)
    return handle.id


async def _failed(hands: Hands) -> str:
    handle = await order(hands, "returns", 41).aenqueue()
    await hands.run("returns", fails=("charge_card",), seconds=3)
    for _ in range(3):
        await hands.run("returns")
    return handle.id


async def _group(hands: Hands) -> str:
    group = Group[Any](
        hands.client,
        "newsletter",
        [call("send_mail", user=number) for number in range(60)],
        then=call("report"),
        on_failure=call("alert"),
        options=NodeOptions(queue="mail"),
    )
    handle = await group.aenqueue()
    claim = Claim(queues=("mail",), worker_id="web-2", limit=37, lease_for=3600 * _S)
    jobs = (await hands.driver.reserve(claim, now=hands.clock.now())).jobs
    ends = [Fail(job.lease, ERROR) if number < 2 else Ack(job.lease) for number, job in enumerate(jobs)]
    await hands.driver.settle(ends[:33], now=hands.clock.now())
    return handle.id


async def _open(hands: Hands) -> str:
    handle = await order(hands, "orders", 42).aenqueue()
    hands.clock.advance(1)
    await hands.run("orders", seconds=40)
    hands.clock.advance(2)
    for job in await hands.take("orders"):
        if job.type == WAIT_TYPE:
            await hands.driver.settle([Park(job.lease, delay=86400 * _S)], now=hands.clock.now())
        elif job.type == "print_label":
            hands.clock.advance(30)
            await hands.driver.settle([Fail(job.lease, ERROR)], now=hands.clock.now())
    return handle.id
