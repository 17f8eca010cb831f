"""Acks of jobs with bonds, in the usual case by sets: they have no children, and nobody stops them.

What their success does to the jobs that come after them is here as far as it is a mere release. All else is
owed, and the rules of `drivers/families.py` carry it out in the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from taskharbor.drivers.families import STEP_LIMIT
from taskharbor.drivers.sqlite.rows import json_array
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.state import JobState


class Member(NamedTuple):
    """What the statement `member_acks` says of a job that runs."""

    version: int
    parent: int | None
    followers: int


class Follower(NamedTuple):
    """A job that comes after a member, as the statement `member_followers` reads it."""

    dep: int
    seq: int
    is_usual: int
    comes_after: int
    queue: str
    lane: str
    type: str
    rank: int
    at: int
    flags: int


def members_of(step: Step, seqs: list[int]) -> dict[int, Member]:
    """Those of these jobs that are members, by seq."""
    rows = step.fetch_all("member_acks", seqs=json_array(seqs))
    return {seq: Member(*rest) for seq, *rest in rows}


def release_followers(step: Step, members: Mapping[int, Member]) -> list[int]:
    """Release what comes after these members alone, which have completed. Those with more are returned."""
    causes = [seq for seq, member in members.items() if member.followers]
    if not causes or sum(members[seq].followers for seq in causes) > STEP_LIMIT:
        return causes
    found = step.fetch_all("member_followers", seqs=json_array(causes))
    waits: dict[int, list[Follower]] = defaultdict(list)
    for row in found:
        waits[row[1]].append(Follower._make(row))
    released = [mine[0] for mine in waits.values() if mine[0].is_usual and len(mine) == mine[0].comes_after]
    if released:
        _release(step, released)
    done = {job.seq for job in released}
    return list(dict.fromkeys(dep for seq, mine in waits.items() if seq not in done for dep, *_ in mine))


def _release(step: Step, jobs: list[Follower]) -> None:
    seqs = json_array([job.seq for job in jobs])
    step.execute("member_released", now=step.us, seqs=seqs)
    step.execute("member_waits", seqs=seqs)
    for job in jobs:
        step.add_row("put_waiting", job.queue, job.lane, job.type, job.rank, job.at, job.seq, job.flags)
        step.count(job.queue, job.seq, JobState.BLOCKED, -1)
        step.count(job.queue, job.seq, JobState.READY, +1)
        step.notices.queues.add(job.queue)
