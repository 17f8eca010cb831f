"""Speculative copies, as far as this store does something of its own about them."""

from datetime import timedelta

from taskharbor.drivers.messages import Speculated
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.settlement import Retry
from taskharbor.testing.conformance.kit import START, claim, new_job


async def test_a_second_copy_in_the_same_millisecond_is_another_job(driver: PostgresDriver) -> None:
    """The first one, of the run before, has ended, and its record is still there."""
    [original] = await driver.enqueue([new_job()], now=START)
    [run] = (await driver.reserve(claim(worker_id="worker-a"), now=START)).jobs
    first = await driver.speculate(original.id, now=START)
    assert isinstance(first, Speculated)
    await driver.settle([Retry(run.lease, reason="no luck", delay=timedelta(0))], now=START)
    await driver.reserve(claim(worker_id="worker-a"), now=START)

    second = await driver.speculate(original.id, now=START)

    assert isinstance(second, Speculated)
    assert second.copy_id != first.copy_id
    [again] = (await driver.reserve(claim(worker_id="worker-c"), now=START)).jobs
    assert (again.id, again.speculates_on) == (second.copy_id, original.id)
