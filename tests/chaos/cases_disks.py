"""Disks without room: reported as such, nothing half done, and over once there is room again."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from taskharbor.errors import DriverError, StoreFull
from tests.chaos.case import case
from tests.chaos.cases_network import works_again
from tests.chaos.cases_processes import drain
from tests.chaos.own_stores import MEBIBYTE, PostgresOnSmallDisk, SqliteOnSmallDisk, small_disk
from tests.chaos.world import World

CARGO_BYTES = 128 * 1024


@case("C47", "the disk of the tables is full", stores=("postgres",))
async def tables_on_a_full_disk(world: World) -> None:
    disk = world.keeps(small_disk(world.folder, 96))
    await world.move(await PostgresOnSmallDisk.begin(world.folder, disk))
    await _fill_and_free(world, disk, room=12)


@case("C48", "the disk of the file is full", stores=("sqlite",))
async def file_on_a_full_disk(world: World) -> None:
    disk = world.keeps(small_disk(world.folder, 64))
    await world.move(SqliteOnSmallDisk(disk))
    await _fill_and_free(world, disk, room=8)


async def _fill_and_free(world: World, disk: Path, room: int) -> None:
    """Enqueued until there is no room, worked on meanwhile; then there is room, and everything ends.

    Ballast leaves so many MiB, however much an earlier round has put there for good.
    """
    for _ in range(min(world.size.injections, 2)):
        weight = disk / "ballast"
        weight.write_bytes(b"\0" * (shutil.disk_usage(disk).free - room * MEBIBYTE))
        worker = world.worker("-c", "4")
        await world.workers_at_work(1)
        long = await world.put(*(world.request(seconds=world.size.lease) for _ in range(4)))
        for job_id in long:
            await world.line("begin", job_id)
        taken = await _enqueue_until_full(world)
        world.inject(f"no room left after {taken} jobs of {CARGO_BYTES // 1024} KiB")
        weight.unlink()
        await works_again(world, time.time(), "work after there was room again", most=10.0)
        await drain(world)
        world.facts.append(f"{taken} jobs taken before the disk was full, all of them done afterwards")
        worker.terminate()
        assert await world.exit_code(worker) == 0


async def _enqueue_until_full(world: World) -> int:
    """How many were acknowledged before one was refused, and refused by name."""
    for taken in range(1000):
        job = world.client._new_job(world.request(cargo=os.urandom(CARGO_BYTES // 2).hex()))
        world.unknown[job.id] = json.loads(job.payload)["mark"]
        try:
            await world.recorded.enqueue([job])
        except StoreFull:
            return taken
        except DriverError as error:
            raise AssertionError(f"a full disk was called {error!r}") from error
        world.acknowledged[job.id] = world.unknown.pop(job.id)
    raise AssertionError("the disk never was full")
