"""The rules for families: a driver with the capability `workflows` beside `reference/families.py`.

After every verb the driver carries out what it owes, and every job is compared: state, verdict, counts,
notes, attempts. A run ends with a drain: all that a worker or a call can end is ended, and none may be left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Noted, Query, Resolution
from taskharbor.errors import TaskHarborError
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Settlement, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.reference.families import FamilyModel, Kin
from taskharbor.testing.statemachine.fixture import START, UNKNOWN_ID, WRONG_TOKEN, MakeDriver
from taskharbor.testing.statemachine.runner import run_settings, without_constants_of_modules

SECOND = timedelta(seconds=1)
QUEUES = ("left", "right")
RULES_PER_RUN = 50
MOST_JOBS = 60

MUST_MEET = (
    *(f"released {when}" for when in ("success", "over", "failure")),
    *(f"stop {why}" for why in ("cancel", "stopped", "skipped", "deadline", "fail_fast")),
    "verdict completed completed parent",
    "verdict completed failed parent",
    "verdict failed failed parent",
    "verdict cancel cancelled parent",
    "verdict stopped cancelled parent",
    "verdict deadline failed parent",
    "verdict fail_fast failed parent",
    "park",
    "resumed",
    "event",
    "event dropped",
    "reopened",
    "second cancel",
    "pruned",
    *(
        f"error {name}"
        for name in ("BrokenBond", "NotAllowedInState", "LeaseMismatch", "ParkRefused", "JobNotInflight")
    ),
)
"""What a run must meet: every row of the table of verdicts, every stop, release and refusal."""

WHICH = st.integers(0, 40)
_BONDS = st.fixed_dictionaries(
    {},
    optional={
        "when": st.sampled_from(["over", "failure"]),
        "done_by": st.sampled_from(["call", "children"]),
        "tolerate": st.sampled_from([1, None]),
        "fail_fast": st.just(True),
        "optional": st.just(True),
        "within": st.sampled_from([3 * SECOND, 8 * SECOND]),
    },
)
_ENDS: dict[str, Callable[[Lease], Settlement]] = {
    "ack": Ack,
    "result": lambda lease: Ack(lease, b"done"),
    "fail": lambda lease: Fail(lease, "broken"),
    "retry": lambda lease: Retry(lease, None, "again"),
    "later": lambda lease: Retry(lease, 2 * SECOND, "again"),
    "stalled": Stalled,
    "cancelled": Cancelled,
    "release": Release,
}
ENDS = st.sampled_from(["ack"] * 5 + ["fail"] * 3 + list(_ENDS))


class FamilyMachine(RuleBasedStateMachine):
    """One run: an empty store, an empty model, and a clock that the rules move."""

    make_driver: ClassVar[MakeDriver]
    met: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.driver: Driver = type(self).make_driver()
        self.model = FamilyModel()
        self.now = START
        self.entropy = Entropy(1)
        self.stale: list[Lease] = []
        self.made = 0
        self.is_broken = False
        self.loop.run_until_complete(self.driver.open())

    def teardown(self) -> None:
        try:
            if not self.is_broken:
                self.loop.run_until_complete(self._drain())
        finally:
            self.met.update(self.model.met)
            self.loop.run_until_complete(self.driver.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def _do(self, step: Coroutine[Any, Any, object]) -> None:
        self.is_broken = True
        self.met["steps"] += 1
        self.loop.run_until_complete(step)
        self.loop.run_until_complete(self._compare())
        self.is_broken = False

    # ------------------------------------------------------------------ rules: in

    @initialize(count=st.integers(1, 3))
    def fill(self, count: int) -> None:
        self._do(self._keep_for_a_second())
        root = self._job(done_by="children")
        self._do(self._enqueue([root, *(self._job(parent=root.id) for _ in range(count))]))

    @rule(bonds=_BONDS, kids=st.integers(0, 3), child=_BONDS, is_chain=st.booleans())
    def enqueue_family(self, bonds: Any, kids: int, child: Any, is_chain: bool) -> None:
        root = self._job(**_without_order(bonds))
        jobs = [root]
        for _ in range(kids):
            after = (jobs[-1].id,) if is_chain and len(jobs) > 1 else ()
            jobs.append(self._job(parent=root.id, after=after, **_with_order(child, after)))
        self._do(self._enqueue(jobs))

    @rule(which=WHICH, members=st.integers(1, 3), fail_fast=st.booleans(), last=st.sampled_from(["", "over"]))
    def enqueue_group(self, which: int, members: int, fail_fast: bool, last: str) -> None:
        """A group with the jobs of `then`, `on_failure` and `always`."""
        group = self._job(done_by="children", fail_fast=fail_fast, tolerate=which % 2)
        kids = [self._job(parent=group.id, optional=which % 5 == 0) for _ in range(members)]
        names = tuple(kid.id for kid in kids)
        then = [self._job(parent=group.id, after=names, when=when) for when in ("success", "failure")]
        if last:
            then.append(self._job(parent=group.id, after=names, when="over"))
        self._do(self._enqueue([group, *kids, *then]))

    @rule(
        which=WHICH, bonds=_BONDS, count=st.integers(0, 2), is_vouched=st.booleans(), is_event=st.booleans()
    )
    def add_child(self, which: int, bonds: Any, count: int, is_vouched: bool, is_event: bool) -> None:
        """To any job, with some of its children before it; perhaps by the lease of a running job."""
        by = self._lease(which) if is_vouched else None
        parent = by.job_id if by is not None and which % 3 else self._any(which)
        siblings = [kid.id for kid in self.model.children(parent) if not kid.is_gone]
        after = tuple(siblings[-count:]) if count else ()
        fields = _with_order(bonds, after) | ({"done_by": "call", "optional": True} if is_event else {})
        self._do(self._enqueue([self._job(parent=parent, after=after, **fields)], by))

    @rule(which=WHICH, bonds=_BONDS)
    def add_after(self, which: int, bonds: Any) -> None:
        """After any job: as its sibling, or as a stranger, who is refused."""
        other = self.model.jobs.get(self._any(which))
        parent = other.bonds.parent if other is not None and which % 7 else None
        after = (self._any(which),)
        self._do(self._enqueue([self._job(parent=parent, after=after, **_with_order(bonds, after))]))

    # ------------------------------------------------------------------ rules: attempts

    @rule(limit=st.integers(1, 4), queues=st.sampled_from([QUEUES, QUEUES[::-1], QUEUES[:1]]))
    def claim(self, limit: int, queues: tuple[str, ...]) -> None:
        self._do(self._claim(limit, queues))

    @rule(which=WHICH, end=ENDS, is_stale=st.sampled_from([False] * 5 + [True]))
    def settle(self, which: int, end: str, is_stale: bool) -> None:
        self._do(self._settle([_ENDS[end](self._lease(which, is_stale=is_stale))]))

    @rule(end=ENDS, limit=st.integers(1, 4))
    def claim_and_settle(self, end: str, limit: int) -> None:
        self._do(self._claim(limit, QUEUES))
        self._do(self._settle([_ENDS[end](self._lease(0))]))

    @rule(which=WHICH, count=st.integers(0, 3), is_sleep=st.booleans(), name=st.sampled_from("abc"))
    def park(self, which: int, count: int, is_sleep: bool, name: str) -> None:
        lease = self._lease(which)
        kids = [kid.id for kid in self.model.children(lease.job_id) if not kid.is_gone]
        after = tuple(kids[-count:]) if count and kids else (self._any(which),)
        notes = (Note(name, b"park"),)
        park = Park(lease, delay=SECOND, notes=notes) if is_sleep else Park(lease, after, notes=notes)
        self._do(self._settle([park]))

    @rule(which=WHICH, bonds=_BONDS, is_event=st.booleans())
    def spawn_and_park(self, which: int, bonds: Any, is_event: bool) -> None:
        """What `ctx.acall` and `ctx.aevent` do."""
        self._do(self._claim(4, QUEUES))
        lease = self._lease(which)
        fields = _without_order(bonds) | ({"done_by": "call", "optional": True} if is_event else {})
        child = self._job(parent=lease.job_id, **fields)
        self._do(self._enqueue([child], lease))
        self._do(self._settle([Park(lease, (child.id,))]))

    @rule(which=WHICH, name=st.sampled_from("abc"), is_stale=st.sampled_from([False, False, True]))
    def note(self, which: int, name: str, is_stale: bool) -> None:
        """Twice under one name: the first stays."""
        self._do(self._claim(4, QUEUES))
        for data in (b"1", b"2"):
            self._do(self._note(Note(name, data, lease=self._lease(which, is_stale=is_stale))))

    # ------------------------------------------------------------------ rules: control and time

    @rule(which=WHICH, is_error=st.booleans())
    def resolve(self, which: int, is_error: bool) -> None:
        calls = [job.id for job in self.model.jobs.values() if job.bonds.done_by == "call"]
        job_id = calls[-1 - which % len(calls)] if calls and which % 7 else self._any(which)
        result = b"1" if which % 2 else b"2"  # so that a second answer to an event differs from the first
        own: Any = {"error": "no"} if is_error else {"result": result}
        self._do(self._resolve(Resolution(id=job_id, **own)))

    @rule(which=WHICH)
    def send_first(self, which: int) -> None:
        """An event that comes before its waiter."""
        event = self._job(parent=self._any(which), done_by="call", optional=True)
        self._do(self._resolve(Resolution(id=event.id, result=b"1", new=event)))

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self._do(self._cancel(self._any(which)))

    @rule(which=WHICH)
    def cancel_parent(self, which: int) -> None:
        """Of a family that is open, perhaps for the second time."""
        live = [job.id for job in self.model.jobs.values() if not job.is_over and self.model.is_open(job.id)]
        self._do(self._cancel(live[which % len(live)] if live else UNKNOWN_ID))

    @rule(which=WHICH, is_over=st.sampled_from([True, True, False]))
    def requeue(self, which: int, is_over: bool) -> None:
        over = [job.id for job in self.model.jobs.values() if job.is_over and not job.is_gone]
        self._do(self._requeue(over[which % len(over)] if over and is_over else self._any(which)))

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        self._do(self._delete(self._any(which)))

    @rule(limit=st.integers(1, 8))
    def prune(self, limit: int) -> None:
        """A second later, so that what is over now is due."""
        due = self.model.due()
        self.now += SECOND
        self._do(self._nothing())
        self._do(self._prune(limit, due))

    @rule(span=st.sampled_from([SECOND, 2 * SECOND, 3 * SECOND, 9 * SECOND]), is_reclaim=st.booleans())
    def advance(self, span: timedelta, is_reclaim: bool) -> None:
        self.now += span
        self._do(self._nothing())  # deadlines first: of two things at one instant the store chooses the order
        if is_reclaim:
            self._do(self._reclaim())

    @rule(which=WHICH)
    def resolve_at_the_deadline(self, which: int) -> None:
        """Before any sweep has looked at it."""
        due = [job for job in self.model.jobs.values() if not job.is_over and job.deadline is not None]
        due = [job for job in due if job.bonds.done_by == "call" and (job.deadline or self.now) > self.now]
        if due:
            job = due[which % len(due)]
            self.now = job.deadline or self.now
            self._do(self._resolve(Resolution(id=job.id, result=b"late")))

    @rule(which=WHICH)
    def list_children(self, which: int) -> None:
        self._do(self._list(self._any(which)))

    # ------------------------------------------------------------------ verbs on both sides

    async def _nothing(self) -> None:
        pass

    async def _enqueue(self, jobs: Sequence[NewJob], by: Lease | None = None) -> None:
        if len(self.model.jobs) + len(jobs) > MOST_JOBS:
            return
        answers = await _outcome(self.driver.enqueue(jobs, by=by, now=self.now))
        if isinstance(answers, list):
            answers = [answer.result.value for answer in answers]
        self._agree(answers, self.model.enqueue(jobs, by, self.now), jobs)

    async def _claim(self, limit: int, queues: tuple[str, ...]) -> None:
        claim = Claim(queues=queues, worker_id="w", limit=limit, lease_for=5 * SECOND)
        taken = (await self.driver.reserve(claim, now=self.now)).jobs
        self.model.reclaim(queues, self.now)
        self.model.sweep(self.now)
        ready = [job.id for job in self.model.ready(queues, self.now)]
        ids = [job.id for job in taken]
        assert ids == ready[:limit], f"claimed {ids}, and {ready} were ready"
        for job in taken:
            self._check_handed_out(job)
            self.model.claim(job.id, job.token or "", "w", self.now + 5 * SECOND)
            self.stale.append(job.lease)

    def _check_handed_out(self, job: JobRecord) -> None:
        kept = {name: data for name, (data, _) in self.model.jobs[job.id].notes.items()}
        assert {note.name: note.data for note in job.notes} == kept, f"{job.id} came with {job.notes}"

    async def _settle(self, items: Sequence[Settlement]) -> None:
        answers = await self.driver.settle(items, now=self.now)
        self._agree([_state(answer) for answer in answers], self.model.settle(items, self.now), items)

    async def _note(self, note: Note) -> None:
        [answer] = await self.driver.note([note], now=self.now)
        self._agree(
            answer.data if isinstance(answer, Noted) else answer, self.model.note(note, self.now), note
        )

    async def _resolve(self, item: Resolution) -> None:
        if item.new is not None and len(self.model.jobs) >= MOST_JOBS:
            return
        [answer] = await self.driver.resolve([item], now=self.now)
        self._agree(_state(answer), self.model.resolve(item, self.now), item)

    async def _cancel(self, job_id: str) -> None:
        [answer] = await self.driver.cancel([job_id], now=self.now)
        expected = self.model.cancel(job_id, self.now)
        assert answer.result.value == expected, f"{job_id}: {answer}, the model {expected}"

    async def _requeue(self, job_id: str) -> None:
        [answer] = await self.driver.requeue([job_id], now=self.now)
        self._agree(_state(answer), self.model.requeue(job_id, self.now), job_id)

    async def _delete(self, job_id: str) -> None:
        [answer] = await self.driver.delete([job_id], now=self.now)
        self._agree(answer if _is_error(answer) else None, self.model.delete(job_id), job_id)

    async def _keep_for_a_second(self) -> None:
        kept = Retention(completed=SECOND, failed=SECOND, cancelled=SECOND)
        for queue in QUEUES:
            await self.driver.configure_queue(QueueSettings(queue=queue, retention=kept), now=self.now)

    async def _prune(self, limit: int, due: set[str]) -> None:
        """Which families go first is the store's choice; what may go, and how many, is not."""
        ids = [job.id for job in self.model.jobs.values() if not job.is_gone]
        number = await self.driver.prune(limit, now=self.now)
        left = await self.driver.get(ids, now=self.now)
        gone = {job_id for job_id, job in zip(ids, left, strict=True) if job is None}
        assert len(gone) == number <= limit, f"{number} pruned, {limit} asked for, gone are {gone}"
        self.model.prune(gone, due, is_all=number < limit)

    async def _reclaim(self) -> None:
        await self.driver.reclaim(now=self.now)
        self.model.reclaim(None, self.now)

    async def _list(self, parent: str) -> None:
        page = await self.driver.find(Query(parent=parent, limit=1000), now=self.now)
        expected = [kid.id for kid in self.model.children(parent) if not kid.is_gone]
        assert [job.id for job in page.jobs] == expected, f"children of {parent}: {page.jobs}"

    def _agree(self, answer: object, expected: object, about: object) -> None:
        """Errors by their class. The store's own state of an answered item is compared afterwards, too."""
        store, model = _names(answer), _names(expected)
        self.model.met.update(f"error {name}" for name in store)
        assert store == model, f"{about}: the store says {store}, the model {model}"

    # ------------------------------------------------------------------ comparing

    async def _compare(self) -> None:
        while (await self.driver.promote(now=self.now)).count:
            pass
        self.model.sweep(self.now)
        ids = list(self.model.jobs)
        for job_id, seen in zip(ids, await self.driver.get(ids, now=self.now), strict=True):
            ours = self.model.jobs[job_id]
            assert (seen is None) == ours.is_gone, f"{job_id} is {'gone' if seen is None else 'there'}"
            if seen is not None:
                self._compare_one(seen, ours)

    def _compare_one(self, seen: JobRecord, ours: Kin) -> None:
        family = seen.family
        counts = (0,) * 5
        if family is not None:
            counts = (family.total, family.open, family.failed, family.excused, family.cancelled)
        store = {
            "state": seen.state,
            "kind": _kind(seen.failure_kind, seen.state),
            "counts": counts,
            "attempts": (seen.starts, seen.attempts, seen.stalls),
            "is asked to stop": seen.cancel_requested and seen.state is JobState.RUNNING,
            "is stopping": bool(family and family.stopping) and not seen.state.is_terminal,
            "result": seen.result,
            "notes": {note.name: (note.data, note.at) for note in seen.notes},
            "is over": seen.finished_at is not None,
            "deadline": seen.bonds.deadline if seen.bonds is not None else None,
        }
        model = {
            "state": self.model.state_of(ours, self.now),
            "kind": _kind(ours.kind, ours.state),
            "counts": self.model.counts(ours.id),
            "attempts": (ours.starts, ours.attempts, ours.stalls),
            "is asked to stop": ours.cancel_requested and ours.state is JobState.RUNNING,
            "is stopping": ours.stopping is not None and not ours.is_over,
            "result": ours.result,
            "notes": ours.notes,
            "is over": ours.is_over,
            "deadline": ours.deadline,
        }
        different = {name: (store[name], model[name]) for name in store if store[name] != model[name]}
        assert not different, f"{ours.id}, store and model: {different}"
        if ours.kind == "child_failed" and ours.is_over:
            assert (seen.last_error or "").startswith(ours.error or "?"), seen.last_error

    async def _drain(self) -> None:
        """End everything that can be ended: then nothing may be left that waits for others."""
        left: list[Kin] = []
        for _ in range(MOST_JOBS):
            self.now += 10 * SECOND
            await self._compare()
            await self._claim(1000, QUEUES)
            for job_id in [job.id for job in self.model.jobs.values() if job.state is JobState.RUNNING]:
                await self._settle([Ack(self._lease_of(job_id))])
            for job in list(self.model.jobs.values()):
                if job.bonds.done_by == "call" and not job.is_over and not job.is_done:
                    await self._resolve(Resolution(id=job.id, result=b"end"))
            await self._compare()
            left = [job for job in self.model.jobs.values() if not job.is_over]
            if not left:
                return
        raise AssertionError(f"these never end: {[(job.id, job.state, job.waits) for job in left]}")

    # ------------------------------------------------------------------ choices

    def _job(self, **fields: Any) -> NewJob:
        bonds = Bonds(**{name: value for name, value in fields.items() if value not in ((), None, "")})
        if fields.get("tolerate", 0) is None:
            bonds = msgspec.structs.replace(bonds, tolerate=None)
        self.made += 1
        return NewJob(
            id=self.entropy.job_id(self.now),
            type="t",
            queue=QUEUES[self.made % 3 == 2],
            max_stalls=int(self.made % 4 == 1),
            bonds=bonds if fields else None,
        )

    def _any(self, which: int) -> str:
        ids = list(self.model.jobs)
        return ids[-1 - which % len(ids)] if ids and which % 23 != 22 else UNKNOWN_ID

    def _lease(self, which: int, *, is_stale: bool = False) -> Lease:
        running = [job.id for job in self.model.jobs.values() if job.state is JobState.RUNNING]
        if is_stale and self.stale and which % 2:
            return self.stale[-1 - which % len(self.stale)]
        if not running:
            return Lease(UNKNOWN_ID, WRONG_TOKEN)
        lease = self._lease_of(running[which % len(running)])
        return msgspec.structs.replace(lease, token=WRONG_TOKEN) if is_stale else lease

    def _lease_of(self, job_id: str) -> Lease:
        job = self.model.jobs[job_id]
        return Lease(job_id, job.token or WRONG_TOKEN, worker_id=job.worker_id, queue=job.queue)


def _with_order(bonds: dict[str, Any], after: tuple[str, ...]) -> dict[str, Any]:
    return bonds if after else _without_order(bonds)


def _without_order(bonds: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bonds.items() if name != "when"}


def _kind(kind: str | None, state: JobState) -> str | None:
    """Of a failure, and whether others ended a cancelled job. Both reasons at once: the store may choose."""
    if state is JobState.CANCELLED:
        return "by others" if kind in ("skipped", "stopped") else None
    return kind if state is JobState.FAILED else None


def _is_error(answer: object) -> bool:
    return isinstance(answer, TaskHarborError)


def _state(answer: Any) -> object:
    return answer if _is_error(answer) else answer.state


def _names(answers: object) -> list[str]:
    return [_name_of(one) for one in (answers if isinstance(answers, list) else [answers])]


def _name_of(item: object) -> str:
    if isinstance(item, type):
        return item.__name__
    return type(item).__name__ if isinstance(item, TaskHarborError) else str(item)


async def _outcome(verb: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await verb
    except TaskHarborError as error:
        return error


def hold_families_to_the_model(
    make_driver: MakeDriver, *, steps: int, seed_number: int = 0, least: int = 0, shrink: bool = True
) -> Counter[str]:
    """Run at least so many steps; raises AssertionError at the first difference or for a blind spot."""
    met: Counter[str] = Counter()
    fields = {"make_driver": staticmethod(make_driver), "met": met}
    machine = type("FamilyMachine", (FamilyMachine,), fields)
    runs = settings(
        run_settings(steps, shrink=shrink),
        max_examples=steps // RULES_PER_RUN + 1,
        stateful_step_count=RULES_PER_RUN,
    )
    with without_constants_of_modules():
        run_state_machine_as_test(seed(seed_number)(machine), settings=runs)
    missed = {name: met[name] for name in MUST_MEET if met[name] < least}
    assert not missed, f"met fewer than {least} times: {missed}"
    return met
