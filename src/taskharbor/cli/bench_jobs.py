"""The jobs of `taskharbor bench`: their queue, their handler, and how each must end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.cli.bench_report import JobFate
from taskharbor.cli.search import find_all
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_MAX_STALLS, Job, NewJob
from taskharbor.model.search import Search
from taskharbor.model.state import JobState
from taskharbor.worker.attempt import JobContext

TYPE = "taskharbor.bench"
KINDS = ("plain", "flaky", "failing", "delayed", "keyed", "priority", "parent", "child")

# Twenty requests, repeated. The handler of a parent enqueues the child that follows it.
_ROUND = (
    *("plain", "flaky", "priority", "plain", "delayed", "plain", "keyed", "keyed", "plain", "priority"),
    *("plain", "failing", "plain", "delayed", "plain", "priority", "flaky", "plain", "parent", "child"),
)

_DELAY = timedelta(seconds=1)
_BACKOFF = timedelta(milliseconds=50)
_FAILING_ATTEMPTS = 2
_PRIORITIES = 5
_FAILURES = "bench-failures"
_CHILD = "bench-child"


class OnPurpose(Exception):
    """Raised by flaky and failing jobs."""


def kinds_of(count: int) -> Iterator[str]:
    """The kinds of this many requests; a parent is never the last, as its child counts, too."""
    for at in range(count):
        kind = _ROUND[at % len(_ROUND)]
        yield "plain" if kind == "parent" and at + 1 == count else kind


class MixJobs:
    """The jobs of one run, how each must end, and their handler."""

    def __init__(self, driver: Driver, queue: str, size: int) -> None:
        self.expected: dict[str, JobFate] = {}
        self.merged: Counter[str] = Counter()
        """Requests merged into a waiting job of their key, by kind."""
        self._driver = driver
        self._queue = queue
        self._payload = b"x" * size
        self._entropy = Entropy()
        self._made: Counter[str] = Counter()

    async def put_in(self, kinds: Sequence[str]) -> None:
        """One call with jobs of these kinds; children come from their parents."""
        at = self._driver.clock.now()
        jobs = [(kind, self._job(kind, at)) for kind in kinds if kind != "child"]
        answers = await self._driver.enqueue([job for _, job in jobs]) if jobs else []
        for (kind, job), answer in zip(jobs, answers, strict=True):
            self._enter(kind, job, answer)

    async def handle(self, ctx: JobContext, job: Job) -> None:
        """The handler of all of them."""
        if ctx.attempt <= int(job.headers.get(_FAILURES, 0)):
            raise OnPurpose(f"attempt {ctx.attempt} fails on purpose")
        if (child := job.headers.get(_CHILD)) is not None:
            # The id was chosen beforehand: if this handler runs twice, there is still one child.
            await self._driver.enqueue([self._new(child)])

    def _enter(self, kind: str, job: NewJob, answer: Enqueued) -> None:
        if answer.result is EnqueueResult.UPDATED:
            self.merged[kind] += 1
            return
        ends = JobState.FAILED if kind == "failing" else JobState.COMPLETED
        self.expected[answer.id] = JobFate(kind, ends, int(job.headers.get(_FAILURES, 0)))
        if kind == "parent":
            self.expected[job.headers[_CHILD]] = JobFate("child")

    def _job(self, kind: str, at: datetime) -> NewJob:
        number = self._made[kind]
        self._made[kind] += 1
        job_id = self._entropy.job_id(at)
        match kind:
            case "flaky":
                failures = 1 + number % 2
                return self._new(job_id, **_fails(failures), max_attempts=failures + 1)
            case "failing":
                return self._new(job_id, **_fails(_FAILING_ATTEMPTS), max_attempts=_FAILING_ATTEMPTS)
            case "delayed":
                return self._new(job_id, delay=_DELAY)
            case "keyed":  # two in a row share a key
                return self._new(job_id, key=f"bench-{number // 2}".encode())
            case "priority":
                return self._new(job_id, priority=number % _PRIORITIES)
            case "parent":
                return self._new(job_id, headers={_CHILD: self._entropy.job_id(at)})
            case _:
                return self._new(job_id)

    def _new(self, job_id: str, **options: Any) -> NewJob:
        return NewJob(
            id=job_id,
            type=TYPE,
            queue=self._queue,
            payload=self._payload,
            max_stalls=DEFAULT_MAX_STALLS,
            **options,
        )


def _fails(times: int) -> dict[str, Any]:
    """The options of a job whose first attempts fail."""
    return {"headers": {_FAILURES: str(times)}, "min_backoff": _BACKOFF, "max_backoff": _BACKOFF}


# ------------------------------------------------------------------ the queue


def own_queue(entropy: Entropy) -> str:
    """A queue that no one else uses."""
    return f"taskharbor-bench-{entropy.token()[:8]}"


async def forget_queue(driver: Driver, queue: str) -> None:
    """Cancel and delete all jobs of the queue."""
    async for jobs in find_all(driver, Search().narrowed("queue", queue)):
        ids = [job.id for job in jobs]
        await driver.cancel(ids)
        await driver.delete(ids)
