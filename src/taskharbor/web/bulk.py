"""BulkActions: one change for many jobs, held for a few seconds before it begins.

    held ──8 s, or `now`──► running ──► done
      │                        └──stop, error, rights gone──► stopped    what was done stays done
      └──undo, server stops──► dropped                                   nothing was done

They live in this process. If it ends while one is held, nothing was done; while one runs, some of it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from taskharbor.errors import TaskHarborError
from taskharbor.web.auth import Principal
from taskharbor.web.problems import Problem

if TYPE_CHECKING:
    from taskharbor.web.service import Service

_log = logging.getLogger("taskharbor.server")

HOLD_SECONDS = 8.0
MOST_AT_WORK = 20
"""Actions that are held or running at the same time."""
MOST_KEPT = 200
"""Actions that are remembered, the oldest ended ones are forgotten first."""

BulkState = Literal["held", "running", "done", "stopped", "dropped"]


@dataclass(slots=True, eq=False)
class BulkAction:
    """One change for many jobs, and how far it is."""

    id: str
    verb: str
    owner: Principal
    of: int
    """Jobs that were counted when it was asked for."""
    is_exact: bool
    starts_at: datetime
    state: BulkState = "held"
    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Jobs that were left as they are, by reason."""
    note: str | None = None
    """Why it was stopped or dropped, if nobody asked for that."""
    ended_at: datetime | None = None
    is_to_stop: bool = False
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "stopped", "dropped")


Work = Callable[[BulkAction], Awaitable[None]]
"""Does the change step by step, and looks at `is_to_stop` after each."""


class BulkActions:
    """The bulk actions of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._by_id: dict[str, BulkAction] = {}

    def hold(self, verb: str, owner: Principal, of: int, work: Work, *, is_exact: bool) -> BulkAction:
        """Start one after the hold. Raises Problem `rate-limited` if there are too many."""
        if sum(not one.is_over for one in self._by_id.values()) >= MOST_AT_WORK:
            raise Problem(
                "rate-limited",
                f"{MOST_AT_WORK} bulk actions are held or running; nothing was done",
                headers={"Retry-After": str(int(HOLD_SECONDS))},
            )
        service = self._service
        action = BulkAction(
            id=f"b-{service.entropy.bytes(8).hex()}",
            verb=verb,
            owner=owner,
            of=of,
            is_exact=is_exact,
            starts_at=service.clock.now() + timedelta(seconds=HOLD_SECONDS),
        )
        self._by_id[action.id] = action
        self._forget_old()
        task = asyncio.get_running_loop().create_task(self._run(action, work))
        service.background.add(task)
        task.add_done_callback(service.background.discard)
        return action

    def find(self, action_id: str, principal: Principal) -> BulkAction:
        """Raises Problem `not-found` for one that is unknown here, or of a caller with other queues."""
        action = self._by_id.get(action_id)
        if action is None or not _may_see(principal, action):
            raise Problem(
                "not-found", "this server knows no such bulk action; another server or an earlier run may"
            )
        return action

    def seen_by(self, principal: Principal) -> list[BulkAction]:
        """The newest last."""
        return [action for action in self._by_id.values() if _may_see(principal, action)]

    def start(self, action: BulkAction) -> None:
        """Do not wait for the end of the hold."""
        self._require(action, "start", "held")
        action.state = "running"
        action.go.set()

    def stop(self, action: BulkAction) -> None:
        """Undo while it is held; while it runs, stop after the present step."""
        self._require(action, "stop", "held", "running")
        action.is_to_stop = True
        if action.state == "held":
            self._end(action, "dropped")
        action.go.set()

    # ------------------------------------------------------------------

    async def _run(self, action: BulkAction, work: Work) -> None:
        await self._held(action)
        if action.is_over:
            return
        if self._service.stopping.is_set():
            self._end(action, "dropped", "the server stopped; nothing was done")
            return
        action.state = "running"
        try:
            await work(action)
        except (Problem, TaskHarborError) as error:
            self._end(action, "stopped" if action.done else "dropped", str(error))
        except Exception:  # noqa: BLE001 - logged with its traceback, and shown to the caller
            _log.exception("a bulk action stopped with an unexpected error")
            self._end(action, "stopped", "an unexpected error; the server's log has it")
        else:
            self._end(action, "stopped" if action.is_to_stop else "done")

    async def _held(self, action: BulkAction) -> None:
        waits = [
            asyncio.ensure_future(action.go.wait()),
            asyncio.ensure_future(self._service.pause(HOLD_SECONDS)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _end(self, action: BulkAction, state: BulkState, note: str | None = None) -> None:
        action.state, action.note, action.ended_at = state, note, self._service.clock.now()

    def _require(self, action: BulkAction, verb: str, *states: BulkState) -> None:
        if action.state not in states:
            raise Problem("wrong-state", f"cannot {verb} a bulk action that is {action.state}")

    def _forget_old(self) -> None:
        over = [one.id for one in self._by_id.values() if one.is_over]
        for action_id in over[: max(len(self._by_id) - MOST_KEPT, 0)]:
            del self._by_id[action_id]


def _may_see(principal: Principal, action: BulkAction) -> bool:
    """Its owner, and callers for every queue."""
    return principal.queues is None or principal == action.owner
