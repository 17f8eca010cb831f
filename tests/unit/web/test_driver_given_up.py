"""A server reports to the caller of a claim or a sweep which jobs were given up by it."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers import wire
from taskharbor.drivers.messages import given_up_in
from taskharbor.testing.conformance.kit import LEASE, START, claim, new_jobs
from taskharbor.web.app import App, create_app
from taskharbor.web.config import ServerConfig
from tests.unit.web.in_process import answered

END = START + LEASE


@pytest.fixture
async def app() -> Any:
    config = ServerConfig(accepts_now=True, scheduler=False)
    app = create_app(Harbor("memory://"), config, local_callers_are_admin=True)
    async with app.running():
        yield app


async def stalled(app: App, queue: str, count: int) -> list[str]:
    """Jobs whose only lease is over at END; their ids."""
    driver = await app.service.driver()
    await driver.enqueue(new_jobs(count, queue=queue, max_stalls=1), now=START)
    return [job.id for job in (await driver.reserve(claim(queues=(queue,), limit=count), now=START)).jobs]


async def answer(app: App, verb: str, **arguments: Any) -> Any:
    sent = await answered(app, verb, wire.encode({**arguments, "now": END}))
    assert sent[0]["status"] == 200, sent
    return wire.read_answer(verb, sent[1]["body"])


async def test_each_claim_reports_what_it_gave_up_and_the_sweep_the_rest(app: App) -> None:
    mine, others, rest = [await stalled(app, queue, 2) for queue in ("mine", "others", "rest")]

    first = await answer(app, "reserve", claim=claim(queues=("mine",)))
    again = await answer(app, "reserve", claim=claim(queues=("mine",)))
    second = await answer(app, "exchange", settlements=[], claim=claim(queues=("others",)))
    swept = given_up_in(await answer(app, "reclaim"))

    assert [(one.id, one.queue, one.stalls) for one in first.given_up] == [(id_, "mine", 1) for id_ in mine]
    assert again.given_up == ()
    assert [one.id for one in second.given_up] == others
    assert [one.id for one in swept] == rest


async def test_a_claim_in_portions_reports_what_every_portion_gave_up(app: App) -> None:
    ids = await stalled(app, "mine", 150)  # a claim reclaims 100 at a time
    driver = await app.service.driver()
    await driver.enqueue(new_jobs(40, queue="mine"), now=END)

    claimed = await answer(app, "reserve", claim=claim(queues=("mine",), limit=40))

    assert len(claimed.jobs) == 40
    assert [one.id for one in claimed.given_up] == ids
