"""Harbor: the object that a program holds. It makes tasks, enqueues jobs and builds workers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec

from taskharbor.client.client import Client
from taskharbor.client.handle import JobHandle
from taskharbor.client.task import AsyncTask, Task
from taskharbor.client.workflow import Workflow
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import CancelAnswer
from taskharbor.drivers.unattached import UnattachedDriver
from taskharbor.errors import ConfigurationError
from taskharbor.events import EventBus
from taskharbor.harbor.decorator import TaskMaker, TaskOptions
from taskharbor.harbor.queues import QueueControl
from taskharbor.harbor.registry import TaskRegistry
from taskharbor.harbor.schedules import Schedules, wait_for_task
from taskharbor.harbor.workflows import WorkflowMaker
from taskharbor.model.clock import Clock
from taskharbor.model.codec import Codec
from taskharbor.model.duration import Duration, optional_duration
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_QUEUE, FAILURE_TYPE, JobRecord
from taskharbor.model.retry import ErrorKind, RetryPolicy, RetryPreset
from taskharbor.model.schedule import Misfire, Schedule, check_schedule
from taskharbor.model.speculation import Speculate
from taskharbor.settings.store import store_url
from taskharbor.tasks.discovery import import_modules
from taskharbor.tasks.failed import FailedJob, failure_handler
from taskharbor.tasks.handler import RecycleOn, RunIn
from taskharbor.tasks.request import JobRequest

if TYPE_CHECKING:
    from taskharbor.harbor.keywords import CronDecorator, FailureTaskKeywords, HarborWorkerKeywords
    from taskharbor.model.worker_options import WorkerOptions
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
OnFailure = TypeVar("OnFailure", bound=Callable[[FailedJob], Any])


class Harbor(WorkflowMaker):
    """The object that a program holds: it makes tasks, puts jobs in, and builds workers.

    The store is opened at first use, once per event loop; blocking calls share a handle of their
    own. `with` and `async with` close it; so does the end of the program. With `lazy=True` the store is
    named later, by `attach`.
    """

    _missing_call = "harbor.attach(URL)"
    """What a lazy harbor without a store asks for."""

    def __init__(
        self,
        url: str | None = None,
        *,
        codec: Codec | None = None,
        retry: RetryPolicy = RetryPolicy(),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        default_queue: str = DEFAULT_QUEUE,
        include: Sequence[str] = (),
        driver: Driver | None = None,
        lazy: bool = False,
    ) -> None:
        if isinstance(include, str):
            raise ConfigurationError(f"include must be a list: include=[{include!r}]")
        if url is not None and not isinstance(url, str):
            raise ConfigurationError(f"Harbor expects the URL of a store as a string, not {url!r:.80}")
        if lazy and (url is not None or driver is not None):
            raise ConfigurationError(
                "lazy=True means that the store is named later: leave out the URL and the driver"
            )
        self.clock = clock
        """The clock it was given, as tests do; None otherwise."""
        self._entropy = entropy
        self.url = None if lazy or driver is not None else store_url(url)
        """Where the store is; None for a driver that was handed in, and until a store is named."""
        if lazy:
            driver = UnattachedDriver(self._missing_call)
        self.driver = driver or connect(self.url or "", clock=clock, entropy=entropy)
        """The store, not opened: `another()` gives a handle for a loop of your own."""
        self.retry = retry
        """When failed jobs run again, for tasks without a policy of their own."""
        self.default_queue = default_queue
        """The queue of tasks that name none."""
        self.include = tuple(include)
        """Modules that hold tasks of this harbor, imported when they are needed: see `import_tasks`."""
        self.tasks = TaskRegistry()
        """Its tasks by name."""
        self.events = EventBus()
        """Where to listen to what its clients and workers do."""
        self.client = Client(
            self.driver,
            default_queue=default_queue,
            codec=codec,
            clock=clock,
            events=self.events,
            opens=True,
            read_result=self._read_result,
        )
        """For jobs of tasks that this program does not have, and for lists of jobs."""
        self.schedules = Schedules(self.client)
        """Its schedules: list, pause, run and delete them."""

    @property
    def is_attached(self) -> bool:
        """Whether its store is known; only a lazy harbor starts without one."""
        return not isinstance(self.driver, UnattachedDriver)

    def attach(self, store: Driver | str, *, clock: Clock | None = None) -> None:
        """Use this store from now on: a URL, or a driver that is not open.

        Tasks, client, queues and schedules of this harbor follow. Declared schedules are stored there again.
        For programs that learn their store after their tasks were imported (`Harbor(lazy=True)`), and for
        tests. `env:NAME` borrows a variable, as everywhere.

        Raises:
            ConfigurationError: the URL names no store that could be used.
        """
        url = None
        if isinstance(store, str):
            url = store_url(store)
            store = connect(url, clock=clock, entropy=self._entropy)
        self.url, self.driver, self.clock = url, store, clock
        self.client._attach(store, clock=clock, opens=True)
        self.schedules.forget_stored()

    # ------------------------------------------------------------------ tasks

    @overload
    def task(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        requires: str = "any",
        timeout: Duration | None = None,
        max_attempts: int | None = None,
        max_stalls: int | None = None,
        min_backoff: Duration | None = None,
        max_backoff: Duration | None = None,
        retry: RetryPolicy | RetryPreset | None = None,
        retry_on: ErrorKind | Iterable[ErrorKind] | None = None,
        no_retry_on: ErrorKind | Iterable[ErrorKind] | None = None,
        run_in: RunIn = "auto",
        speculate: Speculate | Duration | None = None,
        recycle_on: RecycleOn | Iterable[RecycleOn] = (),
    ) -> TaskMaker: ...

    def task(self, *function: Any, **options: Any) -> Any:
        """Make a task of a function: `@harbor.task` or `@harbor.task(queue="mail", timeout="30s")`.

        Without a name, the task is named like the function. A queue left out is the harbor's default
        queue. `max_attempts` counts executions; left out, the retry policy decides. `run_in` is
        auto (async functions in the loop, others in a thread), loop, thread or process. `recycle_on` names
        exceptions after which a process takes no further job: types, or names such as "AcceleratorError".
        With `retry_on` only these exceptions are tried again, and those of `no_retry_on` never are.

        Raises:
            ConfigurationError: another function has the name, or its parameters cannot travel.
        """
        maker = TaskMaker(
            self.client,
            self.tasks,
            _task_options(options),
            retry=self.retry,
            default_queue=self.default_queue,
            around=self._around,
        )
        return maker(*function) if function else maker

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What a task runs in place of its function: for integrations that surround it, in any process."""
        return function

    def import_tasks(self, *modules: str) -> None:
        """Import the modules of `include`, and these, so that their tasks are known here.

        Of a package everything beneath it is imported, too. `worker()` and the command line do this by
        themselves; modules that define tasks may import the harbor, since it happens that late.

        Raises:
            ConfigurationError: a module is not there, or its code raised.
        """
        import_modules([*self.include, *modules])

    @overload
    def cron(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        timezone: str = "UTC",
        misfire: Misfire = "latest",
        name: str | None = None,
    ) -> CronDecorator: ...
    @overload
    def cron(
        self,
        cron: str | None = None,
        *,
        call: JobRequest | Workflow[Any],
        every: Duration | None = None,
        timezone: str = "UTC",
        misfire: Misfire = "latest",
        name: str | None = None,
    ) -> None: ...

    def cron(
        self,
        cron: str | None = None,
        *,
        call: JobRequest | Workflow[Any] | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        misfire: Misfire = "latest",
        name: str | None = None,
    ) -> Any:
        """Run a task by the clock: `@harbor.cron("0 3 * * *")` above or below `@harbor.task`.

        A task with arguments is given as a call, which is checked like any other call of the task:
        `harbor.cron("0 3 * * *", call=clean_up.call(days=30))`. `cron` has five fields, `every` is an
        interval. The schedule is stored at the first use of `harbor.schedules`, and when a worker of this
        harbor starts. A scheduler then makes one job per tick, on however many machines it runs.
        """

        def add(request: JobRequest) -> None:
            schedule = Schedule(
                name=name or request.type,
                template=msgspec.structs.replace(self.client._new_job(request), id=""),
                cron=cron,
                every=optional_duration(every, "every"),
                timezone=timezone,
                misfire=misfire,
            )
            check_schedule(schedule, self.client.clock.now())
            self.schedules.declare(schedule)

        def declare(task: Any) -> Any:
            if not isinstance(task, Task):
                return wait_for_task(task, declare, self.schedules)
            add(task.call())
            return task

        if call is None:
            return declare
        if isinstance(call, Workflow):
            name = name or call.name
            call = call.as_call()
        add(call)
        return None

    def on_failure(
        self, queue: str, **options: Unpack[FailureTaskKeywords]
    ) -> Callable[[OnFailure], OnFailure]:
        """Call a function with a `FailedJob` for every job that fails for good and is reported to this queue.

        A queue reports its failures once `harbor.queue("mail").configure(fail_queue=queue)` was called.
        The options are those of `harbor.task`; attempts and backoff are the failure job's own.
        """

        def make(function: OnFailure) -> OnFailure:
            self.task(name=FAILURE_TYPE, queue=queue, **options)(failure_handler(function))
            return function

        return make

    # ------------------------------------------------------------------ jobs

    def enqueue_many(self, requests: Iterable[JobRequest], *, tx: Any = None) -> list[JobHandle[Any]]:
        """Store the jobs of several `task.call(...)` in one step: all of them, or nothing."""
        return self.client.enqueue_many(requests, tx=tx)

    async def aenqueue_many(self, requests: Iterable[JobRequest], *, tx: Any = None) -> list[JobHandle[Any]]:
        return await self.client.aenqueue_many(requests, tx=tx)

    def enqueue_on(self, connection: Any, requests: Iterable[JobRequest]) -> list[JobHandle[Any]]:
        """Store jobs on your own connection, without opening the store; see `Client.enqueue_on`."""
        return self.client.enqueue_on(connection, requests)

    def get_on(self, connection: Any, ids: Sequence[str]) -> list[JobRecord | None]:
        """Records read on your own connection, without opening the store; see `Client.get_on`."""
        return self.client.get_on(connection, ids)

    def get(self, job_id: str) -> JobHandle[Any]:
        """A handle on a job. Raises JobNotFound for an id that the store does not know."""
        return self.client.get(job_id)

    async def aget(self, job_id: str) -> JobHandle[Any]:
        return await self.client.aget(job_id)

    def ring(self, queues: Sequence[str]) -> None:
        """Wake workers that wait for these queues, after a commit of yours; see `Client.ring`."""
        self.client.ring(queues)

    async def aring(self, queues: Sequence[str]) -> None:
        await self.client.aring(queues)

    def cancel(self, job_id: str) -> CancelAnswer:
        """Cancel a job; see `Client.cancel`."""
        return self.client.cancel(job_id)

    async def acancel(self, job_id: str) -> CancelAnswer:
        return await self.client.acancel(job_id)

    def queue(self, name: str) -> QueueControl:
        """A queue, to configure, pause, resume and count; `*` is the whole harbor."""
        return QueueControl(self.client, name)

    def _read_result(self, record: JobRecord) -> Any:
        task = self.tasks.find(record.type)
        data = record.result or b"null"
        return self.client.codec.decode(data) if task is None else task.read_result(data)

    # ------------------------------------------------------------------ workers

    def worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        kind: str | None = None,
        *,
        options: WorkerOptions | None = None,
        scheduler: bool = True,
        **keywords: Unpack[HarborWorkerKeywords],
    ) -> Worker:
        """A worker with the tasks of this harbor: `run()` it in a script, `await arun()` in async code.

        Without queues it serves those of its tasks; a task that names none has the default queue. It claims
        jobs of the tasks it knows and leaves the others to other workers; `unknown_types="fail"` takes them
        and sends them to the dead letters. A scheduler runs beside it, which fires schedules and forgets old
        jobs. `scheduler=False` leaves that to others, and `sweep_every` (2 s) is how often it looks for
        leases that have run out. The other keywords are the fields of `WorkerOptions`.
        """
        from taskharbor.harbor.worker import HarborWorker

        self.import_tasks()
        if queues is None and (options is None or options.queues is None):
            queues = self.tasks.queues() or (self.default_queue,)
        given: dict[str, Any] = {"clock": self.clock, "codec": self.client.codec, **keywords}
        if given.get("retry") is None and (options is None or options.retry is None):
            given["retry"] = self.retry
        worker = HarborWorker(
            self.driver.another(),
            self.schedules,
            queues=queues,
            concurrency=concurrency,
            kind=kind,
            options=options,
            scheduler=scheduler,
            **given,
            events=self.events,
        )
        worker.default_queue = self.default_queue
        for handler in self.tasks.handlers():
            worker.add(handler)
        return worker

    # ------------------------------------------------------------------ open and close

    def open(self) -> Self:
        """Open the store for blocking calls now, instead of at the first of them."""
        self.client._block(self.client.aopen)
        return self

    async def aopen(self) -> Self:
        """Open the store for this event loop now, instead of at first use."""
        await self.client.aopen()
        return self

    def close(self) -> None:
        """Let go of the store in blocking code. A later call opens it again."""
        self.client.close()

    async def aclose(self) -> None:
        """Let go of the store in this event loop."""
        await self.client.aclose()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.aopen()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Harbor {type(self.driver).__name__}, {len(self.tasks)} tasks>"


def _task_options(options: dict[str, Any]) -> TaskOptions:
    try:
        return TaskOptions(**options)
    except TypeError as error:
        known = ", ".join(TaskOptions.__struct_fields__)
        raise ConfigurationError(f"harbor.task: {error}; known options: {known}") from None
