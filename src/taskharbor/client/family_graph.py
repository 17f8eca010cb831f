"""A family of jobs as a graph: which jobs are shown, the edges between them, and the layer of each.

The children of the job are read page by page. A family among them is opened while it is small and there is
room, so that a page costs a bounded number of reads whatever is below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from taskharbor.client.family import Sees, sees_all
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.cursor import cursor_after, place_in
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.model.bonds import When
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.workflow import MAX_NODES, WAIT_TYPE

MOST_NODES = 500
MOST_EDGES = 10_000
AS_ONE = 50
"""A family of more children is one node, with its counts."""
MOST_OPENED = 50
"""Families that are opened on one page."""


class GraphNode(msgspec.Struct, frozen=True):
    """A job of the graph. Its layer is the longest way to it from a job that comes after nothing."""

    job: JobRecord
    layer: int


class FamilyGraph(msgspec.Struct, frozen=True):
    """One page of a graph. An edge leads from a job, perhaps of a page before, to one that comes after it."""

    nodes: list[GraphNode]
    edges: list[tuple[str, str, When]]
    next_cursor: str | None


def is_workflow(job: JobRecord) -> bool:
    """Whether people call it a workflow: it has children and is nobody's child."""
    return bool(family_of(job).total) and bonds_of(job).parent is None


async def family_graph(
    driver: Driver, job: JobRecord, *, cursor: str | None = None, now: datetime | None, sees: Sees = sees_all
) -> FamilyGraph:
    """The children of a job from a cursor on, and what is below those with small families."""
    return await _Drawing(driver, now, sees).page(job, cursor)


class _Drawing:
    """What one page has so far."""

    def __init__(self, driver: Driver, now: datetime | None, sees: Sees) -> None:
        self._driver = driver
        self._now = now
        self._sees = sees
        self._nodes: list[GraphNode] = []
        self._edges: list[tuple[str, str, When]] = []
        self._opened = 0
        self._visible: set[str] | None = None if sees is sees_all else set()
        """The jobs read so far that the caller may see; an edge from another would name that."""

    async def page(self, job: JobRecord, cursor: str | None) -> FamilyGraph:
        query = Query(parent=job.id, limit=MOST_NODES, cursor=cursor, payloads=False)
        page = await self._driver.find(query, now=self._now)
        layers = await self._layers_before(query, page.jobs)
        next_cursor = page.next_cursor
        last: JobRecord | None = None
        for child in page.jobs:
            if last is not None and not self._has_room(child):
                next_cursor = cursor_after(query, place_in(query, last))
                break
            last = child
            if self._is_seen(child):
                self._add(child, layers)
                await self._open(child)
        return FamilyGraph(self._nodes, self._edges, next_cursor)

    def _has_room(self, *jobs: JobRecord) -> bool:
        edges = len(self._edges) + sum(len(bonds_of(job).after) for job in jobs)
        return len(self._nodes) + len(jobs) <= MOST_NODES and edges <= MOST_EDGES

    def _is_seen(self, job: JobRecord) -> bool:
        if not self._sees(job):
            return False
        if self._visible is not None:
            self._visible.add(job.id)
        return True

    def _add(self, job: JobRecord, layers: dict[str, int]) -> None:
        layers[job.id] = layer = layer_of(job, layers)
        self._nodes.append(GraphNode(job, layer))
        bonds = bonds_of(job)
        when: When = bonds.when
        self._edges.extend(
            (first, job.id, when) for first in bonds.after if self._visible is None or first in self._visible
        )

    async def _open(self, job: JobRecord) -> None:
        """Add the children of a job if they are few and there is room for all of them.

        The event below a node that waits for it is no news.
        """
        total = family_of(job).total
        room = min(AS_ONE, MOST_NODES - len(self._nodes))
        if not 0 < total <= room or self._opened == MOST_OPENED or job.type == WAIT_TYPE:
            return
        self._opened += 1
        query = Query(parent=job.id, limit=AS_ONE, payloads=False)
        found = (await self._driver.find(query, now=self._now)).jobs
        children = list(filter(self._is_seen, found))
        if not self._has_room(*children):
            return
        layers: dict[str, int] = {}
        for child in children:
            self._add(child, layers)
        for child in children:
            await self._open(child)

    async def _layers_before(self, query: Query, page: Sequence[JobRecord]) -> dict[str, int]:
        """The layers of earlier pages, if a job of this one comes after a job there."""
        here = {job.id for job in page}
        layers: dict[str, int] = {}
        if query.cursor is None or all(here.issuperset(bonds_of(job).after) for job in page):
            return layers
        earlier = msgspec.structs.replace(query, cursor=None, limit=MAX_PAGE)
        while len(layers) <= MAX_NODES:  # as many as one call stores: edges are among those
            found = await self._driver.find(earlier, now=self._now)
            for job in found.jobs:
                if job.id in here:
                    return layers
                layers[job.id] = layer_of(job, layers)
                self._is_seen(job)
            if found.next_cursor is None:
                break
            earlier = msgspec.structs.replace(earlier, cursor=found.next_cursor)
        return layers


def layer_of(job: JobRecord, layers: dict[str, int]) -> int:
    """One more than the largest layer of what it comes after, which was stored and so seen before it."""
    return 1 + max((layers.get(one, -1) for one in bonds_of(job).after), default=-1)
