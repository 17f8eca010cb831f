"""What a seed decides: the size of the world, the kinds of jobs in it, and its faults.

Each seed draws a few features and a few kinds of faults and leaves the others out, so that the rare
combinations come up too. One seed in four has no fault at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskharbor.model.entropy import Entropy
from taskharbor.testing.simulator.choices import Choices

FEATURES = (
    "batches",  # several jobs in one enqueue
    "cancels",
    "delays",  # jobs with a run_at of their own
    "deletes",
    "fail_queue",
    "idempotency",
    "keys",
    "lanes",
    "limits",  # max_running
    "pauses",
    "polling",  # no wake-ups
    "prefetch",
    "priorities",
    "rates",
    "requeues",
    "restarts",  # workers that stop and start again
    "schedules",
    "speculation",
    "timeouts",
)

FAULTS = (
    "delay",  # a call takes long
    "duplicate",  # a request arrives twice
    "late",  # the caller sees a broken connection, but the request arrives
    "lost_reply",
    "lost_request",
    "kill",
    "freeze",
    "slow",  # every step of a process takes its time
    "skew",  # wall clocks that are off, and clocks that run too fast or too slow
    "outage",  # the store refuses every call for a while
    "step",  # the store's clock jumps ahead
    "points",  # a process dies at a named point of its work
)

STEP_BACK = "step_back"
"""The store's clock jumps back. No seed draws it, because not every promise can be judged then: add it to
the faults of a plan."""

FAMILIES = "families"
"""A feature: workflows beside the usual jobs. No seed draws it; `with_families` adds it to a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world, before anything has happened in it."""

    seed: int
    store: str = "memory"
    seconds: float = 60.0
    """How long the world is busy; faults end after 60 % of it."""
    workers: int = 3
    slots: int = 2
    producers: int = 2
    schedulers: int = 1
    jobs: int = 60
    lease_seconds: float = 5.0
    grace_seconds: float = 10.0
    queues: int = 2
    features: frozenset[str] = frozenset()
    faults: frozenset[str] = frozenset()
    fault_rate: float = 0.03
    """How likely one call meets a fault."""
    snap: float = 0.3
    """How likely an arrival is moved onto a pending instant, or a microsecond beside it."""
    kept_faults: frozenset[int] | None = None
    """By number, the faults that may happen; None: all. The shrinker takes them away one by one."""
    poll_seconds: float | None = None
    fault_seconds: float = 6.0
    """The longest time between two faults of a process or of the store."""
    look_seconds: float = 5.0
    """How often the whole store is looked at from outside."""
    point_rate: float = 0.004
    """How likely a process dies at a named point, in worlds with that fault."""
    rude_workers: int = 0
    """Workers that call the driver themselves, beside the real ones."""

    @property
    def is_calm(self) -> bool:
        return not self.faults

    def has(self, feature: str) -> bool:
        return feature in self.features


def plan_of(seed: int, store: str = "memory") -> Plan:
    """The world of this seed."""
    choices = Choices(Entropy(seed)).split("plan")
    faults = (
        frozenset() if choices.chance(0.25) else frozenset(kind for kind in FAULTS if choices.chance(0.4))
    )
    return Plan(
        seed=seed,
        store=store,
        seconds=choices.seconds(30, 90),
        workers=choices.whole(2, 5),
        slots=choices.whole(1, 4),
        producers=choices.whole(1, 3),
        schedulers=choices.whole(0, 2),
        jobs=choices.whole(20, 120),
        lease_seconds=choices.pick((1.5, 3.0, 5.0, 10.0)),
        grace_seconds=choices.pick((0.5, 5.0, 20.0)),
        queues=choices.whole(1, 3),
        features=frozenset(feature for feature in FEATURES if choices.chance(0.4)),
        faults=faults,
        fault_rate=choices.pick((0.01, 0.03, 0.1)),
    )


def rude_plan_of(seed: int, store: str = "memory") -> Plan:
    """The world of this seed with many jobs, one real worker, and rude workers making most calls."""
    choices = Choices(Entropy(seed)).split("rude workers")
    return replace(
        plan_of(seed, store), workers=1, rude_workers=choices.whole(3, 6), jobs=choices.whole(300, 600)
    )


def with_families(plan: Plan) -> Plan:
    """The same world with workflows in it, which are cancelled, retried, deleted and sent events, too."""
    return replace(plan, features=plan.features | {FAMILIES})
