"""TaskHarbor in the trial of callbacks, on each of its stores."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from taskharbor import Harbor
from taskharbor.drivers import connect
from taskharbor.errors import DriverUnavailable
from taskharbor.model.entropy import child_id
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.state import JobState
from taskharbor.tasks.request import Call
from tests.chaos.own_stores import OwnCluster
from tests.chaos.stores import Store, Stores, available
from tests.chaos.world import ROOT

STORES = (*available(), "cluster")
LEASE_SECONDS = 2.0


class Ours:
    """Workers of the command line on one store."""

    worker_count = 2
    patience = 120.0

    def __init__(self, name: str, stores: Stores) -> None:
        self.name = name
        self._stores = stores
        self._store: Store | None = None
        self._harbor = Harbor("memory://")
        self._folder = Path()
        self._roots: dict[int, str] = {}

    @property
    def store(self) -> Store:
        assert self._store is not None, "it has not begun"
        return self._store

    @property
    def has_workflows(self) -> bool:
        """What the driver declares; no server is asked."""
        return self.name != "cluster" or connect("redis+cluster://127.0.0.1:1").capabilities.workflows

    async def begin(self, folder: Path) -> None:
        self._folder = folder
        if self.name == "cluster":
            self._store = await OwnCluster.begin(folder)
        else:
            self._store = await asyncio.to_thread(self._stores.fresh, self.name, folder)
        await self.store.prepare()
        self._harbor = Harbor(self.store.url())
        await self._harbor.aopen()

    def worker(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "taskharbor",
            "worker",
            "tests.chaos.callbacks_app:harbor",
            "-c",
            "20",
        ]
        command += ["--lease", f"{LEASE_SECONDS:g}s", "--sweep-every", "500ms"]
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        env = {
            **os.environ,
            "TRIAL_URL": self.store.url(),
            "TRIAL_FOLDER": str(self._folder),
            "PYTHONPATH": path,
        }
        with (self._folder / "workers.log").open("ab") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    async def store_group(self, run: int, children: int) -> None:
        members = [
            Call[None](type="child", payload={"run": run, "number": number}, max_stalls=50)
            for number in range(children)
        ]
        then = Call[None](type="callback", payload={"run": run}, max_stalls=50)
        jobs = self._harbor.group(members, then=then, name=f"run-{run}")._jobs()
        await self._stored(jobs)
        self._roots[run] = jobs[0].id

    async def _stored(self, jobs: list[NewJob]) -> None:
        """As soon as the store answers; a second call with the same ids stores nothing twice."""
        driver = await self._harbor.client.adriver()
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    await driver.enqueue(jobs)
                except DriverUnavailable:
                    await asyncio.sleep(0.1)
                else:
                    return

    async def restart_store(self) -> bool:
        if not self.store.has_network:
            return False
        await self.store.crash()
        await self.store.revive()
        return True

    async def has_work_left(self) -> bool:
        """Not asked: ours must fire, however long it takes."""
        return True

    async def looked_at(self, runs: Sequence[int], children: int) -> list[str]:
        """Each group is completed and has counted every child once; its callback started once, but for
        starts whose lease expired, and claims ahead that were given back."""
        complaints = []
        for run in runs:
            root = self._roots[run]
            group, members, callback = await self._settled(root)
            counts = members.family
            if (group.state, members.state) != (JobState.COMPLETED, JobState.COMPLETED):
                complaints.append(f"run {run}: its group is {group.state}, its members are {members.state}")
            if counts is None or (counts.total, counts.open, counts.failed) != (children, 0, 0):
                complaints.append(f"run {run}: its members count {counts}")
            released = sum(attempt.outcome == "released" for attempt in callback.history)
            if callback.starts != 1 + callback.stalls + released:
                why = f"{callback.stalls} expired leases, {released} releases"
                complaints.append(f"run {run}: {callback.starts} starts, {why}")
        return complaints

    async def _settled(self, root: str) -> list[JobRecord]:
        """The group, its members and its callback, once the group is over: its end may be a moment away."""
        ids = [root, child_id(root, "members"), child_id(root, "then")]
        driver = await self._harbor.client.adriver()
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    found = await driver.get(ids)
                except DriverUnavailable:
                    found = [None]
                records = [record for record in found if record is not None]
                if len(records) == len(ids) and records[0].state.is_terminal:
                    return records
                await asyncio.sleep(0.1)

    async def end(self) -> None:
        await self._harbor.aclose()
        await self.store.close()


@contextmanager
def contestants(names: Sequence[str]) -> Iterator[list[Ours]]:
    with Stores() as stores:
        yield [Ours(name, stores) for name in names]
