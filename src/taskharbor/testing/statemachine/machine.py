"""The rules: each draws a plan and does it side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from taskharbor.drivers.messages import Claim, Query
from taskharbor.drivers.one_job import RetryUpdate
from taskharbor.errors import InvalidLeaseDuration
from taskharbor.model.edit import Edit
from taskharbor.model.job import Lease, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.model.speculation import HeadStart
from taskharbor.testing.statemachine import plans
from taskharbor.testing.statemachine.coverage import RULES
from taskharbor.testing.statemachine.fixture import START, PairMachine


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


class DriverMachine(PairMachine):
    """A driver and the model side by side; `driver_machine` binds it to a driver."""

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
        if not self.pair.driver.capabilities.atomic_across_queues:
            second = second | {"queue": first["queue"]}
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
        progress_of = {} if progress is None else {leases[0].job_id: progress}
        self._do(self.pair.extend(leases, lease_for, progress_of))

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

    @counted(queue=st.sampled_from(plans.QUEUES), key=plans.KEY)
    def cancel_waiting(self, queue: str, key: bytes) -> None:
        self._do(self.pair.cancel_waiting(queue, key))

    @counted(which=st.integers(0, 30), edit=plans.EDITS, reset=st.booleans(), when=plans.REQUEUE_WHENS)
    def requeue(self, which: int, edit: Edit, reset: bool, when: tuple[Any, Any]) -> None:
        """A finished job if there is one, and any other."""
        run_at = None if when[0] is None else self.pair.now + when[0]
        ids = [*self._finished(which), self._known_id(which)]
        self._do(self.pair.requeue(ids, edit, reset, run_at=run_at, delay=when[1]))

    @counted(key=plans.KEY, end=plans.FINAL_END_NAMES, reset=st.booleans(), when=plans.REQUEUE_WHENS)
    def requeue_behind(self, key: bytes, end: str, reset: bool, when: tuple[Any, Any]) -> None:
        """One job of a key ends, another one runs, and the first is wanted again; then an older one too."""
        for level in ("left", "*"):
            self._do(self.pair.configure(plans.settings_of(level, plans.OPEN)))
        leases = self._run_key(key)
        self._do(self.pair.settle([plans.ENDS[end](lease, self.pair.now) for lease in leases]))
        self._run_key(key)
        over = [job.id for job in self.pair.model.jobs.values() if job.state.is_terminal and job.key == key]
        ids = [*(lease.job_id for lease in leases), *over[:1]]
        self._do(self.pair.requeue(ids, reset_counts=reset, delay=when[1]))

    @counted(fields=plans.JOBS, keyed=plans.KEYED)
    def cancel_behind(self, fields: plans.JobFields, keyed: plans.JobFields) -> None:
        """One job of a key runs, another comes behind it, and is not wanted after all."""
        self._run_key(keyed["key"])
        self._do(self.pair.enqueue([self._job(fields | keyed | {"queue": "left"})]))
        self._do(self.pair.cancel_waiting("left", keyed["key"]))

    @counted(end=plans.FINAL_END_NAMES, edit=plans.EDITS, reset=st.booleans(), when=plans.REQUEUE_WHENS)
    def end_and_requeue(self, end: str, edit: Edit, reset: bool, when: tuple[Any, Any]) -> None:
        for lease in self._run({}):
            self._do(self.pair.settle([plans.ENDS[end](lease, self.pair.now)]))
            run_at = None if when[0] is None else self.pair.now + when[0]
            self._do(self.pair.requeue([lease.job_id], edit, reset, run_at=run_at, delay=when[1]))

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

    @counted(which=plans.WHICH, known=st.integers(-3, 30), start=plans.HEAD_STARTS)
    def speculate(self, which: int, known: int, start: HeadStart | None) -> None:
        job_id = self._known_id(known) if known > 25 else self._lease(which, "none").job_id
        self._do(self.pair.speculate(job_id, start))

    @counted(end=plans.END_NAMES, is_reclaimed=st.sampled_from([False, True, True]), start=plans.HEAD_STARTS)
    def race_a_copy(self, end: str, is_reclaimed: bool, start: HeadStart | None) -> None:
        """Start a copy, have it taken, perhaps lose the original's lease, end the copy and want another."""
        for lease in self._run({}):
            self._do(self.pair.speculate(lease.job_id, start))
            self.pair.now += is_reclaimed * 4 * plans.SECOND
            self._do(self.pair.reserve(plans.wide_claim("w3", 9 * plans.SECOND)))
            if is_reclaimed:
                self.pair.now += plans.SECOND
                self._do(self.pair.reclaim(100))
            ending = plans.ENDS["ack with a result" if is_reclaimed else end]
            copies = self._copies_of(lease.job_id)
            self._do(self.pair.settle([ending(copy, self.pair.now) for copy in copies]))
            self._do(self.pair.speculate(lease.job_id))

    @counted(holder=st.sampled_from(plans.WORKERS), ttl=st.sampled_from(plans.LEASES))
    def hold_role(self, holder: str, ttl: timedelta) -> None:
        self._do(self.pair.hold_role("leader", holder, ttl))

    @counted(holder=st.sampled_from(plans.WORKERS))
    def release_role(self, holder: str) -> None:
        self._do(self.pair.release_role("leader", holder))

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
        known = self.pair.model.instants() | self.pair.roles.instants()
        instants = sorted(at for at in known if at > self.pair.now)
        if instants:
            self.pair.now = max(self.pair.now, instants[min(which, len(instants) - 1)] + edge)
        self._do(self._deed(then, which))

    @counted(is_another=st.booleans())
    def restart_driver(self, is_another: bool) -> None:
        self._do(self._restart(is_another))

    @counted(query=plans.QUERIES)
    def find(self, query: Query) -> None:
        self._do(self.pair.find(query))
