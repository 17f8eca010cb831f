"""Running jobs within the enqueue, by the same path as a worker: in one's own harbor, or an InlineHarbor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from taskharbor.errors import UnknownTask
from taskharbor.harbor.harbor import Harbor
from taskharbor.middleware import EnqueueNext
from taskharbor.model.clock import Clock
from taskharbor.model.job import NewJob
from taskharbor.model.workflow import BUILT_IN
from taskharbor.testing.running import run_due
from taskharbor.testing.store import in_memory


@contextmanager
def run_inline(harbor: Harbor, *, raises: bool = True, clock: Clock | None = None) -> Iterator[Harbor]:
    """Let a program's own harbor run each job before its enqueue returns, on an empty store in memory.

    Afterwards it has its own store back. Otherwise as InlineHarbor.
    """
    layer = RunAtOnce(harbor, raises=raises)
    with in_memory(harbor, clock=clock):
        harbor.import_tasks()
        harbor.client.use(layer)
        try:
            yield harbor
        finally:
            harbor.client.leave(layer)


class InlineHarbor(Harbor):
    """Enqueueing stores the job, runs everything that is due with a real worker, and returns.

    So arguments and results are encoded and decoded as in production, retries are scheduled, and jobs that a
    handler enqueues run within it. Jobs with a delay wait, as they would. With `raises` an error of a handler
    is raised by the enqueue that ran it. A job of a task that this harbor does not have is refused: it would
    only wait.
    """

    def __init__(self, url: str = "memory://", *, raises: bool = True, **options: Any) -> None:
        super().__init__(url, **options)
        self.client.use(RunAtOnce(self, raises=raises))


class RunAtOnce:
    """The layer around an enqueue that runs what has become due."""

    def __init__(self, harbor: Harbor, *, raises: bool) -> None:
        self._harbor = harbor
        self._raises = raises

    async def __call__(self, jobs: Sequence[NewJob], call_next: EnqueueNext) -> Any:
        if self._raises:
            self._refuse_foreign(jobs)
        answers = await call_next(jobs)
        ran = await run_due(self._harbor)
        if self._raises and ran.errors:
            raise ran.errors[0]
        return answers

    def _refuse_foreign(self, jobs: Sequence[NewJob]) -> None:
        tasks = self._harbor.tasks
        for job in jobs:
            is_worked = job.bonds is None or job.bonds.done_by == "worker"
            if is_worked and job.type not in tasks and job.type not in BUILT_IN:
                raise UnknownTask(job.type, tuple(task.name for task in tasks))
