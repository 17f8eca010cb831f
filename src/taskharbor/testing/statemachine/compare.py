"""Runs each verb on a store and on the reference model and compares the answers.

The rules of the state machine are built on `Comparison`. A different answer, or a record
that reads differently afterwards, raises AssertionError with the fields that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    Extended,
    Query,
    QueueInfo,
    Reclaimed,
    Settled,
    Speculated,
)
from taskharbor.errors import LeaseLost, RateLimited, TaskHarborError
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState
from taskharbor.testing.reference import ReferenceModel
from taskharbor.testing.reference.jobs import plain
from taskharbor.testing.reference.roles import Roles
from taskharbor.testing.statemachine.safety import SafetyChecker

T = TypeVar("T")


class Comparison:
    """A driver, the model, and the clock they share."""

    def __init__(self, driver: Driver, now: datetime) -> None:
        self.driver = driver
        self.now = now
        self.model = ReferenceModel()
        self.roles = Roles()
        self.safety = SafetyChecker()
        self.ids: dict[str, None] = {}  # every id ever used, in order
        self.old_leases: list[Lease] = []
        self.errors: Counter[str] = Counter()
        self._last_claim: tuple[datetime, Claim, list[JobRecord]] | None = None

    # ------------------------------------------------------------------ jobs and attempts

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        waits = self.model.waits(jobs, self.now)
        answer = await self._both(
            self.driver.enqueue(jobs, now=self.now), lambda: self.model.enqueue(jobs, self.now)
        )
        if isinstance(answer, RateLimited):
            assert waits.get(answer.queue) == answer.retry_after, f"{answer!r}, but {waits}"
        elif isinstance(answer, list):
            self.safety.enqueued([job.queue for job in jobs], answer, self.now)
        await self._look([job.id for job in jobs])

    async def reserve(self, claim: Claim) -> None:
        taken = await _outcome(self.driver.reserve(claim, now=self.now))
        assert isinstance(taken, Claimed), f"the claim failed: {taken!r}"
        self._compare_claim(claim, taken.jobs, taken.given_up)
        await self._look()

    async def reserve_one(self, queue: str, lease_for: timedelta) -> None:
        claim = Claim(queues=(queue,), worker_id="one-job", lease_for=lease_for)
        taken = await _outcome(self.driver.reserve_one(queue, self.now, lease_for))
        one = taken if isinstance(taken, TaskHarborError) else [] if taken is None else [taken]
        self._compare_claim(claim, one)
        await self._look()

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        answers = await self.driver.settle(settlements, now=self.now)
        self._compare_settled(settlements, answers)
        await self._look([settlement.lease.job_id for settlement in settlements])

    async def settle_one(self, settlement: Settlement, form: Awaitable[Settled]) -> None:
        """A one-job form, which raises what the batch form would return."""
        self._compare_settled([settlement], [await _outcome(form)])
        await self._look([settlement.lease.job_id])

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim) -> None:
        answer = await self.driver.exchange(settlements, claim, now=self.now)
        assert answer.error is None, answer.error
        self._compare_settled(settlements, answer.settled)
        self._compare_claim(claim, answer.claimed, answer.given_up)
        await self._look([settlement.lease.job_id for settlement in settlements])

    async def extend(
        self, leases: Sequence[Lease], lease_for: timedelta, progress: dict[str, Progress]
    ) -> None:
        answers = await self.driver.extend_leases(leases, lease_for, progress=progress, now=self.now)
        self._compare_extended(leases, lease_for, progress, answers)
        await self._look([lease.job_id for lease in leases])

    async def extend_one(self, lease: Lease, lease_for: timedelta) -> None:
        answer = await _outcome(self.driver.extend_lease(lease.job_id, lease.token, self.now, lease_for))
        bare = Lease(lease.job_id, lease.token)
        [expected] = self.model.extend_leases([bare], lease_for, self.now, {}, _tokens([answer]))
        self._agree(answer, expected.lease if isinstance(expected, Extended) else expected)
        if isinstance(expected, Extended):
            self.safety.extended(expected)
        await self._look([lease.job_id])

    # ------------------------------------------------------------------ time and control

    async def reclaim(self, limit: int) -> None:
        answer = await self.driver.reclaim(limit, now=self.now)
        self._agree(answer, self.model.reclaim(limit, self.now))
        await self._look()

    async def promote(self, limit: int) -> None:
        due = self.model.due(self.now)
        moved = (await self.driver.promote(limit, now=self.now)).count
        assert 0 <= moved <= min(limit, due), f"{moved} promoted of {due} due ones, {limit} asked for"
        await self._look()

    async def prune(self, limit: int) -> None:
        """Which of the prunable jobs go first is the store's choice; how many is not."""
        prunable = self.model.prunable(self.now)
        number = await self.driver.prune(limit, now=self.now)
        left = await self.driver.get(list(self.ids), now=self.now)
        gone = {job_id for job_id, job in zip(self.ids, left, strict=True) if job is None}
        copies = {job_id for job_id in gone if self.model.may_be_gone(job_id)}
        chosen = gone & prunable
        assert number <= limit, f"{number} pruned, {limit} asked for"
        assert len(chosen) <= number <= len(chosen | copies), f"{number} pruned, gone are {chosen | copies}"
        assert number == limit or chosen == prunable, f"left over: {prunable - chosen}"
        self.model.prune(chosen | copies)
        await self._look(self.ids)

    async def cancel(self, ids: Sequence[str]) -> None:
        answer = await self.driver.cancel(ids, now=self.now)
        self._agree(answer, self.model.cancel(ids, self.now))
        await self._look(ids)

    async def cancel_waiting(self, queue: str, key: bytes) -> None:
        answer = await self.driver.cancel_waiting(queue, key, now=self.now)
        self._agree(answer, self.model.cancel_waiting(queue, key, self.now))
        await self._look()

    async def requeue(
        self, ids: Sequence[str], edit: Edit = NO_EDIT, reset_counts: bool = True, **when: Any
    ) -> None:
        answer = await self.driver.requeue(ids, edit=edit, reset_counts=reset_counts, now=self.now, **when)
        self._agree(answer, self.model.requeue(ids, self.now, edit, reset_counts, **when))
        await self._look(ids)

    async def delete(self, ids: Sequence[str]) -> None:
        answer = await self.driver.delete(ids, now=self.now)
        self._agree(answer, self.model.delete(ids, self.now))
        await self._look(ids)

    async def configure(self, settings: QueueSettings) -> None:
        answer: QueueRules = await self.driver.configure_queue(settings, now=self.now)
        self._agree(answer, self.model.configure_queue(settings))
        self.safety.configured(settings.queue, answer)
        await self._look()

    async def speculate(self, job_id: str, start: HeadStart | None = None) -> None:
        answer = await self.driver.speculate(job_id, head_start=start, now=self.now)
        copy_id = answer.copy_id if isinstance(answer, Speculated) else ""
        assert copy_id not in self.ids, f"the copy of {job_id} got the known id {copy_id}"
        self._agree(answer, self.model.speculate(job_id, copy_id, self.now, start))
        await self._look([job_id])

    async def hold_role(self, role: str, holder: str, ttl: timedelta) -> None:
        answer = await self.driver.hold_role(role, holder, ttl, now=self.now)
        self._agree(answer, self.roles.hold(role, holder, ttl, self.now, answer.term))

    async def release_role(self, role: str, holder: str) -> None:
        answer = await self.driver.release_role(role, holder, now=self.now)
        self._agree(answer, self.roles.release(role, holder, self.now))

    async def refused(self, verb: Awaitable[object], error: type[TaskHarborError]) -> None:
        """A call that can never succeed, whatever the store holds."""
        answer = await _outcome(verb)
        assert isinstance(answer, error), f"{answer!r} instead of {error.__name__}"
        self._agree(answer, answer)
        await self._look()

    # ------------------------------------------------------------------ looking

    async def find(self, query: Query) -> list[JobRecord]:
        """Every page of a listing."""
        found: list[JobRecord] = []
        page = await self.driver.find(query, now=self.now)
        while True:
            assert len(page.jobs) <= query.limit, f"{len(page.jobs)} on a page of {query.limit}"
            found += page.jobs
            if page.next_cursor is None:
                break
            page = await self.driver.find(
                msgspec.structs.replace(query, cursor=page.next_cursor), now=self.now
            )
        self._compare_listing(found, self.model.find(query, self.now))
        return found

    async def look_at_all(self) -> None:
        """Everything that can be read."""
        await self._look(self.ids)
        found = await self.find(Query(limit=1000))
        expected = self.model.count(self.now)
        assert await self.driver.count(now=self.now) == expected, f"the model counts {expected}"
        self._compare_order(found)
        self._compare_queues(await self.driver.queues(now=self.now))

    def _compare_order(self, found: list[JobRecord]) -> None:
        seqs = [self.model.store_seqs[job_id] for job_id in self.model.jobs]
        assert seqs == sorted(set(seqs)), "seq does not follow the order of enqueues"
        if self._last_claim is not None and self._last_claim[0] == self.now:
            _, claim, taken = self._last_claim
            ready = [job for job in found if job.state is JobState.READY]
            self.safety.left_waiting(
                taken, [job for job in ready if claim.types is None or job.type in claim.types]
            )

    async def _look(self, ids: Iterable[str] = ()) -> None:
        """Compare the records of these ids and of all that the last step changed."""
        touched, self.model.touched = self.model.touched, set()
        self.ids |= dict.fromkeys([*ids, *sorted(touched)])
        wanted = list(dict.fromkeys([*ids, *touched]))
        for job_id, seen in zip(wanted, await self.driver.get(wanted, now=self.now), strict=True):
            self.safety.saw(job_id, seen)
            if seen is None and self.model.may_be_gone(job_id):
                self.model.prune([job_id])
            expected = self.model.get(job_id, self.now)
            if seen is None or expected is None:
                assert seen is expected, f"{job_id}: the store has {seen!r}, the model {expected!r}"
            else:
                self._compare_record(seen, partial(self.model.get, job_id, self.now))
        if not self.driver.capabilities.atomic_across_queues:
            self.model.adopt_order_of_failures()

    # ------------------------------------------------------------------ comparing

    async def _both(self, verb: Awaitable[T], ours: Callable[[], T]) -> T | TaskHarborError:
        answer = await _outcome(verb)
        try:
            expected: T | TaskHarborError = ours()
        except TaskHarborError as error:
            expected = error
        self._agree(answer, expected)
        return answer

    def _agree(self, answer: object, expected: object) -> None:
        self._last_claim = None
        if isinstance(answer, list) and isinstance(expected, list):
            assert len(answer) == len(expected), f"the store says {answer}, the model {expected}"
            for one, other in zip(answer, expected, strict=True):
                self._agree(one, other)
        elif isinstance(answer, TaskHarborError):
            self.errors[type(answer).__name__] += 1
            assert _known_by(answer) == _known_by(expected), (
                f"the store says {answer!r}, the model {expected!r}"
            )
        else:
            assert answer == expected, f"the store says {answer!r}, the model {expected!r}"

    def _compare_settled(
        self, settlements: Sequence[Settlement], answers: Sequence[Settled | TaskHarborError]
    ) -> None:
        self._agree(list(answers), self.model.settle(settlements, self.now))
        for settlement, answer in zip(settlements, answers, strict=True):
            if isinstance(answer, Settled):
                self.safety.ended(settlement.lease.job_id, is_ack=isinstance(settlement, Ack))

    def _compare_extended(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: dict[str, Progress],
        answers: Sequence[Extended | LeaseLost],
    ) -> None:
        tokens = _tokens([answer.lease for answer in answers if isinstance(answer, Extended)])
        expected = self.model.extend_leases(leases, lease_for, self.now, progress, tokens)
        self._agree(list(answers), expected)
        for answer in answers:
            if isinstance(answer, Extended):
                self.safety.extended(answer)

    def _compare_claim(
        self,
        claim: Claim,
        taken: list[JobRecord] | TaskHarborError,
        given_up: Sequence[Reclaimed] | None = None,
    ) -> None:
        """`given_up` is None for a verb that does not answer it."""
        assert isinstance(taken, list), f"the claim failed: {taken!r}"
        tokens = {job.id: job.token or "" for job in taken}
        known = {lease.token for lease in self.old_leases}
        assert not known & set(tokens.values()), "a lease token was handed out twice"
        expected, expected_given_up = self.model.reserve(claim, self.now, tokens)
        self._agree([job.id for job in taken], expected)
        if given_up is not None:
            self._agree(list(given_up), expected_given_up)
        self.safety.granted(taken, claim, self.now)
        for job in taken:
            self._compare_record(job, partial(self.model.whole, job.id))
        self.old_leases += [job.lease for job in taken]
        self._last_claim = (self.now, claim, taken)

    def _compare_queues(self, infos: Sequence[QueueInfo]) -> None:
        expected = self.model.queues(self.now)
        for index, info in enumerate(infos):
            if info.oldest_ready_at in self.model.copies_ready_since(info.queue, self.now):
                expected[index] = msgspec.structs.replace(
                    expected[index], oldest_ready_at=info.oldest_ready_at
                )
        assert infos == expected, f"the store says {infos!r}, the model {expected!r}"

    def _compare_listing(self, found: list[JobRecord], expected: list[JobRecord]) -> None:
        ids = [job.id for job in expected]
        assert [job.id for job in found] == ids, f"listed {[job.id for job in found]}, the model {ids}"
        for job, shown in zip(found, expected, strict=True):
            bare = msgspec.structs.replace(shown, settled_token=None) if shown.settled_token else shown
            assert _plainly(job) == bare, _differences(job, bare)

    def _compare_record(self, seen: JobRecord, ours: Callable[[], JobRecord | None]) -> None:
        seen = _plainly(seen)
        expected = ours()
        if seen != expected and seen.id in self.model.jobs:
            self.model.adopt(seen)
            expected = ours()
        assert seen == expected, _differences(seen, expected)


async def _outcome(verb: Awaitable[T]) -> T | TaskHarborError:
    try:
        return await verb
    except TaskHarborError as error:
        return error


def _tokens(leases: Sequence[object]) -> dict[str, str]:
    """Which token each lease has now: an extension may bring a new one."""
    return {lease.job_id: lease.token for lease in leases if isinstance(lease, Lease)}


def _known_by(error: object) -> tuple[object, ...]:
    """What callers distinguish errors by: class, lease, and the job in the way."""
    leased = error.job_id if isinstance(error, LeaseLost) else None
    return type(error), leased, getattr(error, "existing_id", None)


def _plainly(job: JobRecord) -> JobRecord:
    """With the kept flags in the model's way of writing them."""
    return job if job.update is None else msgspec.structs.replace(job, update=plain(job.update))


def _differences(seen: JobRecord, expected: JobRecord | None) -> str:
    if expected is None:
        return f"the model does not know {seen.id}"
    pairs = {
        name: (getattr(seen, name), getattr(expected, name))
        for name in JobRecord.__struct_fields__
        if getattr(seen, name) != getattr(expected, name)
    }
    return f"job {seen.id}, store and model: {pairs}"
