"""Networks that are slow, deaf, mute, cut, or cut after the store has acted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult
from taskharbor.errors import DriverError
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.state import JobState
from tests.chaos import app
from tests.chaos.case import NETWORKED, case
from tests.chaos.cases_processes import drain
from tests.chaos.proxy import Cut
from tests.chaos.world import World

BACK_AT_WORK_SECONDS = 5.0
HALF_OPEN_SECONDS = 15.0


async def no_stalls(world: World) -> None:
    stalled = [record.id for record in (await world.records()).values() if record and record.stalls]
    assert not stalled, f"{len(stalled)} leases were lost"


async def works_again(world: World, since: float, what: str, most: float = BACK_AT_WORK_SECONDS) -> None:
    """The workers that go through the proxy do a new job, soon after the fault was over."""
    [job_id] = await world.put(world.request())
    await world.line("end", job_id)
    world.recovered(what, since, most)


@case("C30", "latency of 500 ms ± 400 ms on every message", stores=NETWORKED)
async def slow_network(world: World) -> None:
    """Everything gets slower; nobody loses a lease of 5 s, which outlasts ten round trips."""
    world.worker("-c", "8", through=True, lease=5.0)
    await world.workers_at_work(1)
    world.inject("latency 500 ms ± 400 ms")
    world.network.delay = lambda: world.chance.uniform(0.05, 0.45)  # per leg: there and back
    for _ in range(0, min(world.size.jobs, 300), 20):
        await world.put(*(world.request(seconds=world.chance.uniform(0, 1)) for _ in range(20)))
    await world.drained(180)
    world.network.heal()
    await no_stalls(world)


@case("C67", "leases of ten round trips, on limited queues", stores=NETWORKED)
async def short_leases_under_limits(world: World) -> None:
    """Claims wait for room, for each other and for the line; no heartbeat waits behind them."""
    for queue, most in ((app.harbor.default_queue, 6), (EVERY_QUEUE, 8)):
        await world.driver.configure_queue(QueueSettings(queue=queue, max_running=most))
    for _ in range(3):
        world.worker("-c", "4", through=True, lease=2.0)
    await world.workers_at_work(3)
    world.inject("latency 200 ms ± 40 ms")
    world.network.delay = lambda: world.chance.uniform(0.08, 0.12)  # per leg: there and back
    for _ in range(0, min(world.size.jobs, 300), 20):
        await world.put(*(world.some_work(longest=1.5) for _ in range(20)))
    await world.drained(240)
    world.network.heal()
    await no_stalls(world)


@case("C31", "connections reset while a handler runs", stores=NETWORKED)
async def reset_in_the_middle(world: World) -> None:
    """The heartbeat connects again; the handler never notices."""
    world.worker("-c", "4", through=True)
    await world.workers_at_work(1)
    for _ in range(world.size.injections):
        ids = await world.put(*(world.request(seconds=world.size.lease * 1.5) for _ in range(4)))
        for job_id in ids:
            await world.line("begin", job_id)
        for _ in range(4):
            world.inject(f"{world.network.reset_all()} connections reset")
            await asyncio.sleep(world.size.lease / 4)
        await world.drained(60)
    await no_stalls(world)
    assert not world.lines("stopped"), "a handler was stopped although its lease held"


@case("C32", "black hole for longer than the lease", stores=NETWORKED)
async def black_hole(world: World) -> None:
    """The handler is stopped before its lease is over, by the worker's own clock."""
    worker = world.worker("-c", "2", through=True)
    [job_id] = await world.put(world.request(seconds=world.size.lease * 4))
    await world.line("begin", job_id)
    await asyncio.sleep(world.size.lease * 0.5)  # a heartbeat or two have been answered
    world.inject("black hole in both directions")
    world.network.swallow()
    stopped = await world.line("stopped", job_id)
    [record] = (await world.records([job_id])).values()
    assert record is not None
    assert record.lease_expires_at is not None
    early = record.lease_expires_at.timestamp() - stopped["at"]
    assert stopped["reason"] == "lease_lost"
    assert early > 0, f"the handler went on for {-early:.2f} s after its lease"
    world.facts.append(f"the handler was stopped {early:.2f} s before its lease was over")
    world.worker("-c", "2")
    await world.line("begin", job_id, 2)
    world.network.heal()
    await drain(world)
    await works_again(world, time.time(), "work after the black hole", most=20.0)
    assert worker.poll() is None


@case("C33", "one of two workers cut off for two leases, then healed", stores=NETWORKED, smoke=("postgres",))
async def partitioned(world: World) -> None:
    """Its jobs run elsewhere, its late calls are refused, and it works again."""
    cut_off = world.worker("-c", "4", "--name", "cut-off", through=True)
    other = world.worker("-c", "8", "--name", "other")
    await world.workers_at_work(2)
    await world.freeze(other)  # so that all jobs go to the one that will be cut off
    ids = await world.put(*(world.request(seconds=world.size.lease * 2) for _ in range(4)))
    for job_id in ids:
        await world.line("begin", job_id)
    world.thaw(other)
    world.inject("one worker cut off: black hole, new connections too")
    world.network.swallow()
    for job_id in ids:
        await world.line("begin", job_id, 2)
    await asyncio.sleep(world.size.lease)
    world.network.heal()
    healed = time.time()
    await world.until(
        lambda: _claimed_by(world, cut_off.pid, after=healed), "the worker that was cut off to work again"
    )
    world.recovered("work after the partition", healed, BACK_AT_WORK_SECONDS + world.size.lease)
    await drain(world)


async def _claimed_by(world: World, pid: int, after: float) -> bool:
    """Whether this worker has begun a job since; there is always one more to be had."""
    begun = [line for line in world.lines("begin") if line["pid"] == pid and line["at"] >= after]
    if not begun:
        await world.put(world.request(seconds=0.05))
        await asyncio.sleep(0.1)
    return bool(begun)


@case("C34", "replies lost after the store has acted", stores=NETWORKED, smoke=("postgres", "valkey", "http"))
async def replies_lost(world: World) -> None:
    """Enqueue: one job. Settlements: counted once. Claims: by expiry. Cancel: final."""
    rounds = int(world.size.seconds * 3.4) if world.size.is_full else 2
    world.worker("-c", "2", through=True)
    await world.workers_at_work(1)
    cuts: Counter[str] = Counter()
    async with app.recorded(world.store.url(world.network.port), "producer", world.folder) as through:
        for turn in range(rounds):
            fate = ("", "fails once")[turn % 2]
            cut = world.network.cut_after(_verb(world, "enqueue"))
            await world.put(world.request(fate=fate, seconds=0.05), driver=through)
            cuts["enqueue"] += await _sprung(world, cut)
            cut = world.network.cut_after(_verb(world, "exchange"), times=2)
            await asyncio.sleep(0.3)
            cuts["claim and settle"] += cut.done
            world.network.cuts.clear()
            if turn % 10 == 0:
                cuts["cancel"] += await _cancel_twice(world, through)
        [long] = await world.put(world.request(seconds=world.size.lease))
        await world.line("begin", long)
        cut = world.network.cut_after(_verb(world, "extend"))
        cuts["extend"] += await _sprung(world, cut)
    world.inject("; ".join(f"{count} × {name}" for name, count in cuts.items()))
    await drain(world, work_left=60.0)
    assert all(cuts[verb] for verb in ("enqueue", "claim and settle", "cancel", "extend")), cuts


def _verb(world: World, verb: str) -> str:
    """What carries this verb on the wire: a name of its own, or one for all of them."""
    return "evalsha|fcall|eval" if world.store.name == "valkey" else f"{verb}.*"


async def _sprung(world: World, cut: Cut) -> int:
    await world.until(cut.has_sprung.is_set, "a reply to be lost", 20.0)
    return cut.done


async def _cancel_twice(world: World, through: Driver) -> int:
    """The first answer is lost; the second finds it done. The job never runs."""
    [job_id] = await world.put(replace(world.request(seconds=0.01), delay=3600.0))
    cut = world.network.cut_after({"postgres": "commit"}.get(world.store.name, _verb(world, "cancel")))
    with suppress(DriverError):
        await through.cancel([job_id])
    [again] = await through.cancel([job_id])
    assert again.result in (CancelResult.ALREADY_OVER, CancelResult.CANCELLED), again
    world.cancelled.add(job_id)
    [record] = (await world.records([job_id])).values()
    assert record is not None
    assert (record.state, record.starts) == (JobState.CANCELLED, 0)
    done = cut.done
    world.network.cuts.clear()
    return done


@case("C35", "only the replies dropped, for a while", stores=NETWORKED)
async def mute(world: World) -> None:
    """No storm of tries, no job counted twice, and work goes on afterwards."""
    worker = world.worker("-c", "4", through=True)
    await world.workers_at_work(1)
    await world.put(*(world.some_work() for _ in range(20)))
    before = sum(world.network.requests.values())
    world.inject("replies dropped for 10 s")
    world.network.is_mute = True
    await asyncio.sleep(10.0)
    asked = sum(world.network.requests.values()) - before
    world.network.heal()
    healed = time.time()
    world.facts.append(f"{asked} requests in 10 s without an answer")
    assert asked <= 100 + 40, f"{asked} requests in 10 s: a storm"  # new connections ask a few times each
    await works_again(world, healed, "work after the silence", most=20.0)
    await drain(world)
    assert worker.poll() is None


@case("C37", "connections that are dead without a word", stores=NETWORKED)
async def half_open(world: World) -> None:
    """As after a fail-over of the network: nobody says goodbye, and new connections work. Noticed soon."""
    worker = world.worker("-c", "4", through=True)
    await world.workers_at_work(1)
    for _ in range(world.size.injections):
        [job_id] = await world.put(world.request(seconds=1.0))
        await world.line("begin", job_id)
        since = world.inject(f"{world.network.strand()} connections dead without a word")
        await works_again(world, since, "work after the connections died", most=HALF_OPEN_SECONDS)
        await drain(world)
    assert worker.poll() is None


@case("C38", "crumbs of one byte at 10 kB/s", stores=NETWORKED)
async def crumbs(world: World) -> None:
    world.worker("-c", "2", through=True, lease=10.0)
    await world.workers_at_work(1)
    world.inject("one byte at a time, 10,000 bytes a second")
    world.network.crumb, world.network.bytes_per_second = 1, 10_000
    await world.put(*(world.request() for _ in range(5)))
    await world.drained(120)
    world.network.heal()
    await no_stalls(world)


@case("C39", "the store is back behind the same address after a while", stores=NETWORKED)
async def unreachable_for_a_while(world: World) -> None:
    """Refused at first, then there again: workers find it by themselves."""
    worker = world.worker("-c", "4", through=True)
    await world.workers_at_work(1)
    for _ in range(world.size.injections):
        world.inject("connections reset and refused")
        world.network.refuses = True
        world.network.reset_all()
        await asyncio.sleep(world.size.lease)
        world.network.heal()
        await works_again(world, time.time(), "work after the refusals")
    await drain(world)
    assert worker.poll() is None
