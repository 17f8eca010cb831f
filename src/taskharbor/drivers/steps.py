"""What a driver implements: one `do_` method per verb of the contract, with checked arguments.

The promise of each is at the public verb of the same name in contract.py. A driver may rely on
arguments that were checked, on batches that are not empty, and on being open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any

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
)
from taskharbor.errors import (
    BrokenBond,
    ConflictError,
    InvalidArgument,
    JobNotFound,
    LeaseLost,
    TaskHarborError,
)
from taskharbor.model.edit import Edit
from taskharbor.model.job import JobRecord, Lease, NewJob, Note, Progress, without_payload
from taskharbor.model.logbook import LogEntry, LogKey
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.speculation import HeadStart


class DriverSteps(ABC):
    """The steps behind the verbs."""

    async def do_open(self) -> None:  # noqa: B027 - a store without a connection has nothing to do
        """Connect. Raise before anything is half open."""

    async def do_close(self) -> None:  # noqa: B027 - nor to undo
        """Disconnect. Never raises for a store that is already gone."""

    @abstractmethod
    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]: ...

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        """Only for stores that declare `workflows`: jobs of which some have bonds, or under a lease."""
        raise NotImplementedError

    async def do_resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        """Only for stores that declare `workflows`."""
        raise NotImplementedError

    async def do_note(
        self, notes: Sequence[Note], now: datetime | None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        """Only for stores that declare `workflows`. Every note has a lease."""
        raise NotImplementedError

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        """Only for stores that declare `blocking_enqueue`. `tx` is never async: refuse one that is."""
        raise NotImplementedError

    async def do_enqueue_in(self, jobs: Sequence[NewJob], tx: Any, now: datetime | None) -> list[Enqueued]:
        """Only for stores that declare `tx`; one that can join async connections overrides it."""
        return self.do_enqueue_blocking(jobs, now, tx)

    def do_enqueue_on(self, connection: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        """Only for stores that declare `tx`. The driver may never have been opened."""
        raise NotImplementedError

    def do_get_on(self, connection: Any, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        """Only for stores that declare `tx`. The driver may never have been opened."""
        raise NotImplementedError

    async def do_ring(self, queues: tuple[str, ...]) -> None:  # noqa: B027 - polling finds the jobs, too
        """Stores that declare `wakeups` send one to the listeners of these queues."""

    @abstractmethod
    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed: ...

    @abstractmethod
    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]: ...

    @abstractmethod
    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]: ...

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        """One after the other; every store of ours does better."""
        settled = await self.do_settle(settlements, now) if settlements else []
        try:
            claimed = await self.do_reserve(claim, now)
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up, ended=claimed.ended)
        except TaskHarborError as error:
            return Exchanged(settled, [], error)

    def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AbstractAsyncContextManager[Any]:
        """Only for stores that declare `tx`."""
        raise NotImplementedError

    @abstractmethod
    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]: ...

    @abstractmethod
    async def do_promote(self, limit: int, now: datetime | None) -> Promoted: ...

    @abstractmethod
    async def do_prune(self, limit: int, now: datetime | None) -> int: ...

    @abstractmethod
    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]: ...

    @abstractmethod
    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool: ...

    @abstractmethod
    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]: ...

    @abstractmethod
    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]: ...

    @abstractmethod
    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules: ...

    @abstractmethod
    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError: ...

    @abstractmethod
    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]: ...

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        """`do_get` without payloads and results; a store that can leave them unread does."""
        found = await self.do_get(ids, now)
        return [None if job is None else without_payload(job) for job in found]

    @abstractmethod
    async def do_find(self, query: Query, now: datetime | None) -> Page:
        """With `query.payloads` false, payloads and results may be left unread."""
        ...

    @abstractmethod
    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]: ...

    @abstractmethod
    async def do_queues(self, now: datetime | None) -> list[QueueInfo]: ...

    @abstractmethod
    async def do_info(self) -> DriverInfo: ...

    @abstractmethod
    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None: ...

    @abstractmethod
    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool: ...

    @abstractmethod
    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]: ...

    @abstractmethod
    async def do_types(self, now: datetime | None) -> list[TypeInfo]: ...

    @abstractmethod
    async def do_hold_role(
        self, role: str, holder: str, ttl: timedelta, now: datetime | None
    ) -> RoleLease: ...

    @abstractmethod
    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool: ...

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        raise InvalidArgument("this store has no wake-ups; poll")

    @abstractmethod
    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule: ...

    @abstractmethod
    async def do_advance_schedule(
        self, name: str, tick: datetime, fired: bool, now: datetime | None
    ) -> bool: ...

    @abstractmethod
    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool: ...

    @abstractmethod
    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]: ...

    async def do_write_log(
        self, entries: Sequence[LogEntry], instead_of: Sequence[LogKey], now: datetime | None
    ) -> None:
        """Only for stores that declare `logbook`. No key comes twice, and both lists are in their order."""
        raise NotImplementedError

    async def do_read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        limit: int,
        newest_first: bool,
        now: datetime | None,
    ) -> list[LogEntry]:
        """Only for stores that declare `logbook`."""
        raise NotImplementedError

    async def do_pending_migrations(self) -> list[str]:
        return []

    async def do_migrate(self) -> list[str]:
        return []
