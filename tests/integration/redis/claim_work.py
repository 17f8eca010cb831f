"""What one claim makes the servers do: every command, those of its scripts too, and every key it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from taskharbor.drivers.contract import Driver
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
