"""The rules: each draws a plan and does it side by side."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Query
from taskharbor.drivers.one_job import RetryUpdate
from taskharbor.errors import InvalidLeaseDuration
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import Lease, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.settlement import Ack, Fail, Retry, Settlement
from taskharbor.testing.statemachine import plans
from taskharbor.testing.statemachine.coverage import RULES, Coverage
from taskharbor.testing.statemachine.sidebyside import SideBySide

START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)  # years from every real clock: only `now` may count
RULES_PER_RUN = 150
STEPS_PER_FULL_LOOK = 5
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
WRONG_TOKEN = "f" * 32
MakeDriver = Callable[[], Driver]


def hold_to_the_model(
    make_driver: MakeDriver, *, steps: int, seed_number: int = 0, least: int = 20, shrink: bool = True
) -> Coverage:
    """Run at least so many steps; raises AssertionError at the first difference or for a blind spot.

    The same seed gives the same steps. `least` is how often everything must be met; `shrink` looks
    for the shortest way to a difference, which can take minutes.
    """
    machine, coverage = driver_machine(make_driver)
    run_state_machine_as_test(seed(seed_number)(machine), settings=run_settings(steps, shrink=shrink))
    assert not (missed := coverage.blind_spots(least)), f"met fewer than {least} times: {missed}"
    return coverage


def run_settings(steps: int, *, shrink: bool = True) -> settings:
    return settings(
        max_examples=steps * 5 // (RULES_PER_RUN * 6) + 1,  # a rule takes 1.3 steps on average
        stateful_step_count=RULES_PER_RUN,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def driver_machine(make_driver: MakeDriver) -> tuple[type[DriverMachine], Coverage]:
    """The state machine class for one driver, and where its runs are counted."""
    coverage = Coverage()
    fields = {"make_driver": staticmethod(make_driver), "coverage": coverage}
    return type("DriverMachine", (DriverMachine,), fields), coverage


def counted(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule that is counted."""

    def decorate(step: Callable[..., None]) -> Any:
        RULES.append(step.__name__)

        @functools.wraps(step)
        def counted_step(machine: DriverMachine, **drawn: Any) -> None:
            machine.coverage.rules[step.__name__] += 1
            step(machine, **drawn)

        as_rule: Any = rule(**arguments)
        return as_rule(counted_step)

    return decorate


class DriverMachine(RuleBasedStateMachine):
    """A driver and the model side by side; `driver_machine` binds it to a driver."""

    make_driver: ClassVar[MakeDriver]
    coverage: ClassVar[Coverage]

    def __init__(self) -> None:
        super().__init__()
        self.entropy = Entropy(1)
        self.loop = asyncio.new_event_loop()
        self.pair = SideBySide(type(self).make_driver(), START)
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

    # ------------------------------------------------------------------ jobs in

    @initialize(fields=plans.JOBS, count=st.integers(1, 4))
    def fill(self, fields: plans.JobFields, count: int) -> None:
        self._do(self.pair.enqueue([self._job(fields) for _ in range(count)]))

    @counted(fields=plans.JOBS)
    def enqueue(self, fields: plans.JobFields) -> None:
        self._do(self.pair.enqueue([self._job(fields)]))

    @counted(fields=plans.JOBS, keyed=plans.KEYED)
    def enqueue_keyed(self, fields: plans.JobFields, keyed: plans.JobFields) -> None:
        self._do(self.pair.enqueue([self._job(fields | keyed)]))

    @counted(fields=plans.JOBS, keyed=plans.KEYED)
    def enqueue_behind(self, fields: plans.JobFields, keyed: plans.JobFields) -> None:
        """A job of a key that runs."""
        self._run_key(keyed["key"])
        self._do(self.pair.enqueue([self._job(fields | keyed | {"queue": "left"})]))

    @counted(fields=plans.JOBS, keyed=plans.KEYED, end=plans.END_NAMES)
    def pass_on_a_key(self, fields: plans.JobFields, keyed: plans.JobFields, end: str) -> None:
        """One job of a key runs, another comes behind it, and the first one ends."""
        leases = self._run_key(keyed["key"])
        self._do(self.pair.enqueue([self._job(fields | keyed | {"queue": "left"})]))
        self._do(self.pair.settle([plans.ENDS[end](lease, self.pair.now) for lease in leases]))

    @counted(fields=plans.JOBS, key=plans.IDEMPOTENCY_KEYS, keyed=st.none() | plans.KEYED)
    def enqueue_once(self, fields: plans.JobFields, key: bytes, keyed: plans.JobFields | None) -> None:
        self._do(self.pair.enqueue([self._job(fields | (keyed or {}) | {"idempotency_key": key})]))

    @counted(fields=plans.JOBS, which=st.integers(0, 30), keyed=st.none() | plans.KEYED)
    def enqueue_again(self, fields: plans.JobFields, which: int, keyed: plans.JobFields | None) -> None:
        self._do(self.pair.enqueue([self._job(fields | (keyed or {}) | {"id": self._known_id(which)})]))

    @counted(first=plans.JOBS, second=plans.JOBS, keyed=plans.KEYED, is_same=st.booleans())
    def enqueue_batch(
        self, first: plans.JobFields, second: plans.JobFields, keyed: plans.JobFields, is_same: bool
    ) -> None:
        """Two keyed jobs around a third one; `is_same`: of one key, and the last with a known id."""
        jobs = [self._job(first | keyed), self._job(second), self._job(second | keyed)]
        if is_same:
            jobs[2] = msgspec.structs.replace(jobs[2], queue=jobs[0].queue)
            jobs.append(msgspec.structs.replace(jobs[1], id=jobs[0].id))
        self._do(self.pair.enqueue(jobs))

    # ------------------------------------------------------------------ attempts

    @counted(claim=plans.CLAIMS, limit=plans.LIMITS)
    def reserve(self, claim: Claim, limit: int) -> None:
        self._do(self.pair.reserve(msgspec.structs.replace(claim, limit=limit)))

    @counted(worker=st.sampled_from(plans.WORKERS), lease_for=st.sampled_from(plans.LEASES))
    def reserve_widely(self, worker: str, lease_for: timedelta) -> None:
        self._do(self.pair.reserve(plans.wide_claim(worker, lease_for)))

    @counted(queue=st.sampled_from(plans.QUEUES), lease_for=st.sampled_from(plans.LEASES))
    def reserve_one(self, queue: str, lease_for: timedelta) -> None:
        self._do(self.pair.reserve_one(queue, lease_for))

    @counted(which=plans.WHICH, end=plans.END_NAMES, forgery=plans.FORGERIES)
    def settle(self, which: int, end: str, forgery: str) -> None:
        self._do(self.pair.settle([self._end(end, which, forgery)]))

    @counted(which=plans.WHICH, first=plans.END_NAMES, second=plans.END_NAMES, forgery=plans.FORGERIES)
    def settle_batch(self, which: int, first: str, second: str, forgery: str) -> None:
        """Two jobs, and the first of them once more."""
        ends = [self._end(first, which, "none"), self._end(second, which + 1, forgery)]
        self._do(self.pair.settle([*ends, self._end(second, which, "none")]))

    @counted(which=plans.WHICH, end=plans.END_NAMES, claim=plans.CLAIMS, limit=plans.LIMITS)
    def exchange(self, which: int, end: str, claim: Claim, limit: int) -> None:
        ends = [self._end(end, which, "none"), self._end(end, which + 1, "stale")]
        self._do(self.pair.exchange(ends, msgspec.structs.replace(claim, limit=limit)))

    @counted(
        which=plans.WHICH,
        forgery=plans.FORGERIES,
        lease_for=st.sampled_from(plans.LEASES),
        progress=plans.PROGRESS,
    )
    def extend(self, which: int, forgery: str, lease_for: timedelta, progress: Progress | None) -> None:
        leases = [self._lease(which, forgery), self._lease(which + 1, "none")]
        told = {} if progress is None else {leases[0].job_id: progress}
        self._do(self.pair.extend(leases, lease_for, told))

    @counted(
        which=plans.WHICH, forgery=plans.FORGERIES, form=st.sampled_from(["ack", "retry", "fail", "extend"])
    )
    def one_job_form(self, which: int, forgery: str, form: str) -> None:
        lease = self._lease(which, forgery)
        bare = Lease(lease.job_id, lease.token)
        driver, now = self.pair.driver, self.pair.now
        if form == "ack":
            self._do(self.pair.settle_one(Ack(bare), driver.ack(bare.job_id, bare.token, now)))
        elif form == "fail":
            self._do(
                self.pair.settle_one(Fail(bare, "why"), driver.fail(bare.job_id, bare.token, now, "why"))
            )
        elif form == "retry":
            update = RetryUpdate(attempts=7, run_at=now + plans.SECOND, last_error="oh", failed_at=START)
            retry = Retry(bare, None, "oh", run_at=update.run_at, attempts=7, failed_at=START)
            self._do(self.pair.settle_one(retry, driver.retry(bare.job_id, bare.token, now, update)))
        else:
            self._do(self.pair.extend_one(lease, 3 * plans.SECOND))

    @counted(lease_for=st.sampled_from([timedelta(0), -plans.SECOND]), is_claim=st.booleans())
    def lease_for_no_time(self, lease_for: timedelta, is_claim: bool) -> None:
        driver, now = self.pair.driver, self.pair.now
        if is_claim:
            verb: Any = driver.reserve(plans.wide_claim("w1", lease_for), now=now)
        else:
            verb = driver.extend_leases([self._lease(0, "none")], lease_for, now=now)
        self._do(self.pair.refused(verb, InvalidLeaseDuration))

    # ------------------------------------------------------------------ control

    @counted(which=st.integers(0, 30), how_many=st.integers(1, 2))
    def cancel(self, which: int, how_many: int) -> None:
        self._do(self.pair.cancel([self._known_id(which + other) for other in range(how_many)]))

    @counted(which=plans.WHICH)
    def cancel_running(self, which: int) -> None:
        self._do(self.pair.cancel([self._lease(which, "none").job_id]))

    @counted(queue=st.sampled_from(plans.QUEUES), key=st.sampled_from(plans.KEYS))
    def cancel_waiting(self, queue: str, key: bytes) -> None:
        self._do(self.pair.cancel_waiting(queue, key))

    @counted(which=st.integers(0, 30), edit=plans.EDITS, reset=st.booleans(), when=plans.REQUEUE_WHENS)
    def requeue(self, which: int, edit: Edit, reset: bool, when: tuple[Any, Any]) -> None:
        """A finished job if there is one, and any other."""
        run_at = None if when[0] is None else self.pair.now + when[0]
        ids = [*self._finished(which), self._known_id(which)]
        self._do(self.pair.requeue(ids, edit, reset, run_at=run_at, delay=when[1]))

    @counted(
        key=st.sampled_from(plans.KEYS), end=plans.END_NAMES, reset=st.booleans(), when=plans.REQUEUE_WHENS
    )
    def requeue_behind(self, key: bytes, end: str, reset: bool, when: tuple[Any, Any]) -> None:
        """One job of a key ends, another one runs, and the first one is wanted again."""
        leases = self._run_key(key)
        self._do(self.pair.settle([plans.ENDS[end](lease, self.pair.now) for lease in leases]))
        self._run_key(key)
        self._do(self.pair.requeue([lease.job_id for lease in leases], reset_counts=reset, delay=when[1]))

    @counted(which=st.integers(0, 30), is_finished=st.booleans())
    def delete(self, which: int, is_finished: bool) -> None:
        self._do(self.pair.delete([*self._finished(which)[:is_finished], self._known_id(which)]))

    @counted(level=plans.LEVELS, rules=plans.QUEUE_RULES)
    def configure(self, level: str, rules: dict[str, Any]) -> None:
        self._do(self.pair.configure(plans.settings_of(level, rules)))

    @counted(level=st.sampled_from(["*", "left"]), most=st.integers(1, 3))
    def limit_running(self, level: str, most: int) -> None:
        self._do(self.pair.configure(plans.settings_of(level, {"max_running": most, "paused": False})))

    @counted(level=st.sampled_from(["left", "*"]), rate=plans.RATES, edge=plans.EDGES)
    def use_up_a_rate(self, level: str, rate: tuple[str, RateLimit], edge: timedelta) -> None:
        """Spend a whole budget, and try again when it comes back, or 1 µs beside that instant."""
        name, limit = rate
        self._do(self.pair.configure(plans.settings_of(level, {name: limit, "paused": False})))
        for _ in range(2):
            jobs = [self._job({"queue": "left", "type": "mail"}) for _ in range(limit.count)]
            self._do(self.pair.enqueue(jobs))
            self._do(self.pair.reserve_one("left", plans.SECOND))
            ends = [at for at in self.pair.model.window_ends() if at > self.pair.now]
            self.pair.now = max([self.pair.now, *(at + edge for at in sorted(ends)[:1])])

    @counted(level=plans.LEVELS, rules=plans.OPENINGS)
    def open_queue(self, level: str, rules: dict[str, Any]) -> None:
        self._do(self.pair.configure(plans.settings_of(level, rules)))

    @counted(which=plans.WHICH, known=st.integers(-3, 30))
    def speculate(self, which: int, known: int) -> None:
        self._do(
            self.pair.speculate(self._known_id(known) if known > 25 else self._lease(which, "none").job_id)
        )

    @counted(which=plans.WHICH, end=plans.END_NAMES, is_reclaimed=st.booleans())
    def race_a_copy(self, which: int, end: str, is_reclaimed: bool) -> None:
        """Start a copy, let another worker take it, perhaps lose the original's lease, end the copy."""
        lease = self._lease(which, "none")
        job = self.pair.model.jobs.get(lease.job_id)
        if job is None or job.key is not None or job.lease_expires_at is None:
            return
        self._do(self.pair.speculate(job.id))
        worker = next(worker for worker in plans.WORKERS if worker != job.claimed_by)
        if is_reclaimed:
            self.pair.now = max(self.pair.now, job.lease_expires_at - plans.SECOND)
        self._do(self.pair.reserve(plans.wide_claim(worker, 9 * plans.SECOND)))
        copies = [copy for copy in self.pair.model.jobs.values() if copy.speculates_on == job.id]
        if is_reclaimed and job.lease_expires_at is not None:
            self.pair.now = max(self.pair.now, job.lease_expires_at)
            self._do(self.pair.reclaim(100))
        if copies and copies[-1].token is not None:
            copy = Lease(copies[-1].id, copies[-1].token)
            self._do(
                self.pair.settle(
                    [plans.ENDS["ack with a result" if is_reclaimed else end](copy, self.pair.now)]
                )
            )

    # ------------------------------------------------------------------ time

    @counted(limit=st.sampled_from([100, 1, 2]))
    def reclaim(self, limit: int) -> None:
        self._do(self.pair.reclaim(limit))

    @counted(limit=st.sampled_from([1000, 1]))
    def promote(self, limit: int) -> None:
        self._do(self.pair.promote(limit))

    @counted(limit=st.sampled_from([1000, 1]))
    def prune(self, limit: int) -> None:
        self._do(self.pair.prune(limit))

    @counted(span=plans.SPANS)
    def advance(self, span: timedelta) -> None:
        self.pair.now += span
        self._do(self.pair.find(Query()))

    @counted(which=st.integers(0, 9), edge=plans.EDGES, then=plans.DEEDS)
    def advance_to_boundary(self, which: int, edge: timedelta, then: str) -> None:
        """To one of the next instants at which something changes by itself, or 1 µs beside it."""
        instants = sorted(at for at in self.pair.model.instants() if at > self.pair.now)
        if instants:
            self.pair.now = max(self.pair.now, instants[min(which, len(instants) - 1)] + edge)
        self._do(self._deed(then, which))

    @counted(is_another=st.booleans())
    def restart_driver(self, is_another: bool) -> None:
        self._do(self._restart(is_another))

    @counted(query=plans.QUERIES)
    def find(self, query: Query) -> None:
        self._do(self.pair.find(query))

    # ------------------------------------------------------------------ the machine

    def _do(self, step: Coroutine[Any, Any, object]) -> None:
        """One verb on both sides; now and then a look at everything."""
        self.is_broken = True  # until it went well: after a difference, the rest means nothing
        self.loop.run_until_complete(step)
        self.steps += 1
        self.coverage.steps += 1
        if self.steps % STEPS_PER_FULL_LOOK == 0:
            self.loop.run_until_complete(self.pair.look_at_all())
        self.is_broken = False

    def _run_key(self, key: bytes) -> list[Lease]:
        """Have a job of this key run on the left, unless some gate is against it; its lease."""
        running = self._running(lambda job: (job.queue, job.key) == ("left", key))
        if not running:
            first = {"queue": "left", "key": key, "type": "mail", "priority": 100}
            self._do(self.pair.enqueue([self._job(first)]))
            self._do(self.pair.reserve(plans.wide_claim("w2", 5 * plans.SECOND)))
            running = self._running(lambda job: (job.queue, job.key) == ("left", key))
        return [self.pair.model.whole(job.id).lease for job in running]

    def _deed(self, name: str, which: int) -> Coroutine[Any, Any, object]:
        """What is done at an instant that matters."""
        match name:
            case "reserve":
                return self.pair.reserve(plans.wide_claim("w3", plans.SECOND, rate=plans.RATE))
            case "reserve one queue":
                return self.pair.reserve_one(plans.QUEUES[which % 2], plans.SECOND)
            case "extend":
                return self.pair.extend([self._lease(which, "none")], plans.SECOND, {})
            case "enqueue":
                fields = {"queue": plans.QUEUES[which % 2], "type": "mail", "idempotency_key": b"once"}
                return self.pair.enqueue([self._job(fields)])
            case _:
                return self.pair.find(Query(limit=1000))

    async def _restart(self, is_another: bool) -> None:
        before = self.pair.driver
        self.pair.driver = before.another() if is_another else before
        await before.close()
        await self.pair.driver.open()

    def _job(self, fields: plans.JobFields) -> NewJob:
        return plans.new_job(self.entropy.job_id(self.pair.now), fields, self.pair.now)

    def _known_id(self, which: int) -> str:
        """An id that was used before, the latest first; now and then one that never was."""
        ids = list(self.pair.ids)
        return ids[-1 - which % len(ids)] if which % 11 and ids else UNKNOWN_ID

    def _running(self, fits: Callable[[Any], bool] = bool) -> list[Any]:
        return [job for job in self.pair.model.jobs.values() if job.token is not None and fits(job)]

    def _finished(self, which: int) -> list[str]:
        over = [job.id for job in self.pair.model.jobs.values() if job.state.is_terminal]
        return over[which % len(over) :][:1] if over else []

    def _lease(self, which: int, forgery: str) -> Lease:
        """The lease of a running job, or something that only looks like one."""
        running = self._running()
        if forgery == "stale" and self.pair.old_leases:
            return self.pair.old_leases[-1 - which * 3 % len(self.pair.old_leases)]
        if not running or forgery == "unknown":
            return Lease(UNKNOWN_ID, WRONG_TOKEN)
        lease = self.pair.model.whole(running[which % len(running)].id).lease
        if forgery == "token":
            return msgspec.structs.replace(lease, token=WRONG_TOKEN)
        return msgspec.structs.replace(lease, claimed_by="nobody") if forgery == "worker" else lease

    def _end(self, end: str, which: int, forgery: str) -> Settlement:
        return plans.ENDS[end](self._lease(which, forgery), self.pair.now)
