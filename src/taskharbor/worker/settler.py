"""The settler: gathers finished attempts and says what the store answered about them.

Settlements gather while the last call is under way and leave together with the next one. One whose
lease is being extended at that moment waits for the answer, so that it leaves with the newest token.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.errors import DriverUnavailable, InvalidArgument, JobNotInflight, LeaseLost
from taskharbor.model.settlement import Fail, Settlement
from taskharbor.model.text import ERROR_LIMIT, safe_text
from taskharbor.worker.leased_jobs import LeasedJob, LeasedJobs
from taskharbor.worker.timing import Timing

_log = logging.getLogger("taskharbor.worker")

WORTH_A_CALL = 100  # ended jobs in one call: with more of them each becomes hardly cheaper


class Settler:
    """Finished attempts on their way into the store.

    With a remote store, settle early once half of the slots (at least 100) have ended, so that store and
    worker overlap. A store inside this process cannot overlap: there everything that is about to end is
    sent together.
    """

    def __init__(
        self,
        driver: Driver,
        leased_jobs: LeasedJobs,
        timing: Timing,
        most_held: int,
        on_settled: Callable[[LeasedJob, Settled], None],
        on_lost: Callable[[LeasedJob, LeaseLost], None],
        on_answers: Callable[[Sequence[LeasedJob], Sequence[Settled | LeaseLost]], None],
    ) -> None:
        self._driver = driver
        self._leased_jobs = leased_jobs
        self._timing = timing
        self._on_settled = on_settled
        self._on_lost = on_lost
        self._on_answers = on_answers
        self._load = max(most_held // 2, WORTH_A_CALL) if driver.capabilities.remote else sys.maxsize
        self._pending: list[LeasedJob] = []
        self._has_news = False

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, leased: LeasedJob, settlement: Settlement) -> bool:
        """Whether that is news: the first since the last `take`, or the one that makes a load."""
        leased.settlement = settlement
        self._pending.append(leased)
        is_first, self._has_news = not self._has_news, True
        return is_first or len(self._pending) == self._load

    @property
    def has_load(self) -> bool:
        return len(self._pending) >= self._load

    def take(self) -> list[LeasedJob]:
        """Everything that may be sent now; from here to `answered` or `failed` its lease is not extended."""
        self._has_news = False
        if not self._pending:
            return []
        batch, self._pending = self._leased_jobs.mark_on_wire(self._pending)
        return batch

    def answered(self, batch: list[LeasedJob], answers: Sequence[Settled | LeaseLost]) -> list[LeasedJob]:
        """Deal with the answers; those that only the record itself can explain come back."""
        unclear = []
        self._on_answers(batch, answers)
        for leased, answer in zip(batch, answers, strict=True):
            if type(answer) is Settled:
                self._on_settled(leased, answer)
            elif leased.tokens_sent and isinstance(answer, JobNotInflight):
                unclear.append(leased)
            else:
                self._on_lost(leased, answer)  # type: ignore[arg-type]
        return unclear

    def failed(self, batch: list[LeasedJob], error: BaseException) -> None:
        """The call failed: all of it waits for the next try, and its leases are extended meanwhile."""
        if not isinstance(error, DriverUnavailable) or error.done is not False:
            for leased in batch:
                leased.tokens_sent = (*leased.tokens_sent, leased.lease.token)
        self._leased_jobs.unmark_on_wire(batch)
        self._pending = batch + self._pending

    async def explain(self, unclear: list[LeasedJob]) -> None:
        """Tell an earlier try that was stored unanswered from a lease that was lost.

        Raises:
            DriverError: the records cannot be read; call it again.
        """
        records = await self._driver.get(
            [leased.record.id for leased in unclear], payloads=False, now=self._timing.stated()
        )
        for leased, record in zip(unclear, records, strict=True):
            if record is not None and record.settled_token in leased.tokens_sent:
                answer = Settled(record.id, record.state, record.updated_at, record.version)
                self._on_answers([leased], [answer])
                self._on_settled(leased, answer)
            else:
                self._on_lost(leased, JobNotInflight(leased.record.id))

    async def one_by_one(self, batch: list[LeasedJob], unclear: list[LeasedJob]) -> None:
        """A call was refused because of one of its items: find it, and fail that job alone.

        What has been answered is taken out of `batch`, and what only its record can explain is put into
        `unclear`: one after the other, so that nothing is lost when a later call fails.
        """
        while batch:
            leased = batch[0]
            try:
                answers = await self._driver.settle(settlements_of([leased]), now=self._timing.stated())
            except InvalidArgument as error:
                _log.error("job %s cannot be settled as it ended: %s", leased.record.id, error)
                leased.settlement = Fail(leased.lease, safe_text(f"cannot be settled: {error}", ERROR_LIMIT))
                answers = await self._driver.settle([leased.settlement], now=self._timing.stated())
            unclear += self.answered(batch[:1], answers)
            del batch[0]


def settlements_of(batch: list[LeasedJob]) -> list[Settlement]:
    """What to send: the settlements, each under its newest lease."""
    return [
        leased.settlement if leased.renewed is None else replace(leased.settlement, lease=leased.renewed)  # type: ignore[type-var,misc]
        for leased in batch
    ]
