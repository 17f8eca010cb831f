"""A chaos case: what is done, on which stores, and how its outcome is reported."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.stores import KINDS, Store, Stores
from tests.chaos.verdict import Findings, judge
from tests.chaos.world import Size, World

Body = Callable[[World], Awaitable[None]]
EVERY_STORE = tuple(KINDS)
NETWORKED = tuple(name for name, kind in KINDS.items() if kind.has_network)

CASES: dict[str, Case] = {}


class NotHere(Exception):
    """This machine cannot run the case; it says why. Such a case has neither passed nor failed."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way of hurting the system, and what must hold besides the promises that always do."""

    id: str
    title: str
    body: Body
    stores: tuple[str, ...]
    smoke: tuple[str, ...]
    """Where it is part of the smoke run."""
    is_alone: bool = False
    """It keeps the whole machine busy: no other case runs beside it."""


@dataclass
class Outcome:
    case: Case
    store: str
    seed: int
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)
    injections: list[str] = field(default_factory=list)
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    load: float = 0.0
    """Of the machine, in the last minute: what a bound in seconds is worth."""
    error: str = ""
    not_here: str = ""
    """Why it could not be run on this machine."""
    commit: str = ""
    """What was run."""

    @property
    def is_good(self) -> bool:
        return not (self.error or self.findings.problems or self.late or self.not_here)

    @property
    def is_broken(self) -> bool:
        return bool(self.error or self.findings.problems)

    @property
    def is_only_late(self) -> bool:
        return bool(self.late) and not self.is_broken


def case(
    number: str,
    title: str,
    *,
    stores: tuple[str, ...] = EVERY_STORE,
    smoke: tuple[str, ...] = (),
    alone: bool = False,
) -> Callable[[Body], Body]:
    """Enter a function into the list of cases."""

    def enter(body: Body) -> Body:
        CASES[number] = Case(id=number, title=title, body=body, stores=stores, smoke=smoke, is_alone=alone)
        return body

    return enter


async def run_case(one: Case, stores: Stores, store_name: str, size: Size, seed: int) -> Outcome:
    """Run one case to its end and judge it. Never raises: what went wrong is in the outcome."""
    outcome = Outcome(one, store_name, seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="taskharbor-chaos-") as name:
        folder = Path(name)
        try:
            store: Store = await asyncio.to_thread(stores.fresh, store_name, folder)
            world = World(store, folder, size, seed)
            async with world.alive():
                try:
                    await one.body(world)
                    await world.stop_workers()
                    outcome.findings = await _judged(world)
                finally:
                    outcome.injections = [injection.what for injection in world.injections]
                    outcome.recoveries = world.recoveries
                    outcome.facts, outcome.late = world.facts, world.late
        except NotHere as reason:
            outcome.not_here = str(reason)
        except Exception as error:  # noqa: BLE001 - a case that fails is an outcome
            message = str(error) or type(error).__name__
            outcome.error = message if isinstance(error, AssertionError) else traceback.format_exc()
        if outcome.is_broken and "CHAOS_KEEP" in os.environ:
            kept = Path(os.environ["CHAOS_KEEP"], f"{one.id}-{store_name}-{seed}")
            sockets = shutil.ignore_patterns("*.wake")  # which cannot be copied
            shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=sockets)
    outcome.seconds = time.monotonic() - began
    outcome.load = os.getloadavg()[0]
    return outcome


async def _judged(world: World) -> Findings:
    findings = judge(
        await world.last_look(),
        world.acknowledged,
        world.unknown,
        world.cancelled,
        world.keyed,
        world.runs(),
        world.effects(),
    )
    verdict = await asyncio.to_thread(world.check_history)
    findings.events = verdict.events
    findings.problems += [f"history: {violation}" for violation in verdict.violations]
    return findings
