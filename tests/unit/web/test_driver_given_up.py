"""A server tells the caller of a claim which jobs were given up for it."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers import wire
from taskharbor.drivers.messages import GivenUp
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
    return [job.id for job in await driver.reserve(claim(queues=(queue,), limit=count), now=START)]


async def told(app: App, verb: str, **arguments: Any) -> list[GivenUp] | None:
    """What the answer to a call says beside its body."""
    sent = await answered(app, verb, wire.encode({**arguments, "now": END}))
    assert sent[0]["status"] == 200, sent
    header = dict(sent[0]["headers"]).get(wire.GIVEN_UP_HEADER.lower().encode())
    return None if header is None else wire.read_given_up(header.decode())


async def test_a_claim_hears_of_its_own_queues_and_a_sweep_of_the_rest(app: App) -> None:
    mine, others = await stalled(app, "mine", 2), await stalled(app, "others", 2)
    await (await app.service.driver()).reclaim(now=END)  # somebody else's call, whose answer is still to come

    first = await told(app, "reserve", claim=claim(queues=("mine",)))
    again = await told(app, "exchange", settlements=[], claim=claim(queues=("mine",)))
    rest = await told(app, "reclaim")

    assert [job.id for job in first or ()] == mine
    assert again is None
    assert [job.id for job in rest or ()] == others


async def test_an_answer_tells_so_many_that_every_proxy_lets_it_pass(app: App) -> None:
    ids = await stalled(app, "q" * 128, wire.MOST_GIVEN_UP + 3)

    pages = [await told(app, "reserve", claim=claim(queues=("q" * 128,))) or [] for _ in range(3)]

    assert [len(page) for page in pages] == [wire.MOST_GIVEN_UP, 3, 0]
    assert [job.id for page in pages for job in page] == ids
    longest = [GivenUp("0" * 36, "q" * 128, "t" * 128, 10**9)] * wire.MOST_GIVEN_UP
    assert len(wire.encode(longest)) < 3000


async def test_other_verbs_take_nothing_from_those_who_claim(app: App) -> None:
    ids = await stalled(app, "mine", 1)
    await (await app.service.driver()).reclaim(now=END)

    assert await told(app, "count") is None
    assert [job.id for job in await told(app, "reserve", claim=claim(queues=("mine",))) or ()] == ids


@pytest.mark.parametrize("header", ["", "[", "[[1]]", "{}", "\udc80", '[["a","q","t",1,"added later"]]'])
def test_a_header_that_cannot_be_read_costs_nobody_the_answer(header: str) -> None:
    assert wire.read_given_up(header) in ([], [GivenUp("a", "q", "t", 1)])
