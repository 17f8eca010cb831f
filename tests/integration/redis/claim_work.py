"""What one claim makes the servers do: every command, those of its scripts too, and every key it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import enqueue_one, new_job, reserve

BESIDE = ("info", "ping", "hello", "client", "select", "cluster", "replconf")  # ours, and of the connections


async def work_of_a_claim(driver: Driver, nodes: Sequence[Any], *, others: int) -> Counter[str]:
    """The work of a claim for one type behind so many more urgent jobs of ten other types."""
    for _ in range(0, others, 1000):
        jobs = [new_job(type=f"kit.other{number % 10}", priority=number % 3) for number in range(1000)]
        await driver.enqueue(jobs)
    wanted = [await enqueue_one(driver, type="kit.wanted", now=None) for _ in range(3)]
    await reserve(driver, types=("kit.wanted",), now=None)  # its scripts and connections are there now
    before = _done(nodes)

    [job] = await reserve(driver, types=("kit.wanted",), now=None)

    after = _done(nodes)
    assert job.id == wanted[1].id
    assert [one.id for one in await reserve(driver, types=("kit.wanted",), now=None)] == [wanted[2].id]
    return after - before


async def work_of_queues(driver: Driver, nodes: Sequence[Any], *, queues: int) -> list[Counter[str]]:
    """The work of two claims of so many queues: with a job in one of them, and with none."""
    names = [f"kit-{number}" for number in range(queues)]
    works = []
    for _ in range(2):  # the first one looks at all of them, the second loads a script
        await reserve(driver, queues=names, now=None)
    for jobs in ("one", "none"):
        if jobs == "one":
            await enqueue_one(driver, queue="kit-7", now=None)
        before = _done(nodes)
        taken = await reserve(driver, queues=names, limit=2, now=None)
        works.append(_done(nodes) - before)
        assert len(taken) == (jobs == "one")
        await driver.settle([Ack(job.lease) for job in taken])
    return works


def _done(nodes: Sequence[Any]) -> Counter[str]:
    done: Counter[str] = Counter()
    for node in nodes:
        for name, figures in node.info("commandstats").items():
            command = name.removeprefix("cmdstat_")
            if not command.startswith(BESIDE):
                done[command] += figures["calls"]
        stats = node.info("stats")
        done["keys"] += stats["keyspace_hits"] + stats["keyspace_misses"]
    return done
