"""How a job is when two verbs meet on it: every state that a verb can distinguish, on a queue of its own.

What is done to the store is done to the reference model beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import EPOCH, SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Settlement
from taskharbor.testing.reference import ReferenceModel
from tests.contract.pairs.calls import HOUR, Call, at_of, plain, play

KEY = b"key"
ONCE = b"once"
"""An idempotency key."""
HOLDER = "worker-before"
BEFORE = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)
AT_LAST = BEFORE + timedelta(minutes=10)
SOON = timedelta(milliseconds=3)
"""Ends while the verbs meet: about the time that the four need to begin."""


class Site:
    """One job on a queue of its own, and the model of that queue.

    `is_given`: the callers say what time it is; otherwise the clock of the store decides.
    """

    def __init__(self, driver: Driver, entropy: Entropy, queue: str, *, is_given: bool) -> None:
        self.driver = driver
        self.model = ReferenceModel()
        self.queue = queue
        self.entropy = entropy
        self.is_given = is_given
        self.now = BEFORE if is_given else None
        self.last_at = BEFORE if is_given else EPOCH
        self.moment: datetime | None = None
        """When the store's clock changes the job by itself, if that is about now."""
        self.id = ""
        """The job that the verbs are about, by whatever id they know it."""
        self.ids: list[str] = []
        self.leases: list[Lease] = []
        """What the racers settle and extend, in turns; it may be over long since."""
        self.all_leases: list[Lease] = []
        self._jobs: dict[str, NewJob] = {}
        self._has_brief = False

    @property
    def brief(self) -> timedelta:
        """A span that is over when the verbs meet."""
        self._has_brief = True
        return timedelta(minutes=1) if self.is_given else timedelta(milliseconds=1)

    async def call(self, verb: str, *args: Any, **options: Any) -> Any:
        """On the store and on the model."""
        call = Call(verb, args, options)
        answer = await call.make(self.driver, self.now)
        self.last_at = self.now or at_of(answer) or self.last_at
        expected = play(self.model, call, answer, self.last_at)
        assert plain(answer, self.queue) == plain(expected, self.queue), (call, answer, expected)
        return answer

    def new(self, **fields: Any) -> NewJob:
        job = NewJob(
            id=self.entropy.job_id(self.now or SystemClock().now()),
            type="pairs.job",
            queue=self.queue,
            **fields,
        )
        self.ids.append(job.id)
        self._jobs[job.id] = job
        self.id = self.id or job.id
        return job

    def again(self) -> NewJob:
        """The job as it was enqueued."""
        return self._jobs[self.id]

    async def enqueue(self, **fields: Any) -> NewJob:
        job = self.new(**fields)
        await self.call("enqueue", [job])
        return job

    async def claim(self, lease_for: timedelta = HOUR, worker_id: str = HOLDER) -> JobRecord:
        claimed = await self.call("reserve", self.claim_by(worker_id, lease_for))
        [job] = claimed.jobs
        assert isinstance(job, JobRecord)
        self.all_leases.append(job.lease)
        return job

    def claim_by(self, worker_id: str, lease_for: timedelta = HOUR) -> Claim:
        return Claim(queues=(self.queue,), worker_id=worker_id, limit=2, lease_for=lease_for)

    async def end(self, settlement: Callable[[Lease], Settlement], **fields: Any) -> None:
        await running(self, **fields)
        await self.call("settle", [settlement(self.leases[0])])

    async def pass_by(self) -> None:
        """What was brief is over."""
        if self.is_given:
            self.now = self.last_at = AT_LAST
        elif self._has_brief:
            self.last_at += self.brief
            await asyncio.sleep(2 * self.brief.total_seconds())


# ------------------------------------------------------------------ not there


async def unborn(site: Site) -> None:
    """The first enqueue creates it."""
    site.new(idempotency_key=ONCE)


async def forgotten(site: Site) -> None:
    """It was deleted; its idempotency key is still remembered."""
    await remembered(site)
    await site.call("cancel", [site.id])
    await site.call("delete", [site.id])


# ------------------------------------------------------------------ waiting


async def remembered(site: Site) -> None:
    await site.enqueue(idempotency_key=ONCE)


async def ready(site: Site) -> None:
    await site.enqueue()


async def keyed(site: Site) -> None:
    await site.enqueue(key=KEY)


async def absorbed(site: Site) -> None:
    """Known by the id that was absorbed."""
    await keyed(site)
    site.id = (await site.enqueue(key=KEY, payload=b"newer")).id


async def scheduled(site: Site) -> None:
    await site.enqueue(key=KEY, delay=2 * HOUR)


async def due(site: Site) -> None:
    """Its time has come, and no call has moved it since."""
    await site.enqueue(key=KEY, delay=site.brief)


# ------------------------------------------------------------------ running


async def running(site: Site, **fields: Any) -> None:
    await site.enqueue(**fields)
    site.leases.append((await site.claim()).lease)


async def keyed_runs(site: Site) -> None:
    await running(site, key=KEY)


async def blocked_behind(site: Site) -> None:
    """The running one of two jobs with one key."""
    await running(site, key=KEY)
    await site.enqueue(key=KEY, payload=b"newer")


async def blocked(site: Site) -> None:
    """The other one: its id may become an alias, or the job that runs next."""
    await blocked_behind(site)
    site.id = site.ids[1]


async def cancel_requested(site: Site) -> None:
    await running(site)
    await site.call("cancel", [site.id])


async def last_stall(site: Site) -> None:
    """One more lease that runs out, and it has failed."""
    await site.enqueue(max_stalls=1)
    site.leases.append((await site.claim(site.brief)).lease)


async def expired(site: Site) -> None:
    await blocked_behind_for(site, site.brief)


async def blocked_behind_for(site: Site, lease_for: timedelta) -> None:
    await site.enqueue(key=KEY)
    site.leases.append((await site.claim(lease_for)).lease)
    await site.enqueue(key=KEY, payload=b"newer")


async def claimed_again(site: Site) -> None:
    """The lease that the racers know is the one before."""
    await running(site)
    await site.call("settle", [Release(site.leases[0])])
    await site.claim(worker_id="worker-after")


async def copied(site: Site) -> None:
    """A copy of it waits."""
    await running(site)
    await site.call("speculate", site.id)


async def copy_runs(site: Site) -> None:
    await copied(site)
    site.leases.append((await site.claim(worker_id="worker-of-the-copy")).lease)


# ------------------------------------------------------------------ over


async def completed(site: Site) -> None:
    await site.end(Ack, key=KEY)


async def failed(site: Site) -> None:
    await site.end(Fail)


async def cancelled(site: Site) -> None:
    await site.end(Cancelled)


async def replaced(site: Site) -> None:
    """It is over, and another job of its key waits."""
    await completed(site)
    await site.enqueue(key=KEY)


async def forgettable(site: Site) -> None:
    """A prune may forget it."""
    keep = Retention(completed=site.brief, failed=site.brief, cancelled=site.brief)
    await site.call("configure_queue", QueueSettings(queue=site.queue, retention=keep))
    await completed(site)


# ------------------------------------------------------------------ at the very instant, by the store's clock


async def falls_due(site: Site) -> None:
    await site.enqueue(key=KEY, delay=SOON)
    site.moment = site.last_at + SOON


async def runs_out(site: Site) -> None:
    await blocked_behind_for(site, SOON)
    site.moment = site.leases[0].expires_at


class Start(NamedTuple):
    """How to get there, and which verbs have something to say then."""

    make: Callable[[Site], Awaitable[None]]
    is_keyed: bool = False
    is_leased: bool = True
    is_once: bool = False
    """It has an idempotency key."""
    is_now: bool = False
    """Only by the clock of the store: it is about one instant."""

    @property
    def name(self) -> str:
        return self.make.__name__


STARTS = (
    Start(unborn, is_leased=False, is_once=True),
    Start(forgotten, is_leased=False, is_once=True),
    Start(remembered, is_leased=False, is_once=True),
    Start(ready, is_leased=False),
    Start(keyed, is_keyed=True, is_leased=False),
    Start(absorbed, is_keyed=True, is_leased=False),
    Start(scheduled, is_keyed=True, is_leased=False),
    Start(due, is_keyed=True, is_leased=False),
    Start(falls_due, is_keyed=True, is_leased=False, is_now=True),
    Start(running),
    Start(keyed_runs, is_keyed=True),
    Start(blocked_behind, is_keyed=True),
    Start(blocked, is_keyed=True),
    Start(cancel_requested),
    Start(last_stall),
    Start(expired, is_keyed=True),
    Start(runs_out, is_keyed=True, is_now=True),
    Start(claimed_again),
    Start(copied),
    Start(copy_runs),
    Start(completed, is_keyed=True),
    Start(failed),
    Start(cancelled),
    Start(replaced, is_keyed=True),
    Start(forgettable, is_keyed=True),
)
