"""Which files are mutated, and which tests judge them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mutation.changes import PACKAGE, Mutant, mutants_of

_KIT = "tests/contract/test_conformance.py"
# How a store is reached, described and listened to: tests/integration is about these, with servers that
# are cut off and started again, and no fast test can judge them.
_PLUMBING = re.compile(
    "address|blocking|commits|completion|connections?|faults|floors|health|joining|link|listen|location|looks|"
    "schema|scripts|server|statements|transactions|waking|wakeups"
)

# File of SQL or Lua → the modules of tests that are about it. They come first; `--narrow` asks these alone.
JUDGES: dict[str, tuple[str, ...]] = {
    "0001_schema.pre": ("enqueue",),
    "0003_families.pre": ("families", "relatives"),
    "0004_children.pre": ("families", "relatives"),
    "admit": ("enqueue_rates", "rates", "idempotency"),
    "configure_queue": ("limits", "settings"),
    "count": ("listing", "limits"),
    "drop_hints": ("lease", "expiry"),
    "enqueue": ("idempotency", "enqueue"),
    "exchange": ("exchange", "expiry", "reserve_order", "claim_filters", "clocks", "lease"),
    "exchange_acks": ("exchange", "ack", "lease"),
    "exchange_claim": ("exchange", "expiry", "reserve_order"),
    "exchange_room": ("limits", "rates", "exchange", "delays"),
    "exchange_settle": ("exchange", "ack", "lease", "retry"),
    "expired": ("expiry", "lease", "orphans"),
    "extend": ("lease", "expiry", "limits", "ack", "test_gates"),
    "find": ("listing", "listing_order", "families"),
    "jobs": ("lease", "ack"),
    "leave_finished": ("dead_letters", "requeue", "retention"),
    "limits": ("limits", "rates", "enqueue_rates"),
    "lock_step": ("idempotency", "families"),
    "logbook": ("logbook",),
    "look": ("many_queues",),
    "may_copy": ("head_starts", "speculation", "speculation_ends"),
    "peek": ("reserve_order", "claim_filters"),
    "prelude": ("parking", "families"),
    "promote": ("delays", "clocks"),
    "prune": ("retention", "idempotency", "rates", "enqueue_rates", "logbook"),
    "put": ("idempotency", "retention"),
    "queries": ("listing", "listing_order", "dead_letters", "requeue"),
    "rates": ("rates", "enqueue_rates", "limits"),
    "read": ("listing", "relatives"),
    "read_log": ("logbook",),
    "registry": ("presence", "roles", "schedules"),
    "reserve": ("expiry", "reserve_order", "claim_filters", "lease", "clocks", "speculation"),
    "room": ("limits",),
    "room_for": ("limits",),
    "settle": ("ack", "retry", "expiry", "lease", "exchange"),
    "settle_attempts": ("ack", "exchange", "lease"),
    "settle_link": ("test_members", "expiry"),
    "settle_members": ("families", "ack", "relatives", "stopping", "test_members"),
    "settle_or_leave": ("ack",),
    "settle_others": ("retry", "expiry", "lease", "ack", "exchange"),
    "some_types": ("claim_filters", "lanes", "clocks"),
    "steps": ("idempotency", "dead_letters", "requeue"),
    "store": ("test_missed_cancels", "wakeups"),
    "sweep": ("expiry", "lease"),
    "take_note": ("parking", "same_family_rules"),
    "upkeep": ("expiry", "retention", "idempotency"),
    "write_families": ("families", "relatives", "stopping"),
    "write_state": ("speculation", "speculation_ends", "cancel", "listing"),
}


@dataclass(frozen=True)
class Suite:
    """Some files of the package, what pytest is given to judge them, and the store that the kit runs on."""

    name: str
    paths: tuple[str, ...]
    tests: tuple[str, ...]
    store: str

    def judges(self, test: str) -> bool:
        """Whether a test, by its name, is one of this suite: of the kit only what runs on its store."""
        return not test.startswith(_KIT) or f"[{self.store}" in test or f"-{self.store}" in test

    def mutants(self) -> list[Mutant]:
        return [mutant for path in self.paths for mutant in mutants_of(path)]


def _of(folder: str, *endings: str) -> tuple[str, ...]:
    files = sorted((PACKAGE / folder).rglob("*"))
    return tuple(
        str(file.relative_to(PACKAGE))
        for file in files
        if file.suffix in endings and not _PLUMBING.fullmatch(file.stem) and "cluster" not in file.parts
    )


def _directly_in(folder: str) -> tuple[str, ...]:
    return tuple(str(file.relative_to(PACKAGE)) for file in sorted((PACKAGE / folder).glob("*.py")))


# Of the worker, what has a lease in its hands.
_LEASES = (
    "cancellation",
    "deadlines",
    "fetcher",
    "lease_keeper",
    "leased_jobs",
    "run",
    "settling",
    "slots",
)
_LOGBOOK = "tests/unit/worker/test_logbook.py"
_CLUSTER = "tests/integration/redis/cluster"
_ODD_ANSWERS = "tests/integration/http/test_driver_odd_answers.py"
_OF_POSTGRES = tuple(
    f"tests/integration/postgres/test_{name}.py"
    for name in ("missed_cancels", "members", "claim_start", "gates")
)
_PARKED = ("tests/unit/drivers/redis", "tests/integration/redis/test_parked_claim.py")

SUITES = {
    suite.name: suite
    for suite in (
        Suite("model", _of("model", ".py"), ("tests/unit/model", _KIT), "memory"),
        Suite("shared", _directly_in("drivers"), ("tests/unit/drivers", _KIT, _LOGBOOK), "memory"),
        Suite("memory", _of("drivers/memory", ".py"), (_KIT, "tests/unit/drivers/memory"), "memory"),
        Suite("sqlite", _of("drivers/sqlite", ".py", ".sql"), (_KIT, "tests/unit/drivers/sqlite"), "sqlite"),
        Suite("postgres", _of("drivers/postgres", ".py", ".sql"), (_KIT, *_OF_POSTGRES), "postgres"),
        Suite("redis", _of("drivers/redis", ".py", ".lua"), (_KIT, *_PARKED), "redis"),
        Suite("cluster", _directly_in("drivers/redis/cluster"), (_CLUSTER,), "cluster"),
        Suite("http", _directly_in("drivers/http"), ("tests/unit/drivers/http", _ODD_ANSWERS), ""),
        Suite("worker", tuple(f"worker/{name}.py" for name in _LEASES), ("tests/unit/worker",), ""),
    )
}
