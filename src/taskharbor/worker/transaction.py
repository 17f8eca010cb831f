"""ctx.transaction(): the handler's own writes and the ack of its job, in one commit."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from taskharbor.drivers.messages import Settled
from taskharbor.errors import ConfigurationError, DriverUnavailable
from taskharbor.worker.leased_jobs import LeasedJob

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

_LOOK_AGAIN = 0.005


class Transactions:
    """Opens them for the attempts of one worker."""

    def __init__(self, run: Run) -> None:
        self.driver = run.driver
        self.leased_jobs = run.leased_jobs
        self.timing = run.timing

    def begin(self, leased: LeasedJob) -> AckingTransaction:
        if leased.end.acked is not None:
            raise ConfigurationError("the transaction of this attempt is committed, and its job is over")
        return AckingTransaction(self, leased)


class AckingTransaction:
    """`async with ctx.transaction() as connection:`; the commit at its end completes the job.

    The settlement needs the newest lease, so no extension may be under way when it is sent. On a store with
    one writer an extension could not end before the transaction does: there the lease is not extended during
    the whole block, elsewhere only during the commit.
    """

    def __init__(self, source: Transactions, leased: LeasedJob) -> None:
        self._source = source
        self._leased = leased
        self._block: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> Any:
        if self._block is not None:
            raise ConfigurationError("this transaction was used already; call ctx.transaction() again")
        source = self._source
        if source.driver.capabilities.one_writer:
            await self._take_lease()
        self._block = source.driver.transaction(
            lambda: self._leased.newest_lease, now=source.timing.stated(), on_settled=self._settled
        )
        try:
            return await self._block.__aenter__()
        except BaseException:
            self._return_lease()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._block is not None  # noqa: S101 - entered
        try:
            if kind is None:
                await self._take_lease()
            return await self._block.__aexit__(kind, error, trace)
        except BaseException as trouble:
            if kind is None and not (isinstance(trouble, DriverUnavailable) and trouble.done is False):
                # It may be committed all the same; the record will show it.
                end = self._leased.end
                end.tokens_sent = (*end.tokens_sent, self._leased.newest_lease.token)
            raise
        finally:
            self._return_lease()

    def __enter__(self) -> NoReturn:
        raise ConfigurationError(
            "ctx.transaction() is for handlers in the event loop: write `async with` in an `async def`"
        )

    def __exit__(self, *_: object) -> None: ...

    async def _take_lease(self) -> None:
        """From here on the heartbeat does not extend this lease."""
        if self._leased.lease.is_settling:
            return
        while not self._source.leased_jobs.mark_settling([self._leased])[0]:
            await self._source.timing.clock.sleep(_LOOK_AGAIN)

    def _return_lease(self) -> None:
        if self._leased.end.acked is None:  # otherwise there is nothing left to extend
            self._source.leased_jobs.unmark_settling([self._leased])

    def _settled(self, answer: Settled) -> None:
        self._leased.end.acked = answer
