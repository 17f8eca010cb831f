"""Families in a file: the memory driver and this one give the same answers, whatever happens to them."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Page, Query
from taskharbor.errors import TaskHarborError
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob, Note
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Park
from tests.integration.sqlite.stores import driver_on, is_sound, new_job
from tests.unit.drivers.memory.test_families import SECOND, Walk, drain

STEPS = 120
WORKER = Path(__file__).with_name("group_worker.py")


class Twins:
    """Two drivers that are asked the same; it insists on equal answers, and equal errors."""

    def __init__(self, one: Any, other: Any) -> None:
        self._drivers = one, other

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        async def ask(*arguments: Any, **options: Any) -> Any:
            first, second = [await _answer(getattr(one, verb), arguments, options) for one in self._drivers]
            assert first.compared == second.compared, (verb, arguments)
            if isinstance(first.answer, TaskHarborError):
                raise first.answer
            return first.answer

        return ask


class Answer(NamedTuple):
    """An answer, or an error that was raised, and what of it must be equal."""

    answer: Any
    compared: Any


async def _answer(verb: Callable[..., Any], arguments: Any, options: Any) -> Answer:
    try:
        answer = await verb(*arguments, **options)
    except TaskHarborError as error:
        return Answer(error, repr(error))
    if isinstance(answer, Page):
        return Answer(answer, answer.jobs)  # how many were examined for them is the store's affair
    if isinstance(answer, list):
        return Answer(answer, [_comparable(one) for one in answer])
    return Answer(answer, _comparable(answer))


def _comparable(answer: Any) -> Any:
    if isinstance(answer, TaskHarborError):
        return repr(answer)
    if len(getattr(answer, "ended", ())) > 1:  # which of two families comes first is the store's affair
        return replace(answer, ended=tuple(sorted(answer.ended, key=lambda end: end.id)))
    return answer


class WiderWalk(Walk):
    """The walk of the memory driver, with the verbs that meet families from the side."""

    def __init__(self, driver: Any, seed: int) -> None:
        super().__init__(driver, seed)
        self.acts += [
            self.enqueue_plain, self.enqueue_plain, self.adopt, self.adopt, self.note, self.settle_many,
            self.settle_many, self.delete, self.prune, self.reclaim, self.speculate, self.look,
        ]  # fmt: skip

    async def check_start(self, job: Any) -> None:
        pass  # the twin has been asked already

    async def enqueue_plain(self) -> None:
        jobs = [NewJob(id=self.entropy.job_id(self.now), type="t", max_stalls=2) for _ in range(3)]
        await self.driver.enqueue(jobs, now=self.now)
        self.ids += [job.id for job in jobs]

    async def adopt(self) -> None:
        """A running job, maybe a plain one, gets a child or a follower."""
        if self.held:
            job = self.random.choice(self.held)
            parent = None if job.bonds is None else job.bonds.parent
            is_child = self.random.random() < 0.7
            bonds = Bonds(parent=job.id) if is_child else Bonds(parent=parent, after=(job.id,), when="over")
            new = NewJob(id=self.entropy.job_id(self.now), type="t", bonds=bonds)
            await self.driver.enqueue([new], by=job.lease if is_child else None, now=self.now)
            self.ids.append(new.id)

    async def note(self) -> None:
        if self.held:
            lease = self.random.choice(self.held).lease
            name = self.random.choice(["one", "two", "three"])
            await self.driver.note([Note(name, b"data", lease=lease)], now=self.now)

    async def settle_many(self) -> None:
        """In one call, as workers do: mostly successes."""
        mine, self.held = self.held, []
        ends = [Fail(job.lease, "x") if self.random.random() < 0.1 else Ack(job.lease, b"r") for job in mine]
        if mine and self.random.random() < 0.3:
            ends[0] = Park(mine[0].lease, delay=SECOND, notes=(Note("parked", b"data"),))  # type: ignore[call-overload]
        await self.driver.settle(ends, now=self.now)

    async def delete(self) -> None:
        if self.ids:
            await self.driver.delete([self.random.choice(self.ids)], now=self.now)

    async def prune(self) -> None:
        await self.driver.prune(self.random.choice([3, 1000]), now=self.now)

    async def reclaim(self) -> None:
        await self.driver.reclaim(now=self.now)

    async def speculate(self) -> None:
        if self.held:
            await self.driver.speculate(self.random.choice(self.held).id, now=self.now)

    async def look(self) -> None:
        if self.ids:
            await self.driver.get(self.ids, now=self.now)
            await self.driver.count(now=self.now)
            await self.driver.find(Query(order_by="ended", limit=1000), now=self.now)
            parent = self.random.choice(self.ids)
            await self.driver.find(Query(parent=parent, newest_first=True), now=self.now)
            await self.driver.find(Query(parent=parent, order_by="ended"), now=self.now)


MORE = pytest.mark.more("long series: each seed is another walk")


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=MORE) for seed in range(3, 15))])
async def test_a_random_walk_gives_the_answers_of_the_memory_driver(tmp_path: Path, seed: int) -> None:
    async with (
        MemoryDriver(entropy=Entropy(seed)) as model,
        driver_on(tmp_path / "x.db", seed=seed) as driver,
    ):
        twins = Twins(model, driver)
        if seed % 3:
            keep = [timedelta(0), 5 * SECOND][seed % 2]
            settings = QueueSettings(queue="*", retention=Retention(completed=keep, cancelled=keep))
            await twins.configure_queue(settings)
        walk = WiderWalk(twins, seed)
        for _ in range(STEPS):
            await walk.step()
        await walk.look()
        await drain(walk)
        await walk.look()
    assert is_sound(tmp_path / "x.db")


def died_after(path: Path, last: str, settled: int) -> None:
    """A worker that is killed once it has ended so many jobs."""
    worker = started(path, last)
    assert worker.stdout is not None
    for _ in range(settled):
        assert worker.stdout.readline() == "settled\n"
    worker.kill()
    worker.communicate(timeout=60)


def started(path: Path, last: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(WORKER), f"sqlite:///{path}?durability=normal&timeout=60", last]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.more("kills processes and waits until others take over")
async def test_a_callback_runs_once_though_workers_are_killed_in_the_middle_of_its_group(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    root = new_job(bonds=Bonds(done_by="children"))
    kids = [new_job(bonds=Bonds(parent=root.id)) for _ in range(300)]
    then = new_job(bonds=Bonds(after=(root.id,)))
    never = new_job(bonds=Bonds(after=(root.id,), when="failure"))
    async with driver_on(path) as driver:
        await driver.enqueue([root, *kids, then, never])

    for settled in (20, 71, 101):
        await asyncio.to_thread(died_after, path, then.id, settled)
    worker = started(path, then.id)
    await asyncio.to_thread(worker.communicate, timeout=120)

    assert worker.returncode == 0
    async with driver_on(path) as driver:
        group, callback, skipped = await driver.get([root.id, then.id, never.id])
    assert group is not None
    assert group.family is not None
    assert (group.state.value, group.family.total, group.family.open) == ("completed", 300, 0)
    assert callback is not None
    assert (callback.state.value, callback.starts, callback.version) == ("completed", 1, 4)
    assert skipped is not None
    assert (skipped.state.value, skipped.failure_kind) == ("cancelled", "skipped")
    assert is_sound(path)
