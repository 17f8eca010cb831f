"""From the outcome of an attempt to the answer of the store.

    outcome ──settlement_for──► waiting ──take──► sent ──answered──► slot free
                                   ▲               └──failed──┐
                                   └──────────────────────────┘

Settlements gather while the last call is under way and are sent together with the next one. A settlement
whose lease is being extended at that moment waits, so that it is sent with the newest token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from taskharbor.drivers.messages import Settled
from taskharbor.errors import DriverUnavailable, InvalidArgument, JobNotInflight, LeaseLost, ParkRefused
from taskharbor.model.job import FailureKind
from taskharbor.model.outcome import Failed, Outcome, Succeeded
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.settlement import Ack, Fail, Park, Retry, Settlement, settlement_for
from taskharbor.model.text import ERROR_LIMIT, safe_text
from taskharbor.worker.gpus import GpuPool
from taskharbor.worker.leased_jobs import LeasedJob

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

_log = logging.getLogger("taskharbor.worker")

WORTH_A_CALL = 100  # ended jobs in one call: with more of them each becomes hardly cheaper


class Settler:
    """Decides how attempts end, keeps the settlements until they are sent, and handles the answers.

    With a remote store, settle early once half of the jobs held (at least 100) have ended, so that store and
    worker overlap. A store inside this process cannot overlap: there everything that is about to end is
    sent together.
    """

    def __init__(self, run: Run, policies: dict[str, RetryPolicy], gpus: GpuPool) -> None:
        self._run = run
        self._policies = policies  # by type of job; for all others that of the worker
        self._gpus = gpus
        self._driver = run.driver
        self._leased_jobs = run.leased_jobs
        self._announcer = run.announcer
        self._timing = run.timing
        self._entropy = run.entropy
        self._durations = run.durations
        self._policy = run.options.retry_policy
        self._max_jobs = run.options.max_jobs
        self._held_limit = run.held_limit
        self._overlaps = run.driver.capabilities.remote
        self._load = WORTH_A_CALL
        self._pending: list[LeasedJob] = []
        self._has_news = False

    def __len__(self) -> int:
        return len(self._pending)

    # ------------------------------------------------------------------ an attempt has ended

    def ended(self, leased: LeasedJob, outcome: Outcome) -> None:
        """An attempt has its outcome: decide its settlement and keep it for the next call."""
        record, attempt, end = leased.record, leased.attempt, leased.end
        if attempt.started is not None:
            self._durations.append((record.type, attempt.ended - attempt.started))
        if end.acked is not None:
            self._completed(leased, end.acked, outcome)
        elif leased.lease.is_lost:
            if attempt.ran_to_its_end:
                self._announcer.ran_twice(leased)
            self._free(leased)
            self._run.look_again()
        else:
            end.outcome = outcome
            policy = self._policies.get(record.type, self._policy)
            if self.add(leased, settlement_for(record, outcome, policy, self._entropy)):
                self._run.settle_soon()

    def _completed(self, leased: LeasedJob, answer: Settled, outcome: Outcome) -> None:
        """The handler's own transaction has completed the job, whatever the handler did after it."""
        if not isinstance(outcome, Succeeded):
            self._announcer.overtaken(leased, outcome)
        leased.end.outcome = Succeeded()
        leased.end.value = Ack(leased.newest_lease)
        self.answered([leased], [answer])
        self._run.look_again()

    def add(self, leased: LeasedJob, settlement: Settlement) -> bool:
        """Whether to send soon: it is the first since the last `take`, or it completes a load."""
        leased.end.value = settlement
        self._pending.append(leased)
        is_first, self._has_news = not self._has_news, True
        return is_first or (self._overlaps and len(self._pending) == self._load)

    @property
    def has_load(self) -> bool:
        return self._overlaps and len(self._pending) >= self._load

    def take(self) -> list[LeasedJob]:
        """All that can be sent now. Their leases are not extended until `answered` or `failed`."""
        self._has_news = False
        self._load = max(self._held_limit.now // 2, WORTH_A_CALL)
        if not self._pending:
            return []
        batch, self._pending = self._leased_jobs.mark_settling(self._pending)
        return batch

    # ------------------------------------------------------------------ the store has answered

    def answered(self, batch: list[LeasedJob], answers: Sequence[Settled | LeaseLost]) -> list[LeasedJob]:
        """Handle the answers; returns the jobs whose end only the record itself can explain."""
        unclear = []
        self._announcer.answered(batch, answers)
        for leased, answer in zip(batch, answers, strict=True):
            if type(answer) is Settled:
                self._settled(leased, answer)
            elif isinstance(answer, ParkRefused):
                self._park_refused(leased, answer)
            elif leased.end.tokens_sent and isinstance(answer, JobNotInflight):
                unclear.append(leased)
            else:
                self._refused(leased, answer)  # type: ignore[arg-type]
        return unclear

    def failed(self, batch: list[LeasedJob], error: BaseException) -> None:
        """The call failed: its jobs wait for the next one, and their leases are extended meanwhile."""
        if not isinstance(error, DriverUnavailable) or error.done is not False:
            for leased in batch:
                leased.end.tokens_sent = (*leased.end.tokens_sent, leased.newest_lease.token)
        self._leased_jobs.unmark_settling(batch)
        self._pending = batch + self._pending

    async def explain(self, unclear: list[LeasedJob]) -> None:
        """Read the records of jobs whose end is unclear: was the settlement stored, or the lease lost?

        It was stored if the last token of the record is one that was sent.

        Raises:
            DriverError: the records cannot be read; call it again.
        """
        records = await self._driver.get(
            [leased.record.id for leased in unclear], payloads=False, now=self._timing.stated()
        )
        for leased, record in zip(unclear, records, strict=True):
            if record is not None and record.settled_token in leased.end.tokens_sent:
                answer = Settled(record.id, record.state, record.updated_at, record.version)
                self._announcer.answered([leased], [answer])
                self._settled(leased, answer)
            else:
                self._refused(leased, JobNotInflight(leased.record.id))

    async def one_by_one(self, batch: list[LeasedJob], unclear: list[LeasedJob]) -> None:
        """A call was refused because of one of its items: find it, and fail that job alone.

        Answered jobs leave `batch` one by one, those that need an explanation enter `unclear`: nothing is
        lost when a later call fails.
        """
        while batch:
            leased = batch[0]
            try:
                answers = await self._driver.settle(settlements_of([leased]), now=self._timing.stated())
            except InvalidArgument as error:
                _log.error("job %s cannot be settled as it ended: %s", leased.record.id, error)
                reason = safe_text(f"cannot be settled: {error}", ERROR_LIMIT)
                leased.end.value = fail = Fail(leased.newest_lease, reason)
                answers = await self._driver.settle([fail], now=self._timing.stated())
            unclear += self.answered(batch[:1], answers)
            del batch[0]

    def _settled(self, leased: LeasedJob, answer: Settled) -> None:
        self._announcer.settled(leased, answer)
        if answer.ended:
            self._announcer.ended(answer.ended)
        settlement = leased.end.value
        if isinstance(settlement, Retry | Park) and settlement.delay is not None:
            self._run.due_in(settlement.delay.total_seconds())
        self._free(leased)

    def _park_refused(self, leased: LeasedJob, error: ParkRefused) -> None:
        """The job cannot wait as its handler asked, and its lease holds: it fails, and says why."""
        reason = safe_text(f"StepError: this job {error.why}", ERROR_LIMIT)
        leased.end.outcome = Failed(reason, FailureKind.UNRECOVERABLE)
        self._leased_jobs.unmark_settling([leased])
        if self.add(leased, Fail(leased.newest_lease, reason, FailureKind.UNRECOVERABLE)):
            self._run.settle_soon()

    def _refused(self, leased: LeasedJob, error: LeaseLost) -> None:
        """The store refused a settlement: the work of the handler does not count."""
        self._announcer.lost(leased, f"settle: {error}")
        if isinstance(leased.end.outcome, Succeeded):
            self._announcer.ran_twice(leased)
        self._free(leased)

    def _free(self, leased: LeasedJob) -> None:
        self._leased_jobs.remove(leased)
        if leased.attempt.gpu is not None:
            self._gpus.release(leased)
        if not self._leased_jobs.count or (self._max_jobs and self._announcer.ran == self._max_jobs):
            self._run.nothing_held()


def settlements_of(batch: list[LeasedJob]) -> list[Settlement]:
    """What to send: the settlements, each with its newest lease."""
    return [
        leased.end.value
        if (newest := leased.lease.newest) is None
        else replace(leased.end.value, lease=newest)  # type: ignore[type-var,misc]
        for leased in batch
    ]
