"""FastAPI, Starlette, Litestar: open and close the store with the application, and run a worker inside it.

    app = FastAPI(lifespan=lifespan(harbor, server=jobs, worker=True))
    app.mount("/jobs", jobs)

Nothing here imports a framework: a lifespan is an async context manager in all of them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from taskharbor.errors import ConfigurationError, DriverUnavailable
from taskharbor.harbor import Harbor
from taskharbor.model.clock import SystemClock
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker.signals import stop_signals

if TYPE_CHECKING:
    from taskharbor.web.app import App

HarborT = TypeVar("HarborT", bound=Harbor)
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What frameworks take as `lifespan=`: a function from the application to an async context manager."""

EMBEDDED_GRACE = timedelta(seconds=5)
"""How long running jobs may continue when the application stops: web servers are restarted often."""

_RETRY_SECONDS = 5.0
_DEPENDENCY = "_taskharbor_dependency"
_log = logging.getLogger("taskharbor.worker")


def lifespan(
    harbor: Harbor,
    server: App | None = None,
    worker: bool | WorkerOptions = False,
    inner: Lifespan | None = None,
) -> Lifespan:
    """A lifespan for your application: `FastAPI(lifespan=lifespan(harbor))`.

    It opens the store of this event loop at the start and closes it at the end. A store that cannot be
    reached does not keep the application from starting; calls then raise DriverUnavailable.

    Args:
        harbor: The harbor that your endpoints use.
        server: What `create_app` returned, mounted in your application. Frameworks do not run the lifespan of
            a mounted application; this does. Open event streams end as soon as the process is asked to stop.
        worker: Run a worker in this process, for small services. True gives running jobs five seconds when
            the application stops; pass WorkerOptions for another `grace`, `concurrency` or `queues`.
        inner: Your own lifespan. It starts last and ends first, so that it can use the harbor.

    Raises:
        ConfigurationError: when it starts: a worker without tasks, or with options that need a process of
            its own.
    """

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(harbor.aclose)
            await _open(harbor)
            stops: list[Callable[[], None]] = []
            if server is not None:
                await stack.enter_async_context(server.running())
                stops.append(server.stop)
            if worker is not False:
                embedded = EmbeddedWorker(harbor, worker)
                await stack.enter_async_context(embedded.running())
                stops.append(embedded.stop)
            stack.enter_context(_called_at_stop_signals(stops))
            yield None if inner is None else await stack.enter_async_context(inner(app))

    return running


def use(harbor: HarborT) -> Callable[[], Awaitable[HarborT]]:
    """A dependency that gives an endpoint the harbor: `Depends(use(harbor))`, `Provide(use(harbor))`.

    The same harbor always gives the same dependency, so tests can replace it:
    `app.dependency_overrides[use(harbor)] = lambda: other`.
    """
    kept: Callable[[], Awaitable[HarborT]] | None = vars(harbor).get(_DEPENDENCY)
    return kept if kept is not None else vars(harbor).setdefault(_DEPENDENCY, _dependency(harbor))


def _dependency(harbor: HarborT) -> Callable[[], Awaitable[HarborT]]:
    async def the_harbor() -> HarborT:
        return harbor

    return the_harbor


async def _open(harbor: Harbor) -> None:
    try:
        await harbor.aopen()
    except DriverUnavailable as error:
        harbor.driver.outage.failed("open, for the application", error)


class EmbeddedWorker:
    """A worker in the event loop of an application. It starts again while the store cannot be reached."""

    def __init__(self, harbor: Harbor, options: bool | WorkerOptions) -> None:
        chosen = options if isinstance(options, WorkerOptions) else WorkerOptions(grace=EMBEDDED_GRACE)
        if chosen.max_jobs or chosen.max_memory:
            raise ConfigurationError(
                "max_jobs and max_memory end a worker so that its process is replaced. Leave them out for a "
                "worker inside an application, or run `taskharbor worker` beside it"
            )
        self._harbor = harbor
        self._worker = harbor.worker(options=chosen)
        self._worker._check_handlers()
        self._is_stopping = asyncio.Event()

    def stop(self) -> None:
        """Claim nothing more; running jobs may continue for their grace, then they are released."""
        self._is_stopping.set()
        self._worker.stop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the worker during the block, and start it again if it fails."""
        task = asyncio.ensure_future(self._run())
        try:
            yield
        finally:
            self.stop()
            await task

    async def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                await self._worker.arun()
            except DriverUnavailable as error:
                self._harbor.driver.outage.failed("start the worker of this application", error)
            except Exception:  # noqa: BLE001 - logged with its traceback; the application goes on
                _log.exception("the worker of this application stopped unexpectedly; starting it again")
            await self._pause()

    async def _pause(self) -> None:
        stopped = asyncio.ensure_future(self._is_stopping.wait())
        slept = asyncio.ensure_future(SystemClock().sleep(_RETRY_SECONDS))
        try:
            await asyncio.wait({stopped, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            slept.cancel()


@contextmanager
def _called_at_stop_signals(stops: list[Callable[[], None]]) -> Iterator[None]:
    """While entered, these are called at SIGTERM and SIGINT, before the web server's own handler.

    A web server ends the lifespan only after all answers are complete, and an event stream never is.
    """
    if not stops or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def asked_to_stop(number: int, frame: FrameType | None) -> None:
        for stop in stops:
            loop.call_soon_threadsafe(stop)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in stop_signals():
        if callable(signal.getsignal(number)):  # nothing handles it: the process ends as it always did
            before[number] = signal.signal(number, asked_to_stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is asked_to_stop:
                signal.signal(number, handler)
