"""Wake-ups of the store: followed for as long as the worker runs, whatever becomes of their connection."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from taskharbor.drivers.messages import Wakeup, WakeupKind
from taskharbor.model.entropy import Entropy
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker.fetcher import follow_wakeups
from taskharbor.worker.timing import Timing


class Scripted:
    """A store whose hints break off, then come, then say nothing more."""

    def __init__(self) -> None:
        self.calls = 0
        self.closed = 0

    def wakeups(self, queues: tuple[str, ...], worker_id: str) -> Scripted:
        self.calls += 1
        self._left = (
            []
            if self.calls == 1
            else [
                Wakeup(WakeupKind.WORK, queue="mail"),
                Wakeup(WakeupKind.CANCEL, job_id="7"),
                Wakeup(WakeupKind.CANCEL),
            ]
        )
        return self

    def __aiter__(self) -> Scripted:
        return self

    async def __anext__(self) -> Wakeup:
        if self.calls == 1:
            raise ConnectionError("cut")
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)

    async def aclose(self) -> None:
        self.closed += 1
        raise OSError("closed twice")


async def test_hints_that_break_off_are_followed_again_and_never_raise(clock):
    store, heard = Scripted(), list[Any]()
    done = asyncio.Event()

    def on_cancel(job_id: str) -> None:
        heard.append(job_id)
        done.set()

    def on_trouble(verb: str, error: Exception, failures: int) -> None:
        heard.append((verb, str(error), failures))

    run: Any = SimpleNamespace(
        options=WorkerOptions(queues=("mail",)),
        driver=store,
        worker_id="w",
        timing=Timing(clock),
        entropy=Entropy(1),
        announcer=SimpleNamespace(trouble=on_trouble),
        work_arrived=lambda: heard.append("work"),
        cancel_reported=on_cancel,
    )
    following = asyncio.create_task(follow_wakeups(run))
    while not done.is_set():
        await asyncio.wait([following], timeout=0)
        clock.advance(timedelta(seconds=1))
    following.cancel()
    await asyncio.wait([following])

    assert heard[:3] == [("wakeups", "cut", 1), "work", "7"]
    assert store.closed >= 1
