"""GET /metrics: metrics of this server and, while it has the metrics role, of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import Response

from taskharbor import __version__
from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.harbor import Harbor
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.metrics import Exposition
from taskharbor.observe.store_gauges import StoreGauges, StoreLook
from taskharbor.observe.store_times import time_store
from taskharbor.web.board import Board
from taskharbor.web.connection_limits import REASONS, ConnectionLimits
from taskharbor.web.endpoint import Operation
from taskharbor.web.request import Request

_FAREWELL_SECONDS = 2.0


class ServerMetrics:
    """The metrics of one server. Created before its store is opened, to time all calls."""

    def __init__(self, harbor: Harbor, connections: ConnectionLimits, board: Board) -> None:
        self._meter = Meter()
        self._meter.listen(harbor.events)
        time_store(harbor.driver, self._meter)
        self._board = board
        self._gauges = StoreGauges(harbor.driver.another(), name="server", look=self._look)
        self._meter.ask(self._gauges.values)
        scheme = (harbor.url or type(harbor.driver).__name__).partition(":")[0]
        self._meter.ask(lambda: {metric_names.BUILD_INFO.name: {(__version__, scheme): 1.0}})
        for reason in REASONS:
            self._meter.add(metric_names.SERVER_DROPPED, (reason,), 0.0)
        connections.on_drop = lambda reason: self._meter.add(metric_names.SERVER_DROPPED, (reason,))
        self._meter.ask(lambda: {metric_names.SERVER_CONNECTIONS.name: {(): float(len(connections))}})
        self._exposition = Exposition(self._meter.sample)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Measure the store while the block runs, whenever no other process does."""
        keeping = asyncio.ensure_future(self._gauges.keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait((keeping,), timeout=_FAREWELL_SECONDS)

    async def _look(self) -> StoreLook:
        look = await self._board.look()
        harbor = QueueInfo(queue=EVERY_QUEUE, rules=look.harbor, counts=Counts())
        return StoreLook(look.at, [*look.queues.values(), harbor], look.workers, look.schedules)

    def operation(self) -> Operation:
        async def metrics(request: Request) -> Response:
            page, content_type = self._exposition.page(request.headers.get("accept"))
            return Response(page, media_type=None, headers={"Content-Type": content_type})

        return Operation(
            method="GET",
            path="/metrics",
            name="metrics",
            handler=metrics,
            summary="Prometheus metrics of this server and of the store",
            meter=None,
            query=None,
            media_type="text/plain",
        )
