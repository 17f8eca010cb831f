"""The fixture of the rules: a driver, the model beside it, and the choice of ids and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
from hypothesis.stateful import RuleBasedStateMachine

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import Lease, NewJob
from taskharbor.model.settlement import Settlement
from taskharbor.testing.statemachine import plans
from taskharbor.testing.statemachine.compare import Comparison
from taskharbor.testing.statemachine.coverage import Coverage

START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)  # years from every real clock: only `now` may count
STEPS_PER_FULL_LOOK = 5
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
WRONG_TOKEN = "f" * 32
MakeDriver = Callable[[], Driver]


class PairMachine(RuleBasedStateMachine):
    """One run: an empty store, an empty model, and a clock that the rules move."""

    make_driver: ClassVar[MakeDriver]
    coverage: ClassVar[Coverage]

    def __init__(self) -> None:
        super().__init__()
        self.entropy = Entropy(1)
        self.loop = asyncio.new_event_loop()
        self.pair = Comparison(type(self).make_driver(), START)
        self.loop.run_until_complete(self.pair.driver.open())
        self.steps = 0
        self.is_broken = False

    def teardown(self) -> None:
        try:
            if not self.is_broken:
                self.loop.run_until_complete(self.pair.look_at_all())
        finally:
            self.coverage.edges.update(self.pair.model.moves)
            self.coverage.errors.update(self.pair.errors)
            self.loop.run_until_complete(self.pair.driver.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    # ------------------------------------------------------------------ steps

    def _do(self, step: Coroutine[Any, Any, object]) -> None:
        """One verb on both sides; now and then a look at everything."""
        self.is_broken = True  # until it went well: after a difference, the rest means nothing
        self.loop.run_until_complete(step)
        self.steps += 1
        self.coverage.steps += 1
        if self.steps % STEPS_PER_FULL_LOOK == 0:
            self.loop.run_until_complete(self.pair.look_at_all())
        self.is_broken = False

    async def _restart(self, is_another: bool) -> None:
        before = self.pair.driver
        self.pair.driver = before.another() if is_another else before
        await before.close()
        await self.pair.driver.open()

    def _run_key(self, key: bytes) -> list[Lease]:
        """Have a job of this key run on the left; its lease, unless some gate was against it."""
        return self._leases(lambda job: (job.queue, job.key) == ("left", key)) or self._run({"key": key})

    def _run(self, fields: plans.JobFields) -> list[Lease]:
        """Have a new job run on the left; its lease, unless some gate was against it."""
        job = self._job({"queue": "left", "type": "mail", "priority": 100} | fields)
        self._do(self.pair.enqueue([job]))
        self._do(self.pair.reserve(plans.wide_claim("w2", 5 * plans.SECOND)))
        return self._leases(lambda other: other.id == job.id)

    def _deed(self, name: str, which: int) -> Coroutine[Any, Any, object]:
        """What is done at an instant that matters."""
        match name:
            case "reserve":
                return self.pair.reserve(plans.wide_claim("w3", plans.SECOND, rate=plans.RATE))
            case "reserve one queue":
                return self.pair.reserve_one(plans.QUEUES[which % 2], plans.SECOND)
            case "extend":
                return self.pair.extend([self._lease(which, "none")], plans.SECOND, {})
            case "hold a role":
                return self.pair.hold_role("leader", plans.WORKERS[which % 3], plans.SECOND)
            case "enqueue":
                fields = {"queue": plans.QUEUES[which % 2], "type": "mail", "idempotency_key": b"once"}
                return self.pair.enqueue([self._job(fields)])
            case _:
                return self.pair.find(Query(limit=1000))

    # ------------------------------------------------------------------ choices

    def _job(self, fields: plans.JobFields) -> NewJob:
        return plans.new_job(self.entropy.job_id(self.pair.now), fields, self.pair.now)

    def _known_id(self, which: int) -> str:
        """An id that was used before, the latest first; now and then one that never was."""
        ids = list(self.pair.ids)
        return ids[-1 - which % len(ids)] if which % 11 and ids else UNKNOWN_ID

    def _finished(self, which: int) -> list[str]:
        over = [job.id for job in self.pair.model.jobs.values() if job.state.is_terminal]
        return over[which % len(over) :][:1] if over else []

    def _copies_of(self, job_id: str) -> list[Lease]:
        return self._leases(lambda job: job.speculates_on == job_id)

    def _leases(self, fits: Callable[[Any], bool] = bool) -> list[Lease]:
        """The leases of the running jobs that fit, run out or not."""
        model = self.pair.model
        return [
            model.whole(job.id).lease for job in model.jobs.values() if job.token is not None and fits(job)
        ]

    def _lease(self, which: int, forgery: str) -> Lease:
        """The lease of a running job, or something that only looks like one."""
        leases = self._leases()
        if forgery == "stale" and self.pair.old_leases:
            return self.pair.old_leases[-1 - which * 3 % len(self.pair.old_leases)]
        if not leases or forgery == "unknown":
            return Lease(UNKNOWN_ID, WRONG_TOKEN)
        lease = leases[which % len(leases)]
        if forgery == "token":
            return msgspec.structs.replace(lease, token=WRONG_TOKEN)
        return msgspec.structs.replace(lease, worker_id="nobody") if forgery == "worker" else lease

    def _end(self, end: str, which: int, forgery: str) -> Settlement:
        return plans.ENDS[end](self._lease(which, forgery), self.pair.now)
