"""Stops of large families: a script stops many waiting children at once, which reads little of each.

`drivers/families.py` decides what becomes of a stopped child; here it is worked out once for all of them. The
script goes from child to child until it meets one that is not so simple. `Families.sweep` goes on there.
"""

from __future__ import annotations

from datetime import datetime

from taskharbor.drivers.families import Owed, stopped_child
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.family_fields import family_bytes, owed_in
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.queries import record_in
from taskharbor.drivers.redis.story import story_of
from taskharbor.model.clock import instant
from taskharbor.model.entropy import id_bytes
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

MOST_STOPPED = 1000
"""Children that one call of stop.lua stops: it takes some ten milliseconds."""


async def stop_many(steps: OptimisticStep, limit: int, now: datetime | None) -> int:
    """If a stop is what is owed first, stop waiting children: returns how many."""
    primary, keys = steps.primary, steps.keys
    [number] = await primary.command("ZRANGE", keys.owed, 0, 0) or [None]
    stored = None if number is None else await primary.command("HGET", keys.data, b"w" + number)
    if stored is None or (owed := owed_in(0, stored)).kind != "stop":
        return 0
    after = await _stopped_child(steps, owed, now)
    if after is None:
        return 0
    queues = await steps.queue_names()
    named = [keys.data, keys.relatives]
    for queue in queues:
        own = keys.queue(queue)
        named += (own.list, own.ready, own.later, own.done)
    shared = (story_of(after) or b"", family_bytes(family_of(after)))
    call = (now_arg(now), number, stored, min(limit, MOST_STOPPED), *shared, *queues)
    return int(await primary.run_in_epoch("stop", named, *call))


async def _stopped_child(steps: OptimisticStep, owed: Owed, now: datetime | None) -> JobRecord | None:
    """What becomes of a waiting child of this job, but for what is its own; None if the job is gone."""
    ask = (now_arg(now), "1", id_bytes(owed.job_id))
    reply = await steps.primary.run("get", [steps.keys.data], *ask, writes=False)
    at = instant(int(reply[0]))
    child = JobRecord(
        id="", seq=0, type="", queue="", state=JobState.READY, payload=b"", created_at=at, updated_at=at
    )
    return stopped_child(child, record_in(reply[1]), at) if reply[1] else None
