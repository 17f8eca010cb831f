"""Everything TaskHarbor raises, drawn once.

TaskHarborError
├── InvalidArgument (ValueError)       a call that can never succeed as written; nothing was stored
│   └── InvalidLeaseDuration           lease_for must be above zero
├── ConfigurationError (ValueError)    wrong settings; raised before any work
│   ├── UnknownTask                    no handler under that name
│   ├── WorkflowError                  a workflow that cannot be: a circle, an unknown name
│   └── SchemaOutOfDate                names what is pending and the command to run
├── PayloadError (ValueError)          a value and its bytes do not fit together; carries the path
│   ├── EncodeError
│   └── DecodeError
├── JobNotFound (LookupError)          no job has that id
├── ConflictError                      the store refused, and nothing was changed
│   ├── DuplicateJob                   carries the existing job's id
│   ├── RateLimited                    over the budget; carries retry_after
│   ├── LeaseLost                      the caller no longer owns the job; throw the work away
│   │   ├── JobNotInflight             it is not running (any more)
│   │   ├── LeaseMismatch              it runs under another token
│   │   ├── LeaseExpired               the token is right, its time is over
│   │   └── ParkRefused                it holds, and a Park asks for what cannot be; settle it otherwise
│   ├── BrokenBond                     a parent or dependency that cannot be: unknown, over, no sibling
│   ├── WrongQueue                     the job is of another queue than the caller named
│   └── NotAllowedInState              e.g. requeue a running job; carries verb and state
├── DriverError                        the store failed; the cause is chained
│   ├── DriverClosed                   close() was called, or open() was not
│   ├── DriverUnavailable              safe to try again
│   │   └── StoreFull                  no room left; free some, then try again
│   ├── StoreRefused                   the store cannot be used as it is; trying again will not help
│   │   └── Forbidden                  a server knows the caller, whose rights do not reach so far
│   └── DriverMisbehaved               an answer we cannot understand; please report
├── AttemptError                       why an attempt failed when its handler did not say so
│   ├── AttemptStalled                 its worker fell silent, or died: carries the cause of death
│   └── TimedOut                       it ran past its time limit
├── Unrecoverable                      raised by a handler: fail now, do not retry
├── StepError                          a step, child or event of a handler that cannot be remembered
├── EventTimeout (TimeoutError)        from ctx.aevent(): the event did not come in time
└── JobFailed                          from handle.result(), ctx.acall(): the job ended failed or cancelled

Parked is no error and a BaseException: it ends a handler that waits, and `except Exception` lets it pass.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class TaskHarborError(Exception):
    """The root of every error of ours."""


class TaskHarborDeprecationWarning(DeprecationWarning):
    """A public name that goes away. It says what to use instead, and the version that removes it.

    `warnings.warn(TaskHarborDeprecationWarning("Harbor.old", instead="Harbor.new", removed_in="0.3"))`.
    """

    def __init__(self, what: str, *, instead: str, removed_in: str) -> None:
        self.what = what
        self.instead = instead
        self.removed_in = removed_in
        super().__init__(
            f"{what} is deprecated and goes away in TaskHarbor {removed_in}; use {instead} instead"
        )


class InvalidArgument(TaskHarborError, ValueError):
    """A call that can never succeed as written. Nothing was stored."""


class InvalidLeaseDuration(InvalidArgument):
    """lease_for must be above zero."""

    def __init__(self, lease_for: timedelta) -> None:
        self.lease_for = lease_for
        super().__init__(f"lease_for={lease_for} must be above zero; nothing was changed")


class ConfigurationError(TaskHarborError, ValueError):
    """Wrong settings, noticed before any work was done."""


class UnknownTask(ConfigurationError):
    """No handler is registered under that name."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.known = known
        hint = f"; known: {', '.join(known)}" if known else ""
        super().__init__(f"no task is registered under {name!r}{hint}")


class WorkflowError(ConfigurationError):
    """A workflow that cannot be stored as it was put together. Nothing was stored."""

    def __init__(self, message: str, nodes: tuple[str, ...] = ()) -> None:
        self.nodes = nodes
        """Names of the nodes that it is about, if it is about some."""
        super().__init__(message)


class SchemaOutOfDate(ConfigurationError):
    """The store's schema and this code do not fit; the message names the command that mends it."""

    def __init__(self, message: str, pending: tuple[str, ...] = ()) -> None:
        self.pending = pending
        super().__init__(message)


class PayloadError(TaskHarborError, ValueError):
    """A value and its bytes do not fit together. `path` says where, as in `$.user.id`."""

    def __init__(self, message: str, path: str = "$") -> None:
        self.path = path
        super().__init__(message)


class EncodeError(PayloadError):
    """The value cannot be written as bytes. Nothing was stored."""


class DecodeError(PayloadError):
    """The bytes do not hold the expected value."""


class JobNotFound(TaskHarborError, LookupError):
    """No job has that id: it never existed here, or its retention is over."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id}; it never existed in this store or its retention is over")


class ConflictError(TaskHarborError):
    """The store refused, and nothing was changed."""


class DuplicateJob(ConflictError):
    """Another job with the same key already waits."""

    def __init__(self, job_id: str, existing_id: str) -> None:
        self.job_id = job_id
        self.existing_id = existing_id
        super().__init__(f"job {job_id} was left as it is: job {existing_id} already waits under its key")


class RateLimited(ConflictError):
    """Over the budget. Nothing was stored; try again after `retry_after`."""

    def __init__(self, queue: str, retry_after: timedelta) -> None:
        self.queue = queue
        self.retry_after = retry_after
        super().__init__(
            f"queue {queue!r} is over its enqueue rate; nothing was stored, "
            f"try again in {retry_after.total_seconds():.3f} s"
        )


class WrongQueue(ConflictError):
    """The job is of another queue than the caller named. Nothing was changed."""

    def __init__(self, job_id: str, queue: str, wanted: str) -> None:
        self.job_id = job_id
        self.queue = queue
        self.wanted = wanted
        super().__init__(f"job {job_id} is of queue {queue}, not of {wanted}; nothing was changed")


class LeaseLost(ConflictError):
    """The caller no longer owns the job. Nothing was changed; throw the work away.

    `state` is what the job is now, and `owner` the worker that holds it; None where that is not known.
    `reason` is not_owner, or invalid_transition for a job that does not run.
    """

    _what = "is not yours any more"
    reason: ClassVar[str] = "not_owner"

    def __init__(self, job_id: str, *, owner: str | None = None, state: str | None = None) -> None:
        self.job_id = job_id
        self.owner: str | None = None
        self.state: str | None = None
        super().__init__(f"job {job_id} {self._what}; nothing was changed")
        self.add_facts(owner, state)

    def add_facts(self, owner: str | None, state: str | None) -> None:
        """Add what the store knows of the job by now."""
        self.owner, self.state = owner, None if state is None else str(state)
        known = [f"held by {owner}"] if owner else []
        known += [f"it is {self.state}"] if self.state else []
        facts = f" ({', '.join(known)})" if known else ""
        self.args = (f"job {self.job_id} {self._what}{facts}; nothing was changed",)


class JobNotInflight(LeaseLost):
    """The job is not running (any more), or never existed."""

    _what = "is not running"
    reason = "invalid_transition"


class LeaseMismatch(LeaseLost):
    """The job runs under another token: another worker holds it now."""

    _what = "runs under another lease"


class LeaseExpired(LeaseLost):
    """The token is right, but its time is over."""

    _what = "was yours, but the lease has run out"


class ParkRefused(LeaseLost):
    """A Park that cannot be stored. The lease still holds, so the job can be settled in another way."""

    reason = "invalid_transition"

    def __init__(
        self,
        job_id: str,
        why: str = "cannot be parked as asked",
        *,
        owner: str | None = None,
        state: str | None = None,
    ) -> None:
        self.why = self._what = why
        super().__init__(job_id, owner=owner, state=state)


class BrokenBond(ConflictError):
    """A job cannot be tied to another one as asked. Nothing was changed."""

    def __init__(self, job_id: str, reason: str) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"job {job_id} {reason}. Nothing was changed")


class NotAllowedInState(ConflictError):
    """The verb does not apply to a job in this state."""

    # In the words of those who asked: `retry` is what users call the driver's requeue.
    _RULES: ClassVar[dict[str, str]] = {
        "requeue": "only jobs that have ended can be retried",
        "retry_dead": "only failed jobs are dead letters",
        "delete": "only jobs that have ended can be deleted",
        "cancel": "it has ended already",
        "speculate": "only running jobs get a second run",
        "resolve": "only a job that is done by a call, and not over, can be resolved",
        "send": "the first event of a name counts, if it comes before the timeout",
    }

    def __init__(self, job_id: str, *, verb: str, state: str, what: str = "job") -> None:
        self.job_id = job_id
        self.verb = verb
        self.state = str(state)
        rule = self._RULES.get(verb, f"{verb} does not apply")
        super().__init__(f"{what} {job_id} is {self.state}: {rule}; nothing was changed")


class DriverError(TaskHarborError):
    """The store failed; the cause is chained."""


class DriverClosed(DriverError):
    """The driver was used before open() or after close()."""

    def __init__(self, message: str = "the driver is closed; open it, or connect a new one") -> None:
        super().__init__(message)


class DriverUnavailable(DriverError):
    """The store did not answer in time or refused for now. Safe to try again.

    `done` says what is known about the call: False, nothing was written; None, it may have
    been written and the answer was lost.
    """

    def __init__(self, message: str, *, done: bool | None = False) -> None:
        self.done = done
        super().__init__(message)


class StoreFull(DriverUnavailable):
    """The store has no room left. Nothing was written."""


class StoreRefused(DriverError):
    """The store cannot be used as it is: read-only, not ours, no rights. Trying again will not help."""


class Forbidden(StoreRefused):
    """A server knows who calls, and does not allow this: another role or other queues are needed."""


class DriverMisbehaved(DriverError):
    """The store gave an answer we cannot understand. Please report it."""


class AttemptError(TaskHarborError):
    """Why an attempt failed when its handler did not say so."""


class AttemptStalled(AttemptError):
    """The worker of the attempt fell silent or died; the message carries the cause of death."""


class TimedOut(AttemptError):
    """The attempt ran past its time limit."""

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout
        super().__init__(f"ran past its time limit of {timeout.total_seconds():g} s")


class Unrecoverable(TaskHarborError):
    """Raise it in a handler to fail the job now, without another try.

    `raise Unrecoverable("no such user") from error` keeps the cause for the history.
    """


class StepError(TaskHarborError):
    """A step, child or event of a handler that cannot be remembered."""


class EventTimeout(TaskHarborError, TimeoutError):
    """The event that a handler waited for did not come before its timeout."""

    def __init__(self, job_id: str, name: str) -> None:
        self.job_id = job_id
        self.name = name
        super().__init__(f"the event {name!r} of job {job_id} did not come in time")


class Parked(BaseException):
    """Ends a handler that waits for children, an event or a time; it runs again from the top after that.

    A BaseException, so that `except Exception` does not catch it. Let it pass.
    """

    def __init__(self, outcome: object = None) -> None:
        self.outcome = outcome
        super().__init__("this handler waits and runs again later")


class JobFailed(TaskHarborError):
    """A result was asked of a job that ended failed or cancelled."""

    def __init__(self, job_id: str, state: str, reason: str | None = None, *, is_child: bool = False) -> None:
        self.job_id = job_id
        self.state = str(state)
        self.reason = reason
        self.is_child = is_child
        """Whether it is a child of the job whose handler waited for it."""
        super().__init__(f"job {job_id} ended {self.state}" + (f": {reason}" if reason else ""))
