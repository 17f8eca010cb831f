"""Every verb that changes a job, as the call that one racer makes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import NamedTuple

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.model.job import Lease, Progress, Update
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from tests.contract.pairs.calls import HOUR, Call
from tests.contract.pairs.starts import KEY, ONCE, STARTS, Site, Start

Verb = Callable[[Site, int], Call]


def _lease(site: Site, racer: int) -> Lease:
    return site.leases[racer // 2 % len(site.leases)]


def _settle(settlement: Callable[[Lease], Settlement]) -> Verb:
    return lambda site, racer: Call("settle", ([settlement(_lease(site, racer))],))


# ------------------------------------------------------------------ with a lease

ack = _settle(lambda lease: Ack(lease, b"result"))
retry = _settle(lambda lease: Retry(lease, reason="again"))
retry_later = _settle(lambda lease: Retry(lease, delay=2 * HOUR, reason="later"))
fail = _settle(lambda lease: Fail(lease, reason="broken"))
stalled = _settle(lambda lease: Stalled(lease, reason="gone"))
give_up = _settle(lambda lease: Cancelled(lease, reason="not wanted"))
release = _settle(Release)


def extend(site: Site, racer: int) -> Call:
    progress = {site.leases[0].job_id: Progress(0.5, f"racer {racer}")}
    return Call("extend_leases", ([_lease(site, racer)], 2 * HOUR), {"progress": progress})


def exchange(site: Site, racer: int) -> Call:
    """Ack what runs, and ask for the next job."""
    return Call("exchange", ([Ack(_lease(site, racer))], site.claim_by(f"worker-{racer}")))


def transaction(site: Site, racer: int) -> Call:
    """An ack in the transaction of the handler."""
    return Call("transaction", (_lease(site, racer),))


# ------------------------------------------------------------------ without


def reserve(site: Site, racer: int) -> Call:
    return Call("reserve", (site.claim_by(f"worker-{racer}"),))


def enqueue(site: Site, racer: int) -> Call:
    """Another job of the key."""
    return Call("enqueue", ([site.new(key=KEY, payload=b"racer %d" % racer)],))


def enqueue_later(site: Site, racer: int) -> Call:
    """Another job of the key that may change the time only."""
    update = Update(data=False, run_at="if_later", retry=False)
    return Call("enqueue", ([site.new(key=KEY, delay=2 * HOUR, update=update)],))


def enqueue_blocking(site: Site, racer: int) -> Call:
    return Call("enqueue_blocking", ([site.new(key=KEY, priority=racer)],))


def enqueue_once(site: Site, racer: int) -> Call:
    """Another id with the same idempotency key."""
    return Call("enqueue", ([site.new(idempotency_key=ONCE, payload=b"racer %d" % racer)],))


def enqueue_again(site: Site, racer: int) -> Call:
    """The same id once more."""
    return Call("enqueue", ([site.again()],))


def cancel(site: Site, racer: int) -> Call:
    return Call("cancel", ([site.id],))


def cancel_waiting(site: Site, racer: int) -> Call:
    return Call("cancel_waiting", (site.queue, KEY))


def requeue(site: Site, racer: int) -> Call:
    return Call("requeue", ([site.id],))


def delete(site: Site, racer: int) -> Call:
    return Call("delete", ([site.id],))


def speculate(site: Site, racer: int) -> Call:
    return Call("speculate", (site.id,))


def reclaim(site: Site, racer: int) -> Call:
    return Call("reclaim", (100,))


def promote(site: Site, racer: int) -> Call:
    return Call("promote", (1000,))


def prune(site: Site, racer: int) -> Call:
    return Call("prune", (1000,))


WITH_LEASE = {
    "ack": ack,
    "retry": retry,
    "retry later": retry_later,
    "fail": fail,
    "stalled": stalled,
    "give up": give_up,
    "release": release,
    "extend": extend,
    "exchange": exchange,
    "transaction": transaction,
}
OF_ANY_JOB = {
    "reserve": reserve,
    "enqueue again": enqueue_again,
    "cancel": cancel,
    "requeue": requeue,
    "delete": delete,
    "reclaim": reclaim,
    "promote": promote,
}
OF_A_KEY = {
    "enqueue": enqueue,
    "enqueue later": enqueue_later,
    "enqueue blocking": enqueue_blocking,
    "cancel waiting": cancel_waiting,
}
VERBS: dict[str, Verb] = {**WITH_LEASE, **OF_ANY_JOB, **OF_A_KEY}
VERBS |= {"enqueue once": enqueue_once, "speculate": speculate, "prune": prune}


class Round(NamedTuple):
    """Two racers make the one call, two the other."""

    number: int
    start: Start
    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.one} and {self.other} ({self.start.name})"


def all_rounds(capabilities: Capabilities, *, is_given: bool) -> list[Round]:
    """Every pair of verbs that means something, from every start; a number means the same by both clocks."""
    pairs = [
        (start, one, other)
        for start in STARTS
        for one, other in combinations_with_replacement(_verbs_for(start, capabilities), 2)
    ]
    rounds = [Round(number, *pair) for number, pair in enumerate(pairs)]
    return [one for one in rounds if not (is_given and one.start.is_now)]


def _verbs_for(start: Start, capabilities: Capabilities) -> list[str]:
    names = [*OF_ANY_JOB]
    if start.is_leased:
        names += WITH_LEASE
    names += OF_A_KEY if start.is_keyed else ["speculate"]
    names += ["enqueue once"] if start.is_once else []
    names += ["prune"] if start.name == "forgettable" else []
    if not capabilities.blocking_enqueue:
        names = [name for name in names if name != "enqueue blocking"]
    return names if capabilities.tx else [name for name in names if name != "transaction"]
