"""What every kind of `taskharbor bench` shares: a queue of its own, how it goes away, and rates."""

from __future__ import annotations

from taskharbor.cli.tables import Column
from taskharbor.cli.where import Where, find_all
from taskharbor.drivers.contract import Driver
from taskharbor.model.entropy import Entropy

TYPE = "taskharbor.bench"


def own_queue(entropy: Entropy) -> str:
    """A queue that no one else uses."""
    return f"taskharbor-bench-{entropy.token()[:8]}"


async def forget_queue(driver: Driver, queue: str) -> None:
    """End what a broken-off run left, and forget everything."""
    async for jobs in find_all(driver, Where(queue=queue)):
        ids = [job.id for job in jobs]
        await driver.cancel(ids)
        await driver.delete(ids)


def per_second(count: int, seconds: float) -> float | None:
    return round(count / seconds, 1) if seconds > 0 else None


RATE = Column(
    "JOBS/S", lambda row: f"{row['jobs_per_s']:,.0f}" if row["jobs_per_s"] else None, is_number=True
)
