"""The names that workflows use: types of jobs that no user's task has, and headers."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import child_id
from taskharbor.model.job import JobRecord, NewJob

SPAWN_TYPE = "taskharbor.spawn"
"""A job that makes its children when it runs: a workflow, group or map inside another workflow."""
WAIT_TYPE = "taskharbor.wait"
"""A node of a workflow that waits for an event."""
EVENT_TYPE = "taskharbor.event"
GROUP_TYPE = "taskharbor.group"
CHAIN_TYPE = "taskharbor.chain"
MAP_TYPE = "taskharbor.map"
BUILT_IN = (SPAWN_TYPE, WAIT_TYPE)
"""Types that every worker knows."""

NODE_HEADER = "taskharbor.node"
"""The name of a job among its siblings."""
REFS_HEADER = "taskharbor.refs"
"""JSON object, parameter → name of the sibling whose result it is."""
RETURNS_HEADER = "taskharbor.returns"
"""The name of the child whose result is the result of this job, or ALL."""
ALL = "*"
"""The results of all children, as a list."""

MAX_REFS = 100
MAX_REF_BYTES = 8 * 1024 * 1024
MAX_LISTED = 10_000
"""So many results fit into one list; more are read page by page."""
MAX_NODES = 9_999
"""Of one workflow: with its own job, as many as one call stores."""


def node_name(job: JobRecord) -> str:
    """What people call a job among its siblings."""
    return job.headers.get(NODE_HEADER) or job.type


def placed_id(root_id: str, path: str) -> str:
    """The id of a node under a root. `members/[7]` is the eighth member of the group `members`."""
    at = root_id
    for part in path.split("/"):
        at = child_id(at, "", int(part[1:-1])) if part.startswith("[") else child_id(at, part)
    return at


def placed(template: Iterable[NewJob], root_id: str) -> list[NewJob]:
    """The jobs of a template under this root: names become ids."""
    jobs = []
    for job in template:
        bonds = job.bonds or Bonds()
        above, _, _ = job.id.rpartition("/")
        bonds = replace(
            bonds,
            parent=placed_id(root_id, above) if above else root_id,
            after=tuple(placed_id(root_id, name) for name in bonds.after),
        )
        jobs.append(replace(job, id=placed_id(root_id, job.id), bonds=bonds))
    return jobs


def workflows_of(jobs: Iterable[NewJob], handler: tuple[str, str | None] | None = None) -> dict[str, str]:
    """The roots of new jobs with bonds, by id, as far as they can be known without asking the store.

    `handler`: the job whose handler stores them, and the workflow it is a part of.
    """
    roots: dict[str, str] = {}
    job_id, workflow = handler or (None, None)
    for job in jobs:
        if job.bonds is None:
            continue
        parent = job.bonds.parent
        if parent is None:
            roots[job.id] = job.id
        elif parent == job_id:
            roots[job.id] = workflow or parent
        else:
            roots[job.id] = roots.get(parent) or workflow or parent
    return roots
