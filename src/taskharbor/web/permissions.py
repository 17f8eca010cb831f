"""The table of permissions: every route and every driver verb, and who may call it.

    who may      any one of these roles is enough; auth.py says what a role includes
    some queues  what a token limited to some queues gets: see `QueueScope`
    hidden       whether secrets in the answer are hidden from viewers
    audited      whether success is written to the audit log; refusals always are
    rechecked    whether the caller is authenticated again while the request waits, streams or does its steps

An operation without a row is refused to everyone, so a new route or verb needs one here; a test names the
missing ones. `python -m taskharbor.web.permissions` prints the table of docs/operations/security.md; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from taskharbor.drivers.wire import Role
from taskharbor.web.auth import GRANTS, Permission, Principal, require_every_queue
from taskharbor.web.problems import Problem


class QueueScope(StrEnum):
    """What a token limited to some queues gets. The documentation quotes these texts."""

    ALL = "as for everyone: it is not about a queue"
    OWN = "its own queues: naming another is refused, everything else looks as if it did not exist"
    LEASE = "its own leases: the lease token proves that the caller was given the job"
    NEVER_LEADS = "never the leader: another process always holds the role"
    REFUSED = "refused: it affects every queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """One row of the table."""

    roles: tuple[Permission, ...]
    """Any one of them is enough; an empty tuple refuses everyone."""

    scope: QueueScope
    is_open: bool = False
    """Answered without authentication."""

    is_redacted: bool = False
    is_audited: bool = False
    is_rechecked: bool = False

    def allows(self, principal: Principal) -> bool:
        """Whether the role of the caller is enough."""
        return principal.role in _enough(self.roles)

    def check(self, principal: Principal, operation: str) -> None:
        """Raises Problem `forbidden` unless the caller may do this."""
        if not self.allows(principal):
            has = "no rights here" if principal.role is None else f"the role {principal.role}"
            raise Problem("forbidden", f"{operation} {self.needs}; this caller has {has}")
        if self.scope is QueueScope.REFUSED:
            require_every_queue(principal)

    @property
    def needs(self) -> str:
        return f"needs the role {' or '.join(self.roles)}" if self.roles else "is refused to everyone"


@lru_cache
def _enough(roles: tuple[Permission, ...]) -> frozenset[Role]:
    """The roles of callers that include one of these."""
    return frozenset(role for role, grants in GRANTS.items() if not grants.isdisjoint(roles))


_NO_ONE = AccessRule(roles=(), scope=QueueScope.REFUSED)

_ANY_ROLE: tuple[Permission, ...] = ("viewer", "producer", "worker", "operator", "admin")
_READER: tuple[Permission, ...] = ("reader",)
_VIEWER: tuple[Permission, ...] = ("viewer",)
_PRODUCER: tuple[Permission, ...] = ("producer",)
_WORKER: tuple[Permission, ...] = ("worker",)
_OPERATOR: tuple[Permission, ...] = ("operator",)
_ADMIN: tuple[Permission, ...] = ("admin",)
# The first role owns the verb; the others need it for their own work: handlers of a worker enqueue jobs, its
# harbor declares schedules, a producer looks at what it enqueued.
_PRODUCER_OR_WORKER: tuple[Permission, ...] = ("producer", "worker")
_OPERATOR_OR_WORKER: tuple[Permission, ...] = ("operator", "worker")
_VIEWER_OR_PRODUCER: tuple[Permission, ...] = ("viewer", "producer")


def _open(*, audited: bool = False) -> AccessRule:
    return AccessRule(roles=_ANY_ROLE, scope=QueueScope.ALL, is_open=True, is_audited=audited)


def _look(
    roles: tuple[Permission, ...], scope: QueueScope, *, hidden: bool = False, again: bool = False
) -> AccessRule:
    return AccessRule(roles=roles, scope=scope, is_redacted=hidden, is_rechecked=again)


def _change(roles: tuple[Permission, ...], scope: QueueScope, *, again: bool = False) -> AccessRule:
    """Written to the audit log."""
    return AccessRule(roles=roles, scope=scope, is_audited=True, is_rechecked=again)


def _work(scope: QueueScope, *, again: bool = False) -> AccessRule:
    """Part of running a job. Not audited: job histories have it, and it would drown the rest of the log."""
    return AccessRule(roles=_WORKER, scope=scope, is_rechecked=again)


PERMISSIONS: dict[str, AccessRule] = {
    # ---------------------------------------------------------------- routes
    "livez": _open(),
    "readyz": _open(),
    "openapi": _open(),
    "home": _open(),
    "ui": _open(),
    "ui_file": _open(),
    "get_session": _look(_ANY_ROLE, QueueScope.ALL),
    "open_session": _open(audited=True),
    "close_session": _open(audited=True),
    "enqueue": _change(_PRODUCER, QueueScope.OWN),
    "enqueue_batch": _change(_PRODUCER, QueueScope.OWN),
    "list_jobs": _look(_VIEWER, QueueScope.OWN),
    "count_jobs": _look(_VIEWER, QueueScope.OWN),
    "list_types": _look(_VIEWER, QueueScope.OWN),
    "search_words": _look(_VIEWER, QueueScope.OWN),
    "get_job": _look(_READER, QueueScope.OWN, hidden=True),
    "why": _look(_READER, QueueScope.OWN),
    "result": _look(_READER, QueueScope.OWN, hidden=True, again=True),
    "cancel": _change(_OPERATOR, QueueScope.OWN),
    "cancel_by_delete": _change(_OPERATOR, QueueScope.OWN),
    "retry": _change(_OPERATOR, QueueScope.OWN),
    "enqueue_workflow": _change(_PRODUCER, QueueScope.OWN),
    "list_workflows": _look(_VIEWER, QueueScope.OWN),
    "get_workflow": _look(_READER, QueueScope.OWN),
    "get_graph": _look(_READER, QueueScope.OWN),
    "list_children": _look(_READER, QueueScope.OWN),
    "cancel_workflow": _change(_OPERATOR, QueueScope.OWN),
    "retry_workflow": _change(_OPERATOR, QueueScope.OWN),
    "send_event": _change(_PRODUCER, QueueScope.OWN),
    "list_dead": _look(_VIEWER, QueueScope.OWN),
    "retry_dead": _change(_OPERATOR, QueueScope.OWN),
    "delete_dead": _change(_OPERATOR, QueueScope.OWN),
    "bulk": _change(_OPERATOR, QueueScope.OWN, again=True),
    "get_bulk": _look(_VIEWER, QueueScope.OWN),
    "stop_bulk": _change(_OPERATOR, QueueScope.OWN),
    "start_bulk": _change(_OPERATOR, QueueScope.OWN),
    "list_failures": _look(_VIEWER, QueueScope.OWN),
    "get_failure": _look(_VIEWER, QueueScope.OWN, hidden=True),
    "mute_cause": _change(_OPERATOR, QueueScope.REFUSED),
    "snooze_cause": _change(_OPERATOR, QueueScope.REFUSED),
    "open_cause": _change(_OPERATOR, QueueScope.REFUSED),
    "list_changes": _look(_OPERATOR, QueueScope.REFUSED),
    "undo_change": _change(_OPERATOR, QueueScope.REFUSED),
    "list_tokens": _look(_ADMIN, QueueScope.REFUSED),
    "create_token": _change(_ADMIN, QueueScope.REFUSED),
    "revoke_token": _change(_ADMIN, QueueScope.REFUSED),
    "list_queues": _look(_VIEWER, QueueScope.OWN),
    "get_queue": _look(_VIEWER, QueueScope.OWN),
    "configure_queue": _change(_OPERATOR, QueueScope.OWN),
    "pause_queue": _change(_OPERATOR, QueueScope.OWN),
    "resume_queue": _change(_OPERATOR, QueueScope.OWN),
    "cancel_waiting": _change(_PRODUCER, QueueScope.OWN),
    "scale": _look(_VIEWER, QueueScope.OWN),
    "list_workers": _look(_VIEWER, QueueScope.OWN, hidden=True),
    "stats": _look(_VIEWER, QueueScope.OWN),
    "list_schedules": _look(_VIEWER, QueueScope.OWN),
    "preview_schedule": _look(_VIEWER, QueueScope.ALL),
    "put_schedule": _change(_OPERATOR, QueueScope.OWN),
    "delete_schedule": _change(_OPERATOR, QueueScope.OWN),
    "pause_schedule": _change(_OPERATOR, QueueScope.OWN),
    "resume_schedule": _change(_OPERATOR, QueueScope.OWN),
    "run_schedule": _change(_OPERATOR, QueueScope.OWN),
    "events": _look(_VIEWER, QueueScope.OWN, again=True),
    "follow": _look(_VIEWER, QueueScope.OWN),
    "board": _look(_VIEWER, QueueScope.OWN),
    "series": _look(_VIEWER, QueueScope.OWN),
    "store": _look(_VIEWER, QueueScope.ALL, hidden=True),
    "metrics": _look(_VIEWER, QueueScope.REFUSED),
    # ---------------------------------------------------------------- verbs of the driver
    "driver.hello": _look(_ANY_ROLE, QueueScope.ALL),
    "driver.info": _look(_ANY_ROLE, QueueScope.ALL, hidden=True),
    "driver.wakeups": _work(QueueScope.OWN, again=True),
    "driver.pending_migrations": _look(_VIEWER, QueueScope.ALL),
    "driver.migrate": _change(_ADMIN, QueueScope.REFUSED),
    "driver.enqueue": _change(_PRODUCER_OR_WORKER, QueueScope.OWN),
    "driver.ring": _look(_PRODUCER_OR_WORKER, QueueScope.OWN),
    "driver.reserve": _work(QueueScope.OWN),
    "driver.extend_leases": _work(QueueScope.LEASE),
    "driver.settle": _work(QueueScope.LEASE),
    "driver.exchange": _work(QueueScope.OWN),
    "driver.note": _work(QueueScope.LEASE),
    "driver.resolve": _change(_PRODUCER_OR_WORKER, QueueScope.OWN),
    "driver.reclaim": _work(QueueScope.REFUSED),
    "driver.promote": _work(QueueScope.REFUSED),
    "driver.prune": _work(QueueScope.REFUSED),
    "driver.cancel": _change(_OPERATOR, QueueScope.OWN),
    "driver.cancel_waiting": _change(_PRODUCER_OR_WORKER, QueueScope.OWN),
    "driver.requeue": _change(_OPERATOR, QueueScope.OWN),
    "driver.delete": _change(_OPERATOR, QueueScope.OWN),
    "driver.configure_queue": _change(_OPERATOR, QueueScope.OWN),
    "driver.speculate": _work(QueueScope.OWN),
    "driver.get": _look(_VIEWER_OR_PRODUCER, QueueScope.OWN, hidden=True),
    "driver.find": _look(_VIEWER, QueueScope.OWN, hidden=True),
    "driver.count": _look(_VIEWER, QueueScope.OWN),
    "driver.queues": _look(_VIEWER, QueueScope.OWN),
    "driver.report_worker": _work(QueueScope.OWN),
    "driver.forget_worker": _change(_WORKER, QueueScope.OWN),
    "driver.workers": _look(_VIEWER, QueueScope.OWN, hidden=True),
    "driver.types": _look(_VIEWER, QueueScope.OWN),
    "driver.hold_role": _work(QueueScope.NEVER_LEADS),
    "driver.release_role": _change(_WORKER, QueueScope.NEVER_LEADS),
    "driver.put_schedule": _change(_OPERATOR_OR_WORKER, QueueScope.OWN),
    "driver.advance_schedule": _work(QueueScope.OWN),
    "driver.delete_schedule": _change(_OPERATOR, QueueScope.OWN),
    "driver.schedules": _look(_VIEWER, QueueScope.OWN, hidden=True),
    "driver.write_log": _work(QueueScope.REFUSED),
    "driver.read_log": _look(_VIEWER, QueueScope.REFUSED),
}


def access_rule(operation: str) -> AccessRule:
    """The row of an operation; without one it is refused to everyone."""
    return PERMISSIONS.get(operation, _NO_ONE)


# ------------------------------------------------------------------ as documentation

_SCOPE_IN_SHORT = {
    QueueScope.ALL: "as for everyone",
    QueueScope.OWN: "its own queues",
    QueueScope.LEASE: "its own leases",
    QueueScope.NEVER_LEADS: "never leads",
    QueueScope.REFUSED: "refused",
}


def documented() -> str:
    """The table as docs/operations/security.md has it."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| operation | role | a token for some queues | hidden from viewers | audited | rechecked |"
    yield "|---|---|---|---|---|---|"
    for name, rule in PERMISSIONS.items():
        who = "no token needed" if rule.is_open else _who(rule)
        flags = (rule.is_redacted, rule.is_audited, rule.is_rechecked)
        cells = " | ".join("yes" if flag else "" for flag in flags)
        yield f"| `{name}` | {who} | {_SCOPE_IN_SHORT[rule.scope]} | {cells} |"


def _who(rule: AccessRule) -> str:
    if rule.roles in (_ANY_ROLE, _READER):
        return "any"
    return " or ".join(rule.roles)


if __name__ == "__main__":
    print(documented(), end="")
