"""The one table of rights: every route and every verb of the driver, and who may do what with it.

    who may      any one of these roles is enough; see auth.py for what a role holds
    limited      what a token for some queues gets: see `Limited`
    hidden       whether secrets in the answer are hidden from viewers
    audited      whether success is told to the audit log; refusals always are
    asked again  whether the caller must still be welcome while the call waits or goes on

What is not in the table is refused to everybody, so a new route or verb needs a row here; a test says which
one is missing. `python -m taskharbor.web.rights` prints the table of docs/operations/security.md, and a test
holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from taskharbor.web.auth import Principal, Right, require_every_queue
from taskharbor.web.problems import Problem


class Limited(StrEnum):
    """What a call is to a token that is for some queues only. The texts stand in the documentation."""

    FREE = "as for all: nothing of a queue is in it"
    OWN = "its own queues: naming another is refused, the rest is as if it were not there"
    LEASE = "its own leases: a lease's token proves that it was handed out"
    STANDS_BY = "it never leads: another always holds the role"
    REFUSED = "refused: it concerns every queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """One row."""

    roles: tuple[Right, ...]
    """Any one of them is enough; nobody may when there is none."""

    limited: Limited
    is_open: bool = False
    """Answered without asking who calls."""

    is_redacted: bool = False
    is_audited: bool = False
    is_asked_again: bool = False

    def check(self, principal: Principal, operation: str) -> None:
        """Raises Problem `forbidden` unless the caller may do this."""
        if not any(principal.may(role) for role in self.roles):
            has = "no rights here" if principal.role is None else f"the role {principal.role}"
            raise Problem("forbidden", f"{operation} {self.needs}; this caller has {has}")
        if self.limited is Limited.REFUSED:
            require_every_queue(principal)

    @property
    def needs(self) -> str:
        return f"needs the role {' or '.join(self.roles)}" if self.roles else "is refused to everybody"


_NOBODY = Rights(roles=(), limited=Limited.REFUSED)

_ANYBODY: tuple[Right, ...] = ("viewer", "producer", "worker", "operator", "admin")
_READER: tuple[Right, ...] = ("reader",)
_VIEWER: tuple[Right, ...] = ("viewer",)
_PRODUCER: tuple[Right, ...] = ("producer",)
_WORKER: tuple[Right, ...] = ("worker",)
_OPERATOR: tuple[Right, ...] = ("operator",)
_ADMIN: tuple[Right, ...] = ("admin",)
# The first role names the verb's place; the others need it for their own work: handlers of a worker put jobs
# in, its harbor brings schedules along, a producer looks at what it put in.
_PRODUCER_OR_WORKER: tuple[Right, ...] = ("producer", "worker")
_OPERATOR_OR_WORKER: tuple[Right, ...] = ("operator", "worker")
_VIEWER_OR_PRODUCER: tuple[Right, ...] = ("viewer", "producer")


def _open() -> Rights:
    return Rights(roles=_ANYBODY, limited=Limited.FREE, is_open=True)


def _look(roles: tuple[Right, ...], limited: Limited, *, hidden: bool = False, again: bool = False) -> Rights:
    return Rights(roles=roles, limited=limited, is_redacted=hidden, is_asked_again=again)


def _change(roles: tuple[Right, ...], limited: Limited) -> Rights:
    """Told to the audit log."""
    return Rights(roles=roles, limited=limited, is_audited=True)


def _work(limited: Limited, *, again: bool = False) -> Rights:
    """What attempts consist of: the histories of jobs have it, and it would bury the rest of an audit log."""
    return Rights(roles=_WORKER, limited=limited, is_asked_again=again)


TABLE: dict[str, Rights] = {
    # ---------------------------------------------------------------- routes
    "livez": _open(),
    "readyz": _open(),
    "openapi": _open(),
    "enqueue": _change(_PRODUCER, Limited.OWN),
    "enqueue_batch": _change(_PRODUCER, Limited.OWN),
    "list_jobs": _look(_VIEWER, Limited.OWN),
    "get_job": _look(_READER, Limited.OWN, hidden=True),
    "why": _look(_READER, Limited.OWN),
    "result": _look(_READER, Limited.OWN, hidden=True, again=True),
    "cancel": _change(_OPERATOR, Limited.OWN),
    "cancel_by_delete": _change(_OPERATOR, Limited.OWN),
    "retry": _change(_OPERATOR, Limited.OWN),
    "list_dead": _look(_VIEWER, Limited.OWN),
    "retry_dead": _change(_OPERATOR, Limited.OWN),
    "delete_dead": _change(_OPERATOR, Limited.OWN),
    "list_queues": _look(_VIEWER, Limited.OWN),
    "get_queue": _look(_VIEWER, Limited.OWN),
    "configure_queue": _change(_OPERATOR, Limited.OWN),
    "pause_queue": _change(_OPERATOR, Limited.OWN),
    "resume_queue": _change(_OPERATOR, Limited.OWN),
    "cancel_waiting": _change(_PRODUCER, Limited.OWN),
    "scale": _look(_VIEWER, Limited.OWN),
    "list_workers": _look(_VIEWER, Limited.OWN, hidden=True),
    "stats": _look(_VIEWER, Limited.OWN),
    "list_schedules": _look(_VIEWER, Limited.OWN),
    "put_schedule": _change(_OPERATOR, Limited.OWN),
    "delete_schedule": _change(_OPERATOR, Limited.OWN),
    "pause_schedule": _change(_OPERATOR, Limited.OWN),
    "resume_schedule": _change(_OPERATOR, Limited.OWN),
    "run_schedule": _change(_OPERATOR, Limited.OWN),
    "events": _look(_VIEWER, Limited.OWN, again=True),
    "metrics": _look(_VIEWER, Limited.REFUSED),
    # ---------------------------------------------------------------- verbs of the driver
    "driver.hello": _look(_ANYBODY, Limited.FREE),
    "driver.info": _look(_ANYBODY, Limited.FREE, hidden=True),
    "driver.wakeups": _work(Limited.OWN, again=True),
    "driver.pending_migrations": _look(_VIEWER, Limited.FREE),
    "driver.migrate": _change(_ADMIN, Limited.REFUSED),
    "driver.enqueue": _change(_PRODUCER_OR_WORKER, Limited.OWN),
    "driver.reserve": _work(Limited.OWN, again=True),
    "driver.extend_leases": _work(Limited.LEASE),
    "driver.settle": _work(Limited.LEASE),
    "driver.exchange": _work(Limited.OWN),
    "driver.reclaim": _work(Limited.REFUSED),
    "driver.promote": _work(Limited.REFUSED),
    "driver.prune": _work(Limited.REFUSED),
    "driver.cancel": _change(_OPERATOR, Limited.OWN),
    "driver.cancel_waiting": _change(_PRODUCER_OR_WORKER, Limited.OWN),
    "driver.requeue": _change(_OPERATOR, Limited.OWN),
    "driver.delete": _change(_OPERATOR, Limited.OWN),
    "driver.configure_queue": _change(_OPERATOR, Limited.OWN),
    "driver.speculate": _work(Limited.OWN),
    "driver.get": _look(_VIEWER_OR_PRODUCER, Limited.OWN, hidden=True),
    "driver.find": _look(_VIEWER, Limited.OWN, hidden=True),
    "driver.count": _look(_VIEWER, Limited.OWN),
    "driver.queues": _look(_VIEWER, Limited.OWN),
    "driver.report_worker": _work(Limited.OWN),
    "driver.forget_worker": _change(_WORKER, Limited.OWN),
    "driver.workers": _look(_VIEWER, Limited.OWN, hidden=True),
    "driver.types": _look(_VIEWER, Limited.OWN),
    "driver.hold_role": _work(Limited.STANDS_BY),
    "driver.release_role": _change(_WORKER, Limited.STANDS_BY),
    "driver.put_schedule": _change(_OPERATOR_OR_WORKER, Limited.OWN),
    "driver.advance_schedule": _work(Limited.OWN),
    "driver.delete_schedule": _change(_OPERATOR, Limited.OWN),
    "driver.schedules": _look(_VIEWER, Limited.OWN, hidden=True),
}


def rights_of(operation: str) -> Rights:
    """The row of an operation; one without a row is refused to everybody."""
    return TABLE.get(operation, _NOBODY)


# ------------------------------------------------------------------ as documentation

_LIMITED_IN_SHORT = {
    Limited.FREE: "as for all",
    Limited.OWN: "its own queues",
    Limited.LEASE: "its own leases",
    Limited.STANDS_BY: "stands by",
    Limited.REFUSED: "refused",
}


def documented() -> str:
    """The table as it stands in docs/operations/security.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| operation | role | a token for some queues | hidden from viewers | audited | asked again |"
    yield "|---|---|---|---|---|---|"
    for name, rights in TABLE.items():
        who = "nobody is asked" if rights.is_open else _who(rights)
        flags = (rights.is_redacted, rights.is_audited, rights.is_asked_again)
        said = " | ".join("yes" if flag else "" for flag in flags)
        yield f"| `{name}` | {who} | {_LIMITED_IN_SHORT[rights.limited]} | {said} |"


def _who(rights: Rights) -> str:
    if rights.roles in (_ANYBODY, _READER):
        return "any"
    return " or ".join(rights.roles)


if __name__ == "__main__":
    print(documented(), end="")
