"""/api/workers and /api/stats: live workers, and totals."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from starlette.responses import Response

from taskharbor.client.needs import LostWorker
from taskharbor.model.presence import WorkerInfo
from taskharbor.views import instant_text, seconds, worker_view
from taskharbor.web.api.answers import (
    LostOut,
    StatsOut,
    StoreOut,
    TypeOut,
    WorkerOut,
    WorkersOut,
    WorkerTotalsOut,
)
from taskharbor.web.api.queues import visible_queues
from taskharbor.web.board_view import total, visible_lost
from taskharbor.web.endpoint import Operation
from taskharbor.web.queue_scope import visible_workers
from taskharbor.web.redaction import worker_shown_to
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.sentences import machine_text, workers_sentence


async def list_workers(request: Request) -> Response:
    look = await request.service.board.look()
    driver, found = await request.service.driver(), await _visible_workers(request)
    slower = await request.service.worker_speeds.times_slower(driver, request.principal.may_use)
    workers = [_worker(worker, slower.get(worker.report.worker_id)) for worker in found]
    lost = [_lost(worker) for worker in visible_lost(request.principal, look.lost)]
    machines = _machines(workers)
    items = [structs.replace(one, machine_text=machines[one.host]) for one in workers]
    return json_answer(WorkersOut(items=items, lost=lost, text=workers_sentence(workers, lost)))


def _machines(workers: Sequence[WorkerOut]) -> dict[str, str | None]:
    """By host, in a few words."""
    by_host: dict[str, list[WorkerOut]] = {}
    for worker in workers:
        by_host.setdefault(worker.host, []).append(worker)
    return {host: machine_text(beside) for host, beside in by_host.items()}


def _worker(worker: WorkerInfo, times_slower: float | None) -> WorkerOut:
    slower = None if times_slower is None else round(times_slower, 2)
    return WorkerOut(**structs.asdict(worker_view(worker)), times_slower=slower)


def _lost(worker: LostWorker) -> LostOut:
    return LostOut(
        id=worker.id,
        name=worker.name,
        host=worker.host,
        seen_at=instant_text(worker.seen_at) or "",
        running=list(worker.running),
        release=worker.release,
    )


async def stats(request: Request) -> Response:
    from taskharbor import __version__

    driver = await request.service.driver()
    look = await request.service.board.look()
    queues, workers = visible_queues(request, look), _visible(request, look.workers)
    info = await driver.info()
    types = await driver.types(now=request.service.now()) if request.principal.queues is None else []
    return json_answer(
        StatsOut(
            version=__version__,
            counts=total([queue.counts for queue in queues]),
            queues=len(queues),
            workers=WorkerTotalsOut(
                count=len(workers),
                slots=sum(worker.report.concurrency for worker in workers),
                busy=sum(len(worker.report.running) for worker in workers),
            ),
            types=[TypeOut(type=one.type, usual_s=seconds(one.usual), samples=one.samples) for one in types],
            store=StoreOut(driver=info.driver, durability=info.durability, at=instant_text(info.at) or ""),
            age_s=request.service.board.age_s(look),
        )
    )


async def _visible_workers(request: Request) -> list[WorkerInfo]:
    driver = await request.service.driver()
    return _visible(request, await driver.workers(now=request.service.now()))


def _visible(request: Request, found: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Workers that serve at least one queue of the caller."""
    visible = visible_workers(request.principal, found)
    return [worker_shown_to(request.principal, worker) for worker in visible]


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/workers",
        name="list_workers",
        handler=list_workers,
        summary="The live workers, fastest first",
        answer=WorkersOut,
    ),
    Operation(
        method="GET",
        path="/api/stats",
        name="stats",
        handler=stats,
        summary="Totals over all queues and workers",
        answer=StatsOut,
    ),
]
