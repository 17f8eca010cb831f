"""The driver contract: every verb, and its promise. A store is supported when it keeps these.

A driver stores and moves; the core decides. Every verb below is one atomic step of the store.
The public verb checks that the driver is open and that its arguments make sense, and hands over
to the `do_` method of the same name, which is what a driver writes. So the order of errors is the
same everywhere:

    closed → invalid argument → not running or unknown: JobNotInflight
           → another token: LeaseMismatch → run out: LeaseExpired

On any error nothing changes, not even `updated_at` or `version`. The last three come back as
values in batches, one per item, and one item never affects another.

**Time.** `now=None` means that the store's own clock decides; an explicit `now` is the only clock
that counts. `run_at <= now` is due, `lease_expires_at <= now` is expired. Precision: 1 µs.
**Looking.** A scheduled job whose time has come reads `ready`, promoted or not. An expired lease
reads `running` until it is reclaimed. Tokens are never shown.
**Versions.** Every accepted change of a job adds 1 to its `version` and stamps `updated_at`;
promotion changes nothing that can be seen, so it is no change. Every answer to a write carries
`(at, version)`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Self

from msgspec.structs import replace

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.cursor import check_query
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
    Claimed,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Noted,
    Page,
    Promoted,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    Resolution,
    Resolved,
    RoleLease,
    Settled,
    Speculated,
    Wakeups,
    check_claim,
    check_resolutions,
)
from taskharbor.drivers.migrations import MigrationLedger
from taskharbor.drivers.one_job import OneJobForms
from taskharbor.drivers.orphans import Orphans
from taskharbor.drivers.outage import Outage
from taskharbor.drivers.steps import DriverSteps
from taskharbor.errors import (
    BrokenBond,
    ConflictError,
    DriverClosed,
    InvalidArgument,
    JobNotFound,
    LeaseLost,
    StoreRefused,
    WrongQueue,
)
from taskharbor.model.checks import (
    MAX_BATCH,
    MAX_PAYLOAD,
    check_count,
    check_id,
    check_ids,
    check_instant,
    check_key,
    check_lease_for,
    check_leases,
    check_name,
    check_new_jobs,
    check_notes,
    check_ttl,
    check_when,
    check_worker_id,
)
from taskharbor.model.clock import Clock, SystemClock, utc
from taskharbor.model.edit import NO_EDIT, Edit, check_edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Note, Progress, without_payload
from taskharbor.model.logbook import LogEntry, LogKey, check_log, distinct
from taskharbor.model.presence import (
    Sample,
    TypeInfo,
    WorkerInfo,
    WorkerReport,
    check_report,
    check_samples,
)
from taskharbor.model.queue import QueueRules, QueueSettings, check_settings
from taskharbor.model.schedule import Schedule, StoredSchedule, check_schedule
from taskharbor.model.settlement import Ack, Settlement, check_settlements
from taskharbor.model.speculation import HeadStart, check_head_start

NO_PROGRESS: Mapping[str, Progress] = {}


class Driver(OneJobForms, DriverSteps):
    """A handle on one store. It belongs to the event loop that opened it; `another()` makes more."""

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.capabilities = capabilities
        """What this store can do. If only the server knows, `do_open` replaces it."""
        self.clock: Clock = clock or SystemClock()
        self.entropy = entropy or Entropy()
        self.max_payload = max_payload
        self.orphans = Orphans()
        """Entries without a record that verbs of this handle dropped, until they are counted."""
        self.outage = Outage(self.clock)
        """Where failed calls are reported, shared by all handles of a store: see `of_the_same_store`."""
        self.only_looks = False
        """Opened by `open_to_look`: verbs that may change something are refused before they begin."""
        self._is_open = False

    # ------------------------------------------------------------------ open and close

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def open(self) -> Self:
        """Make the store ready for use. Opening an open driver does nothing."""
        return await self._open_to(only_looks=False)

    async def open_unmigrated(self) -> Self:
        """Open with any schema, to list pending migrations and to migrate; nothing else works then.

        A store that migrates itself at open just opens.
        """
        return await self.open()

    async def open_to_look(self) -> Self:
        """Open read-only: nothing is created, migrated or written, and only reading works then.

        Every verb that may change something raises StoreRefused. A driver whose `do_open` would write
        looks at `self.only_looks` first.

        Raises:
            StoreRefused: there is no store of ours.
            SchemaOutOfDate: there is an older one.
        """
        return await self._open_to(only_looks=True)

    async def _open_to(self, *, only_looks: bool) -> Self:
        if not self._is_open:
            self.only_looks = only_looks
            await self.do_open()
            self._is_open = True
        return self

    async def close(self) -> None:
        """Close the store. Leases stay as they are. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            await self.do_close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def check_tx(self, tx: Any) -> None:
        """Called before the handle is opened for an enqueue with `tx`; raises InvalidArgument if bad."""

    @abstractmethod
    def another(self) -> Driver:
        """A second handle on the same store, not opened yet: for another thread, loop or process."""

    def of_the_same_store(self, other: Driver) -> Self:
        """Called last by `another()`: an outage is logged once, whichever handle meets it."""
        self.outage = other.outage
        return self

    # ------------------------------------------------------------------ jobs in

    async def enqueue(
        self, jobs: Sequence[NewJob], *, by: Lease | None = None, now: datetime | None = None
    ) -> list[Enqueued]:
        """Store each job as ready, scheduled or blocked: all of one call, or nothing.

        Looked at in this order: a known id, or a known idempotency key of its queue, answers `duplicate` and
        changes nothing. A key that waits or is blocked absorbs the job by its `update` flags: `updated`. A
        key that runs makes it the blocked job of that key: `blocked`. Otherwise it is `created`. Jobs of one
        call apply in list order. The id of an absorbed job stays known as an alias of the job that absorbed
        it.

        Bonds (capability `workflows`): a child of a parent that is `duplicate` in this call is so too. A job
        that waits for others answers `blocked`. Children are counted at their parent in the same step; a
        parent is judged at the end of the call. `by` is a lease that must hold: of the parent of each job,
        or of a child of that parent.

        Raises:
            InvalidArgument: a job is malformed, or the batch can never fit its enqueue rate.
            LeaseLost: `by` does not hold.
            BrokenBond: a parent or dependency is unknown, keyed, no sibling, over or being stopped.
            RateLimited: over the budget of a queue or of the harbor. Duplicates spend nothing.
        """
        now = self._check_change(now)
        if not jobs:
            return []
        has_bonds = check_new_jobs(jobs, now or self.clock.now(), self.max_payload)
        if not has_bonds and by is None:
            return await self.do_enqueue(jobs, now)
        self._check_workflows()
        return await self.do_enqueue_family(jobs, by, now)

    def enqueue_blocking(
        self, jobs: Sequence[NewJob], *, now: datetime | None = None, tx: Any = None
    ) -> list[Enqueued]:
        """The same promise for blocking callers, from any thread (capability `blocking_enqueue`).

        With `tx`, the caller's own connection, the jobs exist if and only if its transaction
        commits (capability `tx`); the caller commits. An async connection is refused.
        """
        now = self._check_change(now)
        if not self.capabilities.blocking_enqueue:
            raise InvalidArgument("this store has no blocking enqueue; use enqueue()")
        if tx is not None:
            self._check_joins()
        if not jobs:
            return []
        if check_new_jobs(jobs, now or self.clock.now(), self.max_payload):
            self._check_workflows()
        return self.do_enqueue_blocking(jobs, now, tx)

    async def enqueue_in(
        self, jobs: Sequence[NewJob], *, tx: Any, now: datetime | None = None
    ) -> list[Enqueued]:
        """The same promise inside the transaction of `tx`, for async callers (capability `tx`).

        `tx` may be an async connection of the caller's, or a blocking one.
        """
        now = self._check_change(now)
        self._check_joins()
        if not jobs:
            return []
        if check_new_jobs(jobs, now or self.clock.now(), self.max_payload):
            self._check_workflows()
        return await self.do_enqueue_in(jobs, tx, now)

    def enqueue_on(
        self, connection: Any, jobs: Sequence[NewJob], *, now: datetime | None = None
    ) -> list[Enqueued]:
        """The same promise on the caller's own blocking connection (capability `tx`).

        The driver need not be open, and stays as it is: no connection of its own is made, nothing is
        migrated. The jobs are part of the transaction that is open there; without one they are
        stored at once.

        Raises:
            SchemaOutOfDate: the database has no tables of ours, or older ones.
        """
        self._refuse_if_it_only_looks()
        self._check_joins()
        now = _checked_now(now)
        if not jobs:
            return []
        if check_new_jobs(jobs, now or self.clock.now(), self.max_payload):
            self._check_workflows()
        return self.do_enqueue_on(connection, jobs, now)

    async def ring(self, queues: Sequence[str]) -> None:
        """Wake workers that wait for jobs of these queues, after a commit that the store did not see.

        A hint, as every wake-up: nothing is stored, and without it workers find the jobs when they poll.
        A store without wake-ups does nothing.
        """
        self._check_change(None)
        for queue in queues:
            check_name(queue, "queue")
        if queues:
            await self.do_ring(tuple(dict.fromkeys(queues)))

    # ------------------------------------------------------------------ attempts

    async def reserve(self, claim: Claim, *, now: datetime | None = None) -> Claimed:
        """Hand out up to `claim.limit` jobs, each under a fresh lease; maybe none.

        One step reclaims up to 100 of the oldest expiries of the claimed queues, promotes what is due, and
        picks. It honours pause, execute rates and max_running of queue and harbor. The order is: queues as
        listed, within a queue lanes as listed, within a lane priority descending, then `run_at` (else
        `created_at`), then `seq`. Never a job with a valid lease. A speculative copy only while its original
        runs, and never for the worker that runs that one, or ran it when the copy was made. The slower
        workers do not get it during its head start. A gate that says no changes no counter; a rate is spent
        only for jobs handed out.

        A handed-out job has a new token, a fence above all its earlier ones, `starts` + 1, no
        progress and no settled_token. `given_up` has the jobs that ended here because their stalls
        are used up; a claim that fails may have given up some without a report.

        Raises:
            InvalidLeaseDuration: lease_for is not above zero.
        """
        now = self._check_change(now)
        check_claim(claim)
        return await self.do_reserve(claim, now)

    async def extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        *,
        progress: Mapping[str, Progress] = NO_PROGRESS,
        now: datetime | None = None,
    ) -> list[Extended | LeaseLost]:
        """Extend each lease, counted from `now`, shorter or longer; answers if a cancel was requested.

        `progress`, by job id, is stored with the lease. The answer carries the lease to use from
        now on. An expired lease is never revived.
        """
        now = self._check_change(now)
        check_lease_for(lease_for)
        check_leases(leases)
        return await self.do_extend_leases(leases, lease_for, progress, now) if leases else []

    async def settle(
        self, settlements: Sequence[Settlement], *, now: datetime | None = None
    ) -> list[Settled | LeaseLost]:
        """End attempts; per item the stored state, or the lease error.

        Ack → completed. Retry → attempts + 1 and ready, or scheduled by its delay. Fail →
        attempts + 1 and failed, with a failure job in the queue's fail_queue if one is set.
        Stalled → what reclaim does. Cancelled → cancelled. Release → waiting again, nothing
        counted; without a delay its run_at and so its place stay. A cancel request beats all of
        them: the state is `cancelled`, no attempt or stall is counted, no result kept.

        In the same step the job blocked behind the same key is released if the running one is over. If that
        waits again, the two are merged. The copy of a job ends with it, and the Ack of a copy completes its
        original. `settled_token` remembers the token, so that a repeat after a lost reply, answered
        JobNotInflight, can be distinguished from a loss. The history keeps the last ten attempts that were
        not a first-try success.

        Park (capability `workflows`) → blocked until the named children are over, or scheduled by its delay.
        If they are over already → ready. BrokenBond for a job that is not its child. A parent whose own work
        ends while children are open is `blocked` until they are over. Consequences for other jobs come behind
        all items of a call.
        """
        now = self._check_change(now)
        if check_settlements(settlements, now or self.clock.now(), self.max_payload):
            self._check_workflows()
        return await self.do_settle(settlements, now) if settlements else []

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim, *, now: datetime | None = None
    ) -> Exchanged:
        """`settle`, then `reserve`, at the same `now` and in one round trip.

        Arguments are checked first. When the claim fails after that, its error comes back with the
        answers of the settlements, never instead of them.
        """
        now = self._check_change(now)
        check_claim(claim)
        if check_settlements(settlements, now or self.clock.now(), self.max_payload):
            self._check_workflows()
        return await self.do_exchange(settlements, claim, now)

    async def note(
        self, notes: Sequence[Note], *, now: datetime | None = None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        """Keep notes of running jobs, each under its lease, once per name (capability `workflows`).

        A known name keeps what it has, which is the answer. A new note is progress: attempts and stalls start
        at 0 again. BrokenBond: over 1,000 notes or 4 MiB of a job, or a job with a key.
        """
        now = self._check_change(now)
        self._check_workflows()
        check_notes(notes, self.max_payload)
        if any(note.lease is None for note in notes):
            raise InvalidArgument("a note is written under a lease: give it one")
        return await self.do_note(notes, now) if notes else []

    async def resolve(
        self, items: Sequence[Resolution], *, now: datetime | None = None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        """End the own work of jobs that are done by a call, each for itself (capability `workflows`).

        The first call wins. The same result again is answered as if it were the first. Refused with
        NotAllowedInState: over, past its deadline, done by others. `new` stores the job if it is not there.
        """
        now = self._check_change(now)
        self._check_workflows()
        check_resolutions(items, now or self.clock.now(), self.max_payload)
        return await self.do_resolve(items, now) if items else []

    def transaction(
        self,
        lease: Lease | Callable[[], Lease],
        *,
        result: bytes | None = None,
        now: datetime | None = None,
        on_settled: Callable[[Settled], None] | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """A transaction of the store for the caller's own writes, whose commit carries the Ack of a lease.

        Both happen, or neither (capability `tx`). The block gets a connection with the transaction begun, and
        leaves BEGIN, COMMIT and ROLLBACK alone. When it ends, the lease is checked, the job is settled and
        everything is committed. When it raises, all is undone and the lease stays as it was. `on_settled`
        gets the answer once it is committed.

        Raises:
            LeaseLost: the lease no longer holds; everything was undone.
        """
        now = self._check_change(now)
        if not self.capabilities.tx:
            raise InvalidArgument("this store has no transaction to share; guard your writes with the fence")

        def ack() -> Ack:
            return Ack(lease() if callable(lease) else lease, result)

        return self.do_transaction(ack, now, on_settled or (lambda _: None))

    # ------------------------------------------------------------------ time

    async def reclaim(self, limit: int = 100, *, now: datetime | None = None) -> list[Reclaimed]:
        """Deal with up to `limit` expired leases of all queues, oldest first.

        Each is handled exactly once however many sweepers there are. Cancel requested → cancelled. stalls + 1
        ≥ max_stalls > 0 → failed, kind `stalled`. A job blocked behind its key → merged. Otherwise ready with
        run_at emptied. Attempts are left alone. Of what is owed to families it carries out what follows from
        these leases; claims and `promote` do the rest.
        """
        now = self._check_change(now)
        check_count(limit, "limit", least=1, most=MAX_BATCH)
        return await self.do_reclaim(limit, now)

    async def promote(self, limit: int = 1000, *, now: datetime | None = None) -> Promoted:
        """Move up to `limit` due jobs of all queues to the ready ones. Correct without it, faster with it.

        Copies are jobs of their own here. What is owed to families is carried out and counted, too: a count
        of 0 means that nothing is owed.
        """
        now = self._check_change(now)
        check_count(limit, "limit", least=1, most=MAX_BATCH)
        return await self.do_promote(limit, now)

    async def prune(self, limit: int = 1000, *, now: datetime | None = None) -> int:
        """Forget up to `limit` finished jobs whose retention is over, with their aliases.

        Copies are jobs of their own here, and go by their own retention.
        Idempotency keys go 24 hours after the end of their job, also when the job itself is long gone.
        So do, not counted, up to `limit` entries of the logbook that are past their `until`.
        """
        now = self._check_change(now)
        check_count(limit, "limit", least=1, most=MAX_BATCH)
        return await self.do_prune(limit, now)

    # ------------------------------------------------------------------ control

    async def cancel(self, ids: Sequence[str], *, now: datetime | None = None) -> list[CancelAnswer]:
        """Waiting or blocked → cancelled at once; running → requested; over → says so; unknown → not found.

        Final: from here on any end of the job is `cancelled`. A copy is cancelled with its original.
        Repeating it changes nothing.
        """
        now = self._check_change(now)
        check_ids(ids)
        return await self.do_cancel(ids, now) if ids else []

    async def cancel_waiting(self, queue: str, key: bytes, *, now: datetime | None = None) -> bool:
        """Cancel the waiting or blocked job of a key, never a running one. True if there was one."""
        now = self._check_change(now)
        check_name(queue, "queue")
        check_key(key, "key")
        return await self.do_cancel_waiting(queue, key, now)

    async def requeue(
        self,
        ids: Sequence[str],
        *,
        queue: str | None = None,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        now: datetime | None = None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        """Completed, failed and cancelled jobs wait again, each for itself.

        Id and history stay, and the fence goes on rising. run_at is `now` unless given, so that a replay does
        not jump the queue. Clears lease, cancel request, result, progress and finished_at; with
        `reset_counts` also attempts, stalls and the last error. A keyed job whose key runs becomes blocked;
        one whose key waits or is blocked is refused with DuplicateJob. One that is not over is refused with
        NotAllowedInState. With `queue`, a job of another queue is refused with WrongQueue.
        """
        now = self._check_change(now)
        check_ids(ids)
        check_edit(edit, self.max_payload)
        check_when(run_at, delay, now or self.clock.now())
        wrong = {} if queue is None else await self._of_other_queues(ids, queue, now)
        asked = [job_id for job_id in ids if job_id not in wrong]
        answers = iter(await self.do_requeue(asked, edit, reset_counts, run_at, delay, now) if asked else [])
        return [wrong[job_id] if job_id in wrong else next(answers) for job_id in ids]

    async def _of_other_queues(
        self, ids: Sequence[str], queue: str, now: datetime | None
    ) -> dict[str, ConflictError]:
        """A job never changes its queue: what is read here still holds in the step that follows."""
        check_name(queue, "queue")
        found = zip(ids, await self.do_get(ids, now), strict=True)
        return {
            job_id: WrongQueue(job.id, job.queue, queue)
            for job_id, job in found
            if job is not None and job.queue != queue
        }

    async def delete(
        self, ids: Sequence[str], *, now: datetime | None = None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        """Forget finished jobs at once, whatever their retention, each for itself, with their aliases.

        One that is not over is refused with NotAllowedInState: cancel it first. Idempotency keys
        stay for their 24 hours, as they do with prune.
        """
        now = self._check_change(now)
        check_ids(ids)
        return await self.do_delete(ids, now) if ids else []

    async def configure_queue(self, settings: QueueSettings, *, now: datetime | None = None) -> QueueRules:
        """Store settings of a queue, or of the harbor under `*`; obeyed from the next claim on.

        A field left out stays as it is, None removes it. Returns the settings now in force on that level.
        """
        now = self._check_change(now)
        check_settings(settings)
        return await self.do_configure_queue(settings, now)

    async def speculate(
        self, job_id: str, *, head_start: HeadStart | None = None, now: datetime | None = None
    ) -> Speculated | JobNotFound | ConflictError:
        """Start one copy of a running job for another worker; see `settle` for which run wins.

        Refused with NotAllowedInState: not running, its lease is over, cancelled, keyed, itself a copy, or
        one copy still lives. Also refused if this run (the claim that holds now) already had one, however
        that ended. The copy has its original's position in the queue. Workers in `head_start.slower` cannot
        claim the copy until `head_start.span` has passed. Copies count against max_running and execute rates,
        not against enqueue rates; find and count do not show them.
        """
        now = self._check_change(now)
        check_id(job_id)
        if head_start is not None:
            check_head_start(head_start)
        return await self.do_speculate(job_id, head_start, now)

    # ------------------------------------------------------------------ looking

    async def get(
        self, ids: Sequence[str], *, payloads: bool = True, now: datetime | None = None
    ) -> list[JobRecord | None]:
        """The records of these ids, in this order; unknown → None. An alias returns its job.

        `payloads=False` leaves payloads and results unread, as in a Query.
        """
        now = self._check(now)
        check_ids(ids)
        if not ids:
            return []
        return await self.do_get(ids, now) if payloads else await self.do_look(ids, now)

    def get_on(
        self, connection: Any, ids: Sequence[str], *, now: datetime | None = None
    ) -> list[JobRecord | None]:
        """`get` on the caller's own blocking connection, which sees what its transaction has stored.

        As with `enqueue_on`, the driver need not be open.
        """
        self._check_joins()
        now = _checked_now(now)
        check_ids(ids)
        return self.do_get_on(connection, ids, now) if ids else []

    async def find(self, query: Query, *, now: datetime | None = None) -> Page:
        """Jobs by enqueue or by end, page by page. Neither tokens nor settled tokens are listed.

        A job that stays in the listing is seen exactly once however much is added or removed meanwhile. Queue
        and state are indexed. Other filters look at `query.examine` jobs per page: a page may come back
        short, with a cursor to go on. Jobs that ended at one instant are in enqueue order.
        """
        now = self._check(now)
        check_query(query)
        if query.parent is not None:
            self._check_workflows()
        page = await self.do_find(query, now)
        return page if query.payloads else replace(page, jobs=[without_payload(job) for job in page.jobs])

    async def count(
        self, queues: Sequence[str] | None = None, *, now: datetime | None = None
    ) -> dict[str, Counts]:
        """The number of jobs per state and queue, in bounded time; None: every queue with a job."""
        now = self._check(now)
        for queue in queues or ():
            check_name(queue, "queue")
        return await self.do_count(queues, now)

    async def queues(self, *, now: datetime | None = None) -> list[QueueInfo]:
        """Every queue that has a job or settings, by name; the harbor's own settings under `*`."""
        now = self._check(now)
        return await self.do_queues(now)

    async def info(self) -> DriverInfo:
        """What the store is, where, how durable, and its time."""
        self._check(None)
        return await self.do_info()

    # ------------------------------------------------------------------ presence

    async def report_worker(
        self,
        report: WorkerReport,
        samples: Sequence[Sample] = (),
        ttl: timedelta = timedelta(seconds=30),
        *,
        now: datetime | None = None,
    ) -> None:
        """Report a worker as alive for `ttl`, and fold its durations into its average and its types'."""
        now = self._check_change(now)
        check_report(report)
        check_ttl(ttl)
        check_samples(samples)
        await self.do_report_worker(report, samples, ttl, now)

    async def forget_worker(self, worker_id: str, *, now: datetime | None = None) -> bool:
        """Delete a worker's report, as it does when it leaves. True if there was one."""
        now = self._check_change(now)
        check_worker_id(worker_id)
        return await self.do_forget_worker(worker_id, now)

    async def workers(self, *, now: datetime | None = None) -> list[WorkerInfo]:
        """The workers whose report has not expired, fastest first."""
        now = self._check(now)
        return await self.do_workers(now)

    async def types(self, *, now: datetime | None = None) -> list[TypeInfo]:
        """How long jobs of each type usually take, by name."""
        now = self._check(now)
        return await self.do_types(now)

    async def hold_role(
        self, role: str, holder: str, ttl: timedelta, *, now: datetime | None = None
    ) -> RoleLease:
        """Take or keep a role until `now + ttl`, or learn who has it.

        The term is issued by the store and never reused. It stays the same while one holder keeps the role
        without a gap, and is higher each time the role is taken again.
        """
        now = self._check_change(now)
        check_name(role, "role")
        check_worker_id(holder)
        check_lease_for(ttl)
        check_ttl(ttl)
        return await self.do_hold_role(role, holder, ttl, now)

    async def release_role(self, role: str, holder: str, *, now: datetime | None = None) -> bool:
        """Give a role up early. True if this holder had it."""
        now = self._check_change(now)
        check_name(role, "role")
        check_worker_id(holder)
        return await self.do_release_role(role, holder, now)

    def wakeups(self, queues: Sequence[str], worker_id: str) -> Wakeups:
        """Wake-ups, for as long as they are read (capability `wakeups`). Work may be ready in one of these
        queues, or a job this worker runs was cancelled. They may be lost, merged or wrong;
        polling stays correct without them. Close the iterator to stop.
        """
        self._check_change(None)
        for queue in queues:
            check_name(queue, "queue")
        check_worker_id(worker_id)
        return self.do_wakeups(tuple(queues), worker_id)

    # ------------------------------------------------------------------ schedules

    async def put_schedule(self, schedule: Schedule, *, now: datetime | None = None) -> StoredSchedule:
        """Store a schedule under its name. A new one starts from now; one whose rule changes, or that is
        resumed, forgets the ticks it missed.
        """
        now = self._check_change(now)
        check_schedule(schedule, now or self.clock.now())
        return await self.do_put_schedule(schedule, now)

    async def advance_schedule(
        self, name: str, tick: datetime, *, fired: bool = True, now: datetime | None = None
    ) -> bool:
        """Record that every tick up to `tick` was handled; never goes back. True if the schedule exists.

        `fired`: that tick made a job; one that was missed or fell into a pause did not.
        """
        now = self._check_change(now)
        check_name(name, "schedule name")
        check_instant(tick, "tick")
        return await self.do_advance_schedule(name, utc(tick), fired, now)

    async def delete_schedule(self, name: str, *, now: datetime | None = None) -> bool:
        """Delete a schedule. True if there was one."""
        now = self._check_change(now)
        check_name(name, "schedule name")
        return await self.do_delete_schedule(name, now)

    async def schedules(self, *, now: datetime | None = None) -> list[StoredSchedule]:
        """Every schedule, by name."""
        now = self._check(now)
        return await self.do_schedules(now)

    # ------------------------------------------------------------------ the logbook

    async def write_log(
        self, entries: Sequence[LogEntry], *, instead_of: Sequence[LogKey] = (), now: datetime | None = None
    ) -> None:
        """Write cells and delete those named in `instead_of`, in one step (capability `logbook`).

        A cell that is there under the same book, instant and writer is replaced. Deleting one that is not
        there is no error. Cells are written after others are deleted, in list order.
        """
        now = self._check_change(now)
        self._check_logbook()
        check_log(entries, instead_of)
        written, gone = distinct(entries, instead_of)
        if written or gone:
            await self.do_write_log(written, gone, now)

    async def read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        *,
        limit: int = 1000,
        newest_first: bool = False,
        now: datetime | None = None,
    ) -> list[LogEntry]:
        """The first `limit` cells of a book with `since <= at < until`, by instant, then by writer.

        `newest_first` is the exact reverse. A cell that is past its own `until` is not there, pruned or not.
        """
        now = self._check(now)
        self._check_logbook()
        check_name(book, "book")
        check_instant(since, "since")
        check_instant(until, "until")
        check_count(limit, "limit", least=1, most=MAX_BATCH)
        return await self.do_read_log(book, utc(since), utc(until), limit, newest_first, now)

    # ------------------------------------------------------------------ schema

    def migration_scripts(self) -> list[tuple[str, str]]:
        """The migrations as (name, SQL) for your own tool, without a connection; none without SQL."""
        return []

    def migration_ledger(self) -> MigrationLedger | None:
        """Which tables say what a store has, for your own tool; None without SQL."""
        return None

    async def pending_migrations(self) -> list[str]:
        """The names of the migrations that this code needs and the store does not have."""
        self._check(None)
        return await self.do_pending_migrations()

    async def migrate(self) -> list[str]:
        """Apply what is pending, once however many try at the same time; returns what this call applied."""
        self._check_change(None)
        return await self.do_migrate()

    # ------------------------------------------------------------------ shared checks

    def _check_logbook(self) -> None:
        if not self.capabilities.logbook:
            raise InvalidArgument("this store keeps no logbook")

    def _check_workflows(self) -> None:
        if not self.capabilities.workflows:
            raise InvalidArgument(
                "this store has no workflows: jobs with bonds, Park, note and resolve need the "
                "capability `workflows`. Nothing was stored"
            )

    def _check_joins(self) -> None:
        if not self.capabilities.tx:
            raise InvalidArgument("this store cannot join a transaction of yours; enqueue without tx")

    def _check(self, now: datetime | None) -> datetime | None:
        """Check that the driver is open before anything else; then convert the given clock to UTC."""
        if not self._is_open:
            raise DriverClosed
        return _checked_now(now)

    def _check_change(self, now: datetime | None) -> datetime | None:
        """The same for a verb that may change something."""
        checked = self._check(now)
        self._refuse_if_it_only_looks()
        return checked

    def _refuse_if_it_only_looks(self) -> None:
        if self._is_open and self.only_looks:
            raise StoreRefused("this handle was opened to look only; open() one to change something")


def _checked_now(now: datetime | None) -> datetime | None:
    if now is None:
        return None
    check_instant(now, "now")
    return utc(now)
