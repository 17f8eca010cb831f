"""InlineHarbor: a harbor whose enqueue runs the job at once, by the same path as a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskharbor.harbor.harbor import Harbor
from taskharbor.middleware import EnqueueNext
from taskharbor.model.job import NewJob
from taskharbor.testing.running import run_due


class InlineHarbor(Harbor):
    """Enqueueing stores the job, runs everything that is due with a real worker, and returns.

    So arguments and results are encoded and decoded as in production, retries are scheduled, and
    jobs that a handler enqueues run within it. Jobs with a delay wait, as they would. With `raises`
    an error of a handler is raised by the enqueue that ran it.
    """

    def __init__(self, url: str = "memory://", *, raises: bool = True, **options: Any) -> None:
        super().__init__(url, **options)
        self._raises = raises
        self.client.use(self._run_at_once)

    async def _run_at_once(self, jobs: Sequence[NewJob], call_next: EnqueueNext) -> Any:
        answers = await call_next(jobs)
        ran = await run_due(self)
        if self._raises and ran.errors:
            raise ran.errors[0]
        return answers
