"""Families of jobs among workers that die: graphs, groups, crawls, durable steps and events, and ten rules.

    verdict = await family_world(lambda: connect(url), seed=7)
    assert not verdict.violations

Several workers, each with a handle of its own, run what was stored. Now and then one forgets a job, as if its
process were killed, settles it too late, or repeats a note or an event with another value. The clock moves
when a worker has nothing to do; then it prunes, too, and ended jobs are kept for a second only. Roots are
kept, in a queue of their own, until all was judged. Then:

    F1  no job starts before those it comes after are over as it needs
    F2  no child of a stopped parent starts, unless it is spared
    F3  no parent is over while a child is open; a job is completed by one settlement
    F4  the counts of a family are the ends of its children
    F5  at rest, nobody waits
    F6  a parent ended as its children and its own work say
    F7  a note keeps its first value; a noted step does not run again
    F8  nothing is stored under a lease that is lost
    F9  an accepted event reaches its job, and no timeout does then
    F10 nothing of a family disappears before its root does, and then all of it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Noted, Resolution, Resolved, Settled
from taskharbor.errors import TaskHarborError
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import Entropy, derived_id
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Park, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.simulator.choices import Choices
from taskharbor.testing.simulator.family_rules import FamilyVerdict, Known, broken_rules

FEATURES = ("graph", "group", "crawl", "durable", "events")
QUEUES = ("top", "left", "right")
LEASE = timedelta(seconds=5)
EVENT_WITHIN = timedelta(seconds=20)
_KEPT = timedelta(seconds=1)
_TOP_KEPT = timedelta(days=1)
_START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)
_MOST_ROUNDS = 20_000
_MOST_PRUNED = 7


async def family_world(
    make: Callable[[], Driver],
    *,
    seed: int,
    features: Sequence[str] = FEATURES,
    workers: int = 4,
    deaths: float = 0.08,
    size: int = 6,
) -> FamilyVerdict:
    """Run families of these features to their end, and judge them."""
    first = make()
    handles = [first, *(first.another() for _ in range(workers))]
    for handle in handles:
        await handle.open()
    world = _World(handles[0], Entropy(seed), deaths)
    try:
        await world.keep_for_a_second()
        for feature in features:
            await world.put(feature, size)
        await asyncio.gather(*(world.work(handle, f"w{no}") for no, handle in enumerate(handles[1:])))
        await world.judge()
        await world.prune_all()
        return world.verdict
    finally:
        for handle in handles:
            await handle.close()


class _World:
    def __init__(self, driver: Driver, entropy: Entropy, deaths: float) -> None:
        self.driver = driver
        self.now = _START
        self.verdict = FamilyVerdict()
        self.ids: dict[str, NewJob] = {}
        self._entropy = entropy
        self._choices = Choices(entropy.split("choices"))
        self._deaths = deaths
        self._rounds = 0
        self._known = Known()
        self._steps: set[tuple[str, str]] = set()

    def blame(self, rule: str, text: str) -> None:
        self.verdict.violations.append(f"{rule}: {text}")

    # ------------------------------------------------------------------ what is stored

    async def keep_for_a_second(self) -> None:
        kept = {"left": _KEPT, "right": _KEPT, "top": _TOP_KEPT}
        for queue, span in kept.items():
            retention = Retention(completed=span, failed=span, cancelled=span)
            await self.driver.configure_queue(QueueSettings(queue=queue, retention=retention), now=self.now)

    def _job(self, type: str, **bonds: object) -> NewJob:
        job = NewJob(
            id=self._entropy.job_id(self.now),
            type=type,
            queue=self._below() if "parent" in bonds else "top",
            max_stalls=50,
            bonds=Bonds(**bonds) if bonds else None,  # type: ignore[arg-type]
        )
        self.ids[job.id] = job
        return job

    def _below(self) -> str:
        """A queue for a child: not that of roots."""
        return ("left", "right")[self._choices.below(2)]

    async def put(self, feature: str, size: int) -> None:
        match feature:
            case "graph":
                jobs = self._graph(size)
            case "group":
                jobs = self._group(size)
            case _:
                jobs = [self._job(feature) for _ in range(max(size // 3, 1))]
        await self.driver.enqueue(jobs, now=self.now)

    def _graph(self, size: int) -> list[NewJob]:
        """Layers of two jobs, each after both of the layer before; one job fails."""
        root = self._job("root", done_by="children", tolerate=None)
        jobs, layer = [root], tuple[str, ...]()
        for depth in range(size):
            kinds = ("broken" if depth == size // 2 else "plain", "plain")
            made = [self._job(kind, parent=root.id, after=layer, when="over") for kind in kinds]
            jobs += made
            layer = tuple(job.id for job in made)
        jobs.append(self._job("plain", parent=root.id, after=layer))
        return jobs

    def _group(self, size: int) -> list[NewJob]:
        """A group that fails fast, and one that does not fail, each with its callbacks."""
        jobs = []
        for kind in ("broken", "plain"):
            root = self._job("root", done_by="children", fail_fast=kind == "broken")
            members = [self._job("plain", parent=root.id) for _ in range(size)]
            members.append(self._job(kind, parent=root.id))
            names = tuple(job.id for job in members)
            callbacks = [
                self._job("plain", parent=root.id, after=names, when=when)
                for when in ("success", "failure", "over")
            ]
            jobs += [root, *members, *callbacks]
        return jobs

    # ------------------------------------------------------------------ workers

    async def work(self, driver: Driver, name: str) -> None:
        """Claim and run until everything is over."""
        claim = Claim(queues=QUEUES, worker_id=name, limit=2, lease_for=LEASE)
        while not await self._is_over(driver):
            taken = (await driver.reserve(claim, now=self.now)).jobs
            for job in taken:
                self.verdict.runs += 1
                await self._check_start(driver, job)
                await self._run(driver, job)
            if not taken:
                await self._idle(driver)
            await driver.clock.sleep(0)

    async def _is_over(self, driver: Driver) -> bool:
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            self.blame("F5", "some families never end")
            return True
        roots = [job.id for job in self.ids.values() if job.bonds is None or job.bonds.parent is None]
        records = await driver.get(roots, now=self.now, payloads=False)
        return all(record is not None and record.state.is_terminal for record in records)

    async def _idle(self, driver: Driver) -> None:
        """Nothing to do: events are sent, leases run out, what is owed is carried out."""
        await self._send(driver)
        self.now += timedelta(seconds=1)
        await driver.reclaim(now=self.now)
        await driver.promote(now=self.now)
        await driver.prune(now=self.now)

    def _dies(self) -> bool:
        is_dead = self._choices.below(1000) < self._deaths * 1000
        self.verdict.deaths += is_dead
        return is_dead

    async def _run(self, driver: Driver, job: JobRecord) -> None:
        if self._dies():
            return
        try:
            match job.type:
                case "broken":
                    end: Settlement = Fail(job.lease, "broken")
                case "crawl":
                    end = await self._crawl(driver, job)
                case "durable":
                    end = await self._durable(driver, job)
                case "events":
                    end = await self._wait_for_event(driver, job)
                case _:
                    end = Ack(job.lease)
        except TaskHarborError as error:  # its lease was lost, or its parent is being stopped
            self.verdict.met[type(error).__name__] += 1
            return
        if not self._dies():
            await self._settle(driver, end)

    async def _settle(self, driver: Driver, end: Settlement) -> None:
        if self._choices.below(25) == 0:
            self.now += LEASE  # too late now
        until = end.lease.expires_at
        is_lost = until is not None and until <= self.now
        [answer] = await driver.settle([end], now=self.now)
        if isinstance(answer, Settled) and is_lost:
            self.blame("F8", f"{end.lease.job_id} was settled after its lease by {end}")
        if isinstance(answer, Settled) and isinstance(end, Ack):
            self._known.acks[end.lease.job_id] += 1
        [again] = await driver.settle([end], now=self.now)
        if isinstance(again, Settled):
            self.blame("F8", f"{end.lease.job_id} was settled twice by {end}")

    def _child(self, parent: JobRecord, name: str, **bonds: object) -> NewJob:
        """Its id follows from the name, so that a second run of the handler makes it no second time."""
        job_id = derived_id(parent.id, 0, name, parent.created_at)
        job = self.ids.get(job_id)
        if job is None:
            kind = str(bonds.pop("type", "plain"))
            fields = Bonds(parent=parent.id, **bonds)  # type: ignore[arg-type]
            job = NewJob(id=job_id, type=kind, queue=self._below(), max_stalls=50, bonds=fields)
        return job

    async def _add(self, driver: Driver, jobs: Sequence[NewJob], by: Lease) -> None:
        await driver.enqueue(jobs, by=by, now=self.now)
        self.ids |= {job.id: job for job in jobs}

    async def _crawl(self, driver: Driver, job: JobRecord) -> Settlement:
        """A page adds pages below it, and beside it: the root is over with the last."""
        is_root = job.root is None
        pages = [self._child(job, f"page-{no}", type="crawl" if is_root else "plain") for no in range(3)]
        await self._add(driver, pages, job.lease)
        if not is_root and job.bonds is not None and job.bonds.parent is not None:
            beside = self._child(job, "beside")
            beside = replace(beside, bonds=Bonds(parent=job.bonds.parent))
            await self._add(driver, [beside], job.lease)
        stale = Lease(job.id, "0" * 32)
        try:
            await driver.enqueue([self._child(job, "stale")], by=stale, now=self.now)
            self.blame("F8", f"a stale lease added a child to {job.id}")
        except TaskHarborError:
            pass
        return Ack(job.lease)

    async def _durable(self, driver: Driver, job: JobRecord) -> Settlement:
        """Two steps, each noted; a sleep between them, then a child that is waited for."""
        known = {note.name: note.data for note in job.notes}
        for name in ("first", "second"):
            if name not in known:
                if (job.id, name) in self._steps and not self._is_late(job):
                    self.blame("F7", f"step {name} of {job.id} ran again although it was noted")
                data = self._entropy.bytes(4)
                [answer] = await driver.note([Note(name, data, lease=job.lease)], now=self.now)
                if not isinstance(answer, Noted):
                    raise answer
                self._steps.add((job.id, name))
                self._known.notes.setdefault((job.id, name), answer.data)
                return Park(job.lease, delay=timedelta(seconds=1))
            await self._note_again(driver, job, name)
            if self._known.notes.get((job.id, name)) != known[name]:
                self.blame("F7", f"note {name} of {job.id} has changed")
        child = self._child(job, "call")
        await self._add(driver, [child], job.lease)
        [record] = await driver.get([child.id], now=self.now)
        is_over = record is not None and record.state.is_terminal
        return Ack(job.lease) if is_over else Park(job.lease, (child.id,))

    async def _note_again(self, driver: Driver, job: JobRecord, name: str) -> None:
        """A handler that repeats a step gets what its first run came to."""
        [answer] = await driver.note([Note(name, b"again", lease=job.lease)], now=self.now)
        if isinstance(answer, Noted) and answer.data != self._known.notes.get((job.id, name)):
            self.blame("F7", f"note {name} of {job.id} was written over")

    def _is_late(self, job: JobRecord) -> bool:
        """Its lease is over: another run may be ahead of this one, which can no longer write."""
        return job.lease_expires_at is not None and job.lease_expires_at <= self.now

    async def _wait_for_event(self, driver: Driver, job: JobRecord) -> Settlement:
        event = self._child(job, "event", done_by="call", optional=True, within=EVENT_WITHIN)
        await self._add(driver, [event], job.lease)
        sent = self._known.events.get(event.id)
        [record] = await driver.get([event.id], now=self.now)
        if record is None or not record.state.is_terminal:
            return Park(job.lease, (event.id,))
        if sent is not None and record.result != sent:
            self.blame("F9", f"event {event.id} did not reach the handler that waited for it")
        return Ack(job.lease)

    async def _send(self, driver: Driver) -> None:
        """Answer one event that waits, sometimes too late; some are left to their deadline."""
        open_ = [job for job in self.ids.values() if job.bonds is not None and job.bonds.done_by == "call"]
        for event in open_:
            if event.id not in self._known.events and self._choices.below(20) == 0:
                if self._choices.below(3) == 0:
                    self.now += EVENT_WITHIN  # too late now
                await self._resolve(driver, event.id)
                return

    async def _resolve(self, driver: Driver, event_id: str) -> None:
        data, now = self._entropy.bytes(4), self.now
        [answer] = await driver.resolve([Resolution(id=event_id, result=data)], now=now)
        if isinstance(answer, Resolved):
            self._known.events[event_id] = data
            [record] = await driver.get([event_id], now=now)
            deadline = None if record is None else (record.bonds or Bonds()).deadline
            if isinstance(deadline, datetime) and deadline <= now:
                self.blame("F9", f"event {event_id} was accepted after its timeout")
        [again] = await driver.resolve([Resolution(id=event_id, result=b"again")], now=now)
        if isinstance(again, Resolved):
            self.blame("F9", f"event {event_id} was accepted twice, with other data")

    # ------------------------------------------------------------------ rules

    async def _check_start(self, driver: Driver, job: JobRecord) -> None:
        bonds = job.bonds or Bonds()
        others = await driver.get(bonds.after, now=self.now, payloads=False) if bonds.after else []
        states = [other.state for other in others if other is not None]
        is_all = all(state.is_terminal for state in states)
        has_failed = any(state is not JobState.COMPLETED for state in states)
        may = {"success": not has_failed, "over": True, "failure": has_failed}[bonds.when]
        if not (is_all and may):
            self.blame("F1", f"{job.id} started, and what it comes after is {states}")
        if bonds.parent is not None:
            [parent, own] = await driver.get([bonds.parent, job.id], now=self.now, payloads=False)
            # Its lease may have run out meanwhile, and another worker may have ended it.
            if _holds(own, job) and parent is not None and parent.state.is_terminal:
                self.blame("F3", f"{job.id} started, and its parent is over")
            stopping = parent.family.stopping if parent is not None and parent.family is not None else None
            # Its stop may have come between the claim and this look; then it is asked to stop.
            [fresh] = await driver.get([job.id], now=self.now, payloads=False)
            is_asked = fresh is not None and fresh.cancel_requested
            if stopping and bonds.when == "success" and _holds(fresh, job) and not is_asked:
                self.blame("F2", f"{job.id} started although its parent is being stopped: {stopping}")

    async def judge(self) -> None:
        await self._carry_out()
        ids = list(self.ids)
        found = await self.driver.get(ids, now=self.now)
        records = {job_id: job for job_id, job in zip(ids, found, strict=True) if job is not None}
        self.verdict.jobs = len(records)
        for job_id in set(ids) - set(records):
            self.blame("F10", f"{job_id} is gone, and its root is there")
        for job in records.values():
            self.verdict.met[f"{job.type} {job.state}"] += 1
            kids = [kid for kid in records.values() if kid.bonds and kid.bonds.parent == job.id]
            self.verdict.violations += broken_rules(job, kids, self._known)

    async def _carry_out(self) -> None:
        while (await self.driver.promote(now=self.now)).count:
            pass

    async def prune_all(self) -> None:
        """Families go by the retention of their roots, a few records a call, children first."""
        self.now += _TOP_KEPT
        pruned = _MOST_PRUNED
        while pruned:
            pruned = await self.driver.prune(_MOST_PRUNED, now=self.now)
            there = await self._still_there()
            for job_id in there:
                parent = (self.ids[job_id].bonds or Bonds()).parent
                if parent is not None and parent not in there:
                    self.blame("F10", f"{job_id} is there, and its parent {parent} is gone")
        for job_id in await self._still_there():
            self.blame("F10", f"{job_id} is never pruned")

    async def _still_there(self) -> set[str]:
        ids = list(self.ids)
        found = await self.driver.get(ids, now=self.now, payloads=False)
        return {job_id for job_id, job in zip(ids, found, strict=True) if job is not None}


def _holds(record: JobRecord | None, claimed: JobRecord) -> bool:
    """Whether the job still runs as it was claimed."""
    return record is not None and record.state is JobState.RUNNING and record.fence == claimed.fence
