"""A whole harbor in one thread and in virtual time, from one seed.

    outcome = simulate(plan_of(42))
    assert outcome.is_sound, outcome.verdict

`python -m taskharbor.testing.simulator --seed 42` does the same and prints what happened.
"""

from taskharbor.testing.simulator.actors import Producer
from taskharbor.testing.simulator.apps import HarborApp, SimulatedApp, UsualApp
from taskharbor.testing.simulator.family_watch import FAMILY_RULES
from taskharbor.testing.simulator.plan import FAULTS, FEATURES, Plan, plan_of, with_families
from taskharbor.testing.simulator.world import Outcome, World


def simulate(plan: Plan, app: SimulatedApp | None = None) -> Outcome:
    """Run one world to its end and judge it. Equal plans give equal histories."""
    return World(plan, app).run()


__all__ = [
    "FAMILY_RULES",
    "FAULTS",
    "FEATURES",
    "HarborApp",
    "Outcome",
    "Plan",
    "Producer",
    "SimulatedApp",
    "UsualApp",
    "World",
    "plan_of",
    "simulate",
    "with_families",
]
