"""The jobs of the demo, how each should end, and a check that all did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from taskharbor.cli import demo_app as app
from taskharbor.cli.bench_report import retries_of
from taskharbor.client.handle import JobHandle
from taskharbor.client.workflow import Workflow
from taskharbor.drivers.contract import Driver
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.workflow import placed_id

_S = JobState
_AT_ONCE = 1000


@dataclass(slots=True)
class ExpectedOutcomes:
    """Every request that was made, the job that carries it, and the state it should end in."""

    expected: dict[str, JobState] = field(default_factory=dict)
    results: Counter[str] = field(default_factory=Counter)
    stored_before: int = 0

    def enter(self, handle: JobHandle[Any], ends: JobState) -> str:
        self.results[handle.enqueued.result if handle.enqueued else "unknown"] += 1
        self.expected[handle.id] = ends
        return handle.id

    def enter_workflow(self, handle: JobHandle[Any], nodes: Sequence[str]) -> None:
        """A workflow and its nodes, all of which should complete."""
        self.enter(handle, _S.COMPLETED)
        for name in nodes:
            self.results["created"] += 1
            self.expected[placed_id(handle.id, name)] = _S.COMPLETED

    async def records(self, driver: Driver) -> dict[str, JobRecord | None]:
        """The job behind every id; two ids that were merged lead to the same one."""
        ids = list(self.expected)
        found: dict[str, JobRecord | None] = {}
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            found |= zip(part, await driver.get(part, payloads=False), strict=True)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The end of the demo in numbers. It is balanced when nothing is missing and all sums agree."""

    requests: int
    results: dict[str, int]
    jobs: int
    stored: int
    states: dict[str, int]
    starts: int
    retries: int
    stalls: int
    missing: tuple[str, ...]
    surprises: tuple[str, ...]

    @property
    def is_balanced(self) -> bool:
        return (
            not self.missing
            and not self.surprises
            and sum(self.results.values()) == self.requests
            and sum(self.states.values()) == self.jobs == self.stored
        )

    def view(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "results": self.results,
            "jobs": self.jobs,
            "stored": self.stored,
            "states": self.states,
            "starts": self.starts,
            "retries": self.retries,
            "stalls": self.stalls,
            "missing": list(self.missing),
            "surprises": list(self.surprises),
            "is_balanced": self.is_balanced,
        }


def account(
    ledger: ExpectedOutcomes, records: dict[str, JobRecord | None], stored: int, *, is_drained: bool
) -> DemoReport:
    """Add everything up; `stored` is what the store itself counted.

    Only of a drained store is it known how each job must have ended.
    """
    jobs = {job.id: job for job in records.values() if job is not None}
    surprises = [
        f"{job.type} {job.id} is {job.state}, not {ledger.expected[asked]}"
        for asked, job in records.items()
        if job is not None
        and (job.state is not ledger.expected[asked] if is_drained else job.state is _S.RUNNING)
    ]
    return DemoReport(
        requests=ledger.results.total(),
        results=dict(ledger.results),
        jobs=len(jobs),
        stored=stored,
        states=dict(Counter(job.state.value for job in jobs.values())),
        starts=sum(job.starts for job in jobs.values()),
        retries=sum(retries_of(job) for job in jobs.values()),
        stalls=sum(job.stalls for job in jobs.values()),
        missing=tuple(asked for asked, job in records.items() if job is None),
        surprises=tuple(surprises),
    )


# ------------------------------------------------------------------ enqueueing


class DemoProducer:
    """Puts sample jobs in, each kind in its own way."""

    def __init__(self, ledger: ExpectedOutcomes) -> None:
        self.ledger = ledger
        self.to_cancel_running: list[str] = []
        self._number = 0
        self.kinds: Sequence[tuple[int, Callable[[], Awaitable[None]]]] = (
            (30, self._resize),
            (6, self._flaky),
            (3, self._dead),
            (2, self._unknown_card),
            (2, self._account),
            (4, self._reminder),
            (3, self._cancelled),
            (1, self._long_report),
            (2, self._upload),
            (2, self._crash),
            (1, self._album),
        )

    async def fixed_amount(self, *, lose_a_worker: bool) -> None:
        """The work of `demo --once`: every kind, as often as it is weighed."""
        if lose_a_worker:
            self.ledger.enter(await app.lose_the_worker.aenqueue(), _S.COMPLETED)
        for count, put in self.kinds:
            for _ in range(count):
                await put()

    async def _resize(self) -> None:
        self.ledger.enter(await app.resize_image.aenqueue(self._next()), _S.COMPLETED)

    async def _flaky(self) -> None:
        self.ledger.enter(await app.call_flaky_service.aenqueue(1 + self._next() % 2), _S.COMPLETED)

    async def _dead(self) -> None:
        self.ledger.enter(await app.call_dead_service.aenqueue(self._next()), _S.FAILED)

    async def _unknown_card(self) -> None:
        self.ledger.enter(await app.charge_unknown_card.aenqueue("4111"), _S.FAILED)

    async def _account(self) -> None:
        """Three changes of one account within a moment: one job, with the last of them."""
        number = self._next()
        task = app.sync_account.using(key=f"account-{number}", delay="500ms")
        for change in range(3):
            self.ledger.enter(await task.aenqueue(number, change), _S.COMPLETED)

    async def _reminder(self) -> None:
        task = app.send_reminder.using(delay="1s")
        self.ledger.enter(await task.aenqueue(self._next()), _S.COMPLETED)

    async def _cancelled(self) -> None:
        handle = await app.send_reminder.using(delay=timedelta(hours=1)).aenqueue(self._next())
        self.ledger.enter(handle, _S.CANCELLED)
        await handle.acancel()

    async def _long_report(self) -> None:
        handle = await app.write_long_report.aenqueue()
        self.to_cancel_running.append(self.ledger.enter(handle, _S.CANCELLED))

    async def _upload(self) -> None:
        self.ledger.enter(await app.await_upload.aenqueue(), _S.COMPLETED)

    async def _crash(self) -> None:
        self.ledger.enter(await app.decode_broken_image.aenqueue(self._next()), _S.COMPLETED)

    async def _album(self) -> None:
        """A workflow: one call, then three images beside each other, then a reminder."""
        if not (await app.harbor.client.adriver()).capabilities.workflows:
            return
        number, sizes = self._next(), ("small", "medium", "large")
        flow: Workflow[Any] = app.harbor.workflow("publish_album", queue=app.REPORTS)
        fetch = flow.add(app.call_flaky_service.call(1), name="fetch")
        images = [flow.add(app.resize_image.call(number), name=size, after=[fetch]) for size in sizes]
        flow.add(app.send_reminder.call(number), name="announce", after=images)
        self.ledger.enter_workflow(await flow.aenqueue(), ("fetch", *sizes, "announce"))

    async def cancel_what_runs(self, driver: Driver) -> None:
        """Cancel the long reports as soon as they run; that is what they are for."""
        if not self.to_cancel_running:
            return
        jobs = await driver.get(self.to_cancel_running, payloads=False)
        running = [job.id for job in jobs if job is not None and job.state is _S.RUNNING]
        if running:
            await driver.cancel(running)
            self.to_cancel_running = [one for one in self.to_cancel_running if one not in running]

    def _next(self) -> int:
        self._number += 1
        return self._number
